"""When a schedule fires next, for people, and what it does on the days on which clocks are set."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, tzinfo
from typing import NamedTuple

from checkpoints.jobs import Overlap
from ingest.jobs.cron import Cron, days_that_change, joined
from ingest.jobs.firing import Plan
from ingest.jobs.ticks import jittered

YEAR = 360  # days; not so many that the same change comes twice
SHOWN = 3  # times of day in one remark


class Coming(NamedTuple):
    tick_at: float
    begins_at: float  # with its jitter
    local: str  # Wed 2027-03-31 02:30:00 CEST
    remark: str | None  # where the clock is set that day


def coming(plan: Plan, since: float, number: int) -> list[Coming]:
    """The next so many ticks later than `since`."""
    zone = plan.timing.zone if isinstance(plan.timing, Cron) else UTC
    found: list[Coming] = []
    tick = plan.timing.after(since)
    while tick is not None and len(found) < number:
        begins = jittered(plan.timing, plan.id, tick, plan.policy.jitter)
        found.append(Coming(tick, begins, local(tick, zone), _remark(plan, tick)))
        tick = plan.timing.after(tick)
    return found


def remarks(plan: Plan, since: float) -> Iterator[str]:
    """What its writer may not have meant; the days of a year on which its clock is set, where it may fire."""
    if not isinstance(plan.timing, Cron):
        return
    if both := joined(plan.timing.text):
        yield both
    for day in days_that_change(plan.timing, since, YEAR):
        yield from _of_day(plan.timing, day)


def overlapping(plan: Plan) -> str | None:
    """What `catch_up` and `overlap` make of each other."""
    if plan.policy.catch_up != "all" or plan.policy.overlap is Overlap.ALLOW:
        return None
    return f"catch_up: all, but overlap: {plan.policy.overlap}: of what was missed the first one keeps the others out"


def local(moment: float, zone: tzinfo) -> str:
    at = datetime.fromtimestamp(moment, zone)
    return f"{at:%a %Y-%m-%d %H:%M:%S} {at.tzname()}"


def _of_day(cron: Cron, day: int) -> Iterator[str]:
    on = date.fromordinal(day).isoformat()
    if cron.elapsed:
        yield f"{on}: the clock is set; fires {len(cron.moments_of(day))} times, by elapsed time"
        return
    out, twice = cron.odd(day)
    if out:
        moments = cron.moments(out[0])
        what = f"fires at {datetime.fromtimestamp(moments[0], cron.zone):%H:%M %Z}" if moments else "does not fire"
        yield f"{on}: the clock is set forward, {_walls(out)} left out: {what}"
    if twice:
        yield f"{on}: the clock is set back, {_walls(twice)} there twice: fires {_times(cron.fold)}"


def _remark(plan: Plan, tick: float) -> str | None:
    """Why it is at this moment, where that is not obvious."""
    cron = plan.timing
    if not isinstance(cron, Cron) or cron.elapsed:
        return None
    at = datetime.fromtimestamp(tick, cron.zone)
    for day in (at.toordinal(), at.toordinal() - 1):
        out, twice = cron.odd(day)
        if moved := [wall for wall in out if tick in cron.moments(wall)]:
            return f"{_walls(moved)} left out that day"
        if any(tick in cron.moments(wall) for wall in twice):
            return f"the {'second' if at.fold else 'first'} of two"
    return None


def _walls(walls: Sequence[int]) -> str:
    shown = [f"{wall // 3600 % 24:02}:{wall // 60 % 60:02}" for wall in walls[:SHOWN]]
    more = ["…"] if len(walls) > SHOWN else []
    return f"{', '.join(shown + more)} {'is' if len(walls) == 1 else 'are'}"


def _times(fold: str) -> str:
    return "both times" if fold == "both" else f"the {fold} time"
