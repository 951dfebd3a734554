"""A source is down when nothing of it answers, and up as soon as anything does."""

from collections.abc import Callable

import pytest

from ingest.sources.breaker import FIRST, LONGEST, Breaker, State


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def outage(breaker: Breaker, *streams: str, unreachable: bool = False, at: float = 10.0) -> None:
    """As many failures; the request that gives up then began a second before."""
    for stream in streams:
        breaker.streams.add(stream)
        breaker.failed(stream, at, unreachable=unreachable, probe=False)
    breaker.used_up(at - 1, at, 0.0)


@pytest.fixture
def breaker() -> Breaker:
    return Breaker(middle)


def test_failures_of_several_streams_open_it_for_a_second(breaker: Breaker) -> None:
    outage(breaker, "a", "b", "a")
    assert (breaker.state, breaker.until) == (State.OPEN, 10.0 + FIRST)
    assert not breaker.may_go(10.5)


def test_failures_of_the_only_stream_open_it(breaker: Breaker) -> None:
    outage(breaker, "a", "a", "a")
    assert breaker.state is State.OPEN


def test_a_stream_that_fails_alone_beside_others_is_its_own_trouble(breaker: Breaker) -> None:
    breaker.streams.add("b")
    breaker.answered(0.0)
    outage(breaker, "a", "a", "a", "a", "a")
    assert breaker.state is State.CLOSED


def test_a_host_that_takes_no_connection_is_everybodys(breaker: Breaker) -> None:
    breaker.streams.add("b")
    outage(breaker, "a", "a", "a", unreachable=True)
    assert breaker.state is State.OPEN


def test_a_few_failures_do_not_open_it(breaker: Breaker) -> None:
    outage(breaker, "a", "b")
    assert breaker.state is State.CLOSED


def test_failures_before_a_request_has_used_up_its_tries_do_not_open_it(breaker: Breaker) -> None:
    for n in range(100):
        breaker.streams.add(f"{n}")
        breaker.failed(f"{n}", 10.0, unreachable=True, probe=False)
    assert breaker.state is State.CLOSED


def test_an_answer_to_anybody_meanwhile_means_that_it_is_up(breaker: Breaker) -> None:
    breaker.answered(9.5)
    outage(breaker, "a", "b", "a", "b")
    assert breaker.state is State.CLOSED


def test_one_probe_goes_when_the_time_is_over_and_the_others_wait_for_it(breaker: Breaker) -> None:
    outage(breaker, "a", "b", "a")
    assert breaker.may_go(breaker.until)
    assert breaker.state is State.HALF_OPEN
    assert not breaker.may_go(breaker.until)


def test_the_probes_answer_closes_it(breaker: Breaker) -> None:
    outage(breaker, "a", "b", "a")
    breaker.may_go(breaker.until)
    breaker.answered(breaker.until)
    assert breaker.state is State.CLOSED
    assert breaker.may_go(breaker.until)


def probe_in_vain(breaker: Breaker) -> float:
    """For how long it is open then."""
    now = breaker.until
    breaker.may_go(now)
    breaker.failed("a", now, unreachable=False, probe=True)
    return breaker.until - now


def test_it_is_open_for_twice_as_long_every_time_and_a_minute_at_most(breaker: Breaker) -> None:
    outage(breaker, "a", "b", "a")
    assert [probe_in_vain(breaker) for _ in range(8)] == pytest.approx([2, 4, 8, 16, 32, 60, 60, LONGEST])


def test_after_an_answer_it_begins_anew_with_a_second(breaker: Breaker) -> None:
    outage(breaker, "a", "b", "a")
    probe_in_vain(breaker)
    breaker.answered(50.0)
    outage(breaker, "a", "b", "a", at=60.0)
    assert breaker.until == 60.0 + FIRST


def test_it_stays_open_for_as_long_as_the_api_asked(breaker: Breaker) -> None:
    for stream in ("a", "b", "a"):
        breaker.streams.add(stream)
        breaker.failed(stream, 10.0, unreachable=False, probe=False)
    breaker.used_up(9.0, 10.0, 30.0)
    assert breaker.until == 40.0


def test_a_probe_that_ends_without_having_learnt_anything_makes_place_for_another(breaker: Breaker) -> None:
    outage(breaker, "a", "b", "a")
    breaker.may_go(breaker.until)
    breaker.abandoned(20.0)
    assert breaker.may_go(20.0)


def test_those_who_come_back_do_not_come_together() -> None:
    def until(uniform: Callable[[float, float], float]) -> float:
        breaker = Breaker(uniform)
        outage(breaker, "a", "b", "a")
        return breaker.until

    assert until(lambda low, high: low) < until(lambda low, high: high)
