"""Intervals are counted from 1970 and not from the start of a process; jitter is the same for all who ask."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.jobs.cron import Cron
from ingest.jobs.ticks import Interval, before, jittered, period

NOW = 1_800_000_000.0


def test_an_interval_does_not_depend_on_who_asks_or_when_it_began() -> None:
    tick = Interval(300, "billing/charges").after(NOW)
    assert tick is not None and NOW < tick <= NOW + 300
    assert Interval(300, "billing/charges").after(tick - 0.001) == tick
    assert Interval(300, "billing/charges").until(tick + 299.999) == tick


def test_schedules_of_one_interval_tick_at_different_times() -> None:
    ticks = {Interval(3600, f"billing/{n}").after(NOW) for n in range(100)}
    assert len(ticks) == 100


@given(
    every=st.integers(10, 10**9).map(lambda ms: ms / 1000),
    since=st.integers(0, 4 * 10**12).map(lambda ms: ms / 1000),
    steps=st.integers(1, 50),
)
def test_ticks_of_an_interval_only_grow_and_are_counted(every: float, since: float, steps: int) -> None:
    timing = Interval(every, "a")
    tick = since
    for _ in range(steps):
        following = timing.after(tick)
        assert following is not None and following > tick
        assert timing.until(following) == following
        assert before(timing, following) == timing.until(tick)
        tick = following
    assert timing.count(since, tick) == steps
    assert timing.count(tick, since) == 0
    assert abs(period(timing, tick) - every) < 1e-6


@given(jitter=st.floats(0, 1000), n=st.integers(0, 1000))
def test_jitter_is_the_same_for_all_and_never_reaches_the_next_tick(jitter: float, n: int) -> None:
    timing = Interval(60, "a")
    tick = timing.until(NOW + 60 * n)
    assert tick is not None
    begin = jittered(timing, "a", tick, jitter)
    assert begin == jittered(Interval(60, "a"), "a", tick, jitter)
    assert tick <= begin <= tick + min(jitter, 30)


def test_jitter_spreads_schedules_and_the_ticks_of_one() -> None:
    cron = Cron("0 6 * * *")
    tick = cron.after(NOW)
    assert tick is not None
    assert len({jittered(cron, f"a/{n}", tick, 600) for n in range(50)}) == 50
    assert len({jittered(cron, "a", tick + 86_400 * n, 600) for n in range(50)}) == 50
