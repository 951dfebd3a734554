"""What people see of schedules: when each fires next."""

from collections.abc import Iterator

from ingest.config.model import Config
from ingest.jobs.plans import of_sources, of_tasks
from ingest.jobs.preview import Coming, coming, overlapping, remarks

NEXT = 5  # runs of each schedule


def schedules(config: Config, now: float) -> Iterator[str]:
    """The next runs of everything that has ticks, one line each, and below it what is not obvious."""
    plans = [*of_sources(config.sources), *of_tasks(config.tasks)]
    width = max((len(f"{plan.id}  {plan.spec}") for plan in plans), default=0)
    for plan in plans:
        found = coming(plan, now, NEXT)
        name = f"{plan.id}  {plan.spec}"
        yield f"  {name:<{width}}  next: {_runs(found)}"
        for note in (*remarks(plan, now), *filter(None, [overlapping(plan)])):
            yield f"      {note}"


def _runs(found: list[Coming]) -> str:
    """Each with the day where that changes, and the zone at the end."""
    shown, before = [], ("", "")
    for one in found:
        weekday, day, time, zone = one.local.split(" ", 3)
        short = time.removesuffix(":00")
        text = short if (day, zone) == before else f"{weekday} {day} {short} {zone}"
        shown.append(f"{text} ({one.remark})" if one.remark else text)
        before = (day, zone)
    return ", ".join(shown) or "never"
