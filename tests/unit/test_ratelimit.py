"""However late and however often requests come, no more leave in any time than the rate and its burst allow."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import Demand
from checkpoints.slots import NOTHING, Taken, take
from ingest.sources.ratelimit import AHEAD, Block, Spacing, spacing

RATES = st.sampled_from([0.1, 1.0, 7.0, 100.0, 1000.0])
BURSTS = st.sampled_from([2, 3, 10, 50])
PAUSES = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=80)  # in intervals
TINY = 1e-6  # of a request: what floating point may lose


def departures(rate: float, burst: int, came: Sequence[float], who: Sequence[int]) -> list[float]:
    """When requests leave that come at these times, each to one of several processes that take few slots at a time."""
    space = spacing(rate, burst)
    kept: Taken = NOTHING
    blocks = [Block(0.0, 0, space.interval, space.window)] * (max(who) + 1)
    left: list[float] = []
    for now, process in zip(came, who, strict=True):
        at = max(now, left[-1] if left else now)
        while True:
            slot = blocks[process].next(at)
            if slot is None:
                kept, slots = take(kept, at, str(process), Demand(space.interval, space.credit, AHEAD, 2), None)
                blocks[process] = Block(slots.first, slots.number, space.interval, space.window)
                continue
            at = max(at, slot.at)
            assert at <= slot.until
            break
        left.append(at)
    return left


def most_in_excess(times: Sequence[float], rate: float) -> float:
    """By how many requests the fullest stretch of time is over rate · t."""
    ordered = sorted(times)
    lowest, most = float("inf"), float("-inf")
    for n, moment in enumerate(ordered):
        lowest = min(lowest, n - rate * moment)
        most = max(most, n + 1 - rate * moment - lowest)
    return most


@given(RATES, BURSTS, PAUSES, st.data())
def test_no_stretch_of_time_holds_more_than_the_rate_and_a_burst(
    rate: float, burst: int, pauses: list[float], data: st.DataObject
) -> None:
    who = data.draw(st.lists(st.integers(0, 3), min_size=len(pauses), max_size=len(pauses)))
    came = [1e6 + sum(pauses[: n + 1]) / rate for n in range(len(pauses))]
    assert most_in_excess(departures(rate, burst, came, who), rate) <= burst + TINY * 1e3


@given(RATES, PAUSES)
def test_with_a_burst_of_one_two_requests_come_closer_by_half_an_interval_at_most(
    rate: float, pauses: list[float]
) -> None:
    came = [1e6 + sum(pauses[: n + 1]) / rate for n in range(len(pauses))]
    assert most_in_excess(departures(rate, 1, came, [0] * len(came)), rate) <= 1.5 + TINY * 1e3


@given(RATES, BURSTS)
def test_who_always_asks_gets_the_whole_rate(rate: float, burst: int) -> None:
    left = departures(rate, burst, [1e6] * 200, [0] * 200)
    assert left[-1] - left[0] <= 200 / rate


def test_what_may_leave_at_once_where_nothing_is_configured_is_a_tenth_of_a_second() -> None:
    assert spacing(100.0, None) == spacing(100.0, 10)
    assert spacing(1.0, None) == spacing(1.0, 1)


@pytest.mark.parametrize(("rate", "few"), [(1000.0, 100), (100.0, 10), (1.0, 1), (1 / 60, 1)])
def test_who_shares_a_source_takes_a_tenth_of_a_second_at_most(rate: float, few: int) -> None:
    assert spacing(rate, 1).few == few


def test_a_slot_is_given_once_and_a_late_one_is_lost() -> None:
    block = Block(10.0, 5, 1.0, 0.5)
    assert [block.next(9.0), block.next(9.0)] == [(10.0, 10.5), (11.0, 11.5)]
    assert block.next(13.2) == (13.0, 13.5)
    assert not block.used_up
    assert block.next(14.6) is None


def test_a_block_of_which_every_slot_was_used_is_used_up() -> None:
    block = Block(0.0, 2, 1.0, 0.5)
    assert [block.next(0.0), block.next(0.0), block.next(0.0)] == [(0.0, 0.5), (1.0, 1.5), None]
    assert block.used_up


def test_a_slow_rate_bears_a_request_that_is_late_by_seconds() -> None:
    assert spacing(1 / 60, 1) == Spacing(60.0, 3.0, 0.0)
