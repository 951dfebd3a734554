"""Of the ticks that have come, those fire that the policy lets, and every other one has a reason."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.jobs import NEVER, Firing, NewJob, Overlap, Schedule, Skip, TickOutcome
from ingest.jobs.cron import Cron
from ingest.jobs.firing import CatchUp, Plan, Policy, decide
from ingest.jobs.ticks import Interval, Timing, before

HOUR, DAY = 3600.0, 86_400.0
SIX = datetime(2027, 1, 4, 6, tzinfo=UTC).timestamp()  # a Monday
HOURLY, DAILY = Cron("0 * * * *"), Cron("0 6 * * *")
JOB = NewJob("sync", "billing")


def plan(timing: Timing = HOURLY, *, at_once: bool = False, **policy: Any) -> Plan:
    return Plan("billing/charges", "spec", timing, JOB, Policy(**policy), at_once)


def known(cursor: float, now: float, **more: Any) -> Schedule:
    found = Schedule("billing/charges", "spec", plan().declared.digest, cursor, now)
    return msgspec.structs.replace(found, **more)


def fired(firing: Firing | None) -> list[float]:
    assert firing is not None
    return [fire.tick_at for fire in firing.fires]


def skipped(firing: Firing | None) -> list[tuple[float, str, int]]:
    assert firing is not None
    return [(skip.tick_at, skip.outcome.value, skip.covers) for skip in firing.skips]


def test_a_tick_fires_when_it_has_come_and_not_before() -> None:
    assert decide(plan(), known(SIX - HOUR, SIX - 0.001)) is None
    firing = decide(plan(), known(SIX - HOUR, SIX + 0.4))
    assert firing is not None
    assert (firing.cursor_at, firing.cursor_to) == (SIX - HOUR, SIX)
    [fire] = firing.fires
    assert (fire.tick_at, fire.tick_from, fire.run_at) == (SIX, SIX - HOUR, SIX)
    assert decide(plan(), known(firing.cursor_to, SIX + 0.5)) is None


def test_nothing_is_decided_while_it_is_paused_or_known_otherwise_or_the_clock_was_set_back() -> None:
    assert decide(plan(), known(SIX - HOUR, SIX, paused=True)) is None
    assert decide(plan(), known(SIX - HOUR, SIX, digest="another")) is None
    assert decide(plan(), known(SIX, SIX - HOUR)) is None


def test_a_new_interval_fires_at_once_and_no_tick_before_it_is_spoken_of() -> None:
    firing = decide(plan(Interval(300, "a"), at_once=True, catch_up="none"), known(NEVER, SIX))
    assert firing is not None
    [fire] = firing.fires
    assert SIX - 300 < fire.tick_at <= SIX and fire.tick_from == fire.tick_at - 300
    assert firing.skips == []


@pytest.mark.parametrize(
    ("policy", "expected", "others"),
    [
        ({}, [SIX], [(SIX - HOUR, "coalesced", 9)]),
        ({"catch_up": "all"}, [SIX], [(SIX - HOUR, "skipped_catchup", 9)]),
        ({"catch_up": "all", "window": DAY}, [SIX - n * HOUR for n in range(9, -1, -1)], []),
        (
            {"catch_up": "all", "window": DAY, "most": 3},
            [SIX - 2 * HOUR, SIX - HOUR, SIX],
            [(SIX - 3 * HOUR, "skipped_catchup", 7)],
        ),
        ({"catch_up": "none"}, [], [(SIX, "skipped_catchup", 10)]),
        ({"window": 60.0}, [], [(SIX, "skipped_catchup", 10)]),
    ],
)
def test_ten_missed_ticks_by_policy(
    policy: dict[str, Any], expected: list[float], others: list[tuple[float, str, int]]
) -> None:
    firing = decide(plan(**({"window": HOUR} | policy)), known(SIX - 10 * HOUR, SIX + 90))
    assert (fired(firing), skipped(firing)) == (expected, others)


def test_the_window_is_an_hour_or_two_periods_where_none_is_named() -> None:
    assert fired(decide(plan(DAILY), known(SIX - 9 * DAY, SIX + 23 * HOUR))) == [SIX]
    assert len(fired(decide(plan(Interval(10, "a"), catch_up="all", most=1000), known(SIX - DAY, SIX)))) == 360
    workdays = Cron("0 6 * * 1-5")
    friday, monday = SIX - 3 * DAY, SIX
    assert fired(decide(plan(workdays), known(friday - DAY, monday - 1))) == [friday]


def test_without_catching_up_a_tick_that_is_only_a_little_late_was_not_missed() -> None:
    firing = decide(plan(catch_up="none"), known(SIX - 3 * HOUR, SIX + 5))
    assert (fired(firing), skipped(firing)) == ([SIX], [(SIX - HOUR, "skipped_catchup", 2)])


def test_what_stands_for_others_stands_for_their_time() -> None:
    firing = decide(plan(), known(SIX - 10 * HOUR, SIX))
    assert firing is not None
    assert firing.fires[0].tick_from == SIX - 10 * HOUR
    assert firing.skips[0].note == "2027-01-04T06:00:00Z stands for it"


def test_what_fell_into_a_pause_does_not_fire_and_has_one_row() -> None:
    firing = decide(plan(), known(SIX - 10 * HOUR, SIX + 5, resumed_at=SIX - 90))
    assert (fired(firing), skipped(firing)) == ([SIX], [(SIX - HOUR, "skipped_paused", 9)])
    alone = decide(plan(), known(SIX - 10 * HOUR, SIX + 5, resumed_at=SIX + 4))
    assert (fired(alone), skipped(alone)) == ([], [(SIX, "skipped_paused", 10)])
    assert decide(plan(), known(SIX, SIX + 5, resumed_at=SIX + 4)) is None
    assert decide(plan(Interval(300, "a")), known(NEVER, SIX, resumed_at=SIX - 0.001)) is None


def test_a_pause_that_ended_before_the_cursor_is_no_more() -> None:
    assert fired(decide(plan(), known(SIX - HOUR, SIX, resumed_at=SIX - 2 * HOUR))) == [SIX]


def test_a_quarter_of_minutes_that_were_missed_is_two_rows() -> None:
    firing = decide(plan(Cron("* * * * *")), known(SIX - 90 * DAY, SIX))
    assert (fired(firing), skipped(firing)) == ([SIX], [(SIX - 60, "coalesced", 129_599)])


def test_overlap_and_jitter_go_with_what_fires() -> None:
    firing = decide(plan(jitter=600.0, overlap=Overlap.QUEUE_ONE), known(SIX - HOUR, SIX))
    assert firing is not None
    assert firing.overlap is Overlap.QUEUE_ONE
    assert SIX < firing.fires[0].run_at < SIX + 600
    assert firing == decide(plan(jitter=600.0, overlap=Overlap.QUEUE_ONE), known(SIX - HOUR, SIX))


BERLIN = ZoneInfo("Europe/Berlin")
TIMINGS = st.sampled_from(
    [Interval(300, "a"), Interval(7.3, "b"), HOURLY, DAILY, Cron("30 2 * * *", BERLIN), Cron("*/15 * * * *", BERLIN)]
)


@settings(deadline=None, max_examples=150)
@given(
    timing=TIMINGS,
    catch_up=st.sampled_from(["latest", "all", "none"]),
    window=st.sampled_from([None, 60.0, 10 * DAY, 1000 * DAY]),
    most=st.integers(1, 30),
    begin=st.integers(int(SIX), int(SIX) + 400 * 86_400).map(float),
    looks=st.lists(st.one_of(st.floats(0.001, 30), st.floats(1, 2e5)), min_size=1, max_size=12),
)
def test_however_often_somebody_looks_every_tick_is_decided_once_and_the_windows_are_the_whole(
    timing: Timing, catch_up: CatchUp, window: float | None, most: int, begin: float, looks: Sequence[float]
) -> None:
    made = plan(timing, catch_up=catch_up, window=window, most=most)
    cursor, now = begin, begin
    skips: list[Skip] = []
    windows: list[tuple[float, float]] = []
    for pause in looks:
        now += pause
        if firing := decide(made, known(cursor, now)):
            assert cursor < firing.cursor_to <= now
            skips += firing.skips
            windows += [(fire.tick_from or 0.0, fire.tick_at) for fire in firing.fires]
            assert len(firing.fires) <= (most if catch_up == "all" else 1)
            cursor = firing.cursor_to
    assert sum(skip.covers for skip in skips) + len(windows) == timing.count(begin, now)
    ticks = [tick for _, tick in windows] + [skip.tick_at for skip in skips]
    assert len(ticks) == len(set(ticks))
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(windows))
    if not any(skip.outcome is TickOutcome.SKIPPED_CATCHUP for skip in skips) and windows:
        assert windows[0][0] == timing.until(begin)
        assert all(earlier[1] == later[0] for earlier, later in pairwise(windows))
        assert windows[-1][1] == timing.until(now)
    for since, tick in windows if catch_up != "latest" else []:
        assert since == before(timing, tick)
