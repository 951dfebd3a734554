"""Jobs that wait for a person, or for a worker that does not come. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checkpoints.jobs import JOB_TTL
from checkpoints.jobs.desk import SourceSummary, Summary, WorkerRow
from ingest.doctor import Finding, act, good, note

LONG = 900.0  # seconds that a ready job may wait before somebody should look
SLOW = 120.0  # seconds by which a tick may be late


class Ticking(NamedTuple):
    """A schedule that is not paused. `late`: for so many seconds its last tick is undecided; None: nobody knows."""

    id: str
    kind: str
    source: str
    late: float | None = None


def examine(summary: Summary, workers: Sequence[WorkerRow], schedules: Sequence[Ticking]) -> list[Finding]:
    alive = [worker for worker in workers if worker.silent <= JOB_TTL]
    found = [finding for one in summary.sources for finding in _source(one, summary.now, alive)]
    found += _schedules(schedules, alive)
    counts = f"{len(alive)} workers, {sum(one.running for one in summary.sources):,} jobs running"
    return [good("jobs", counts), *found]


def _source(one: SourceSummary, now: float, alive: Sequence[WorkerRow]) -> Iterator[Finding]:
    about = f"source {one.source}"
    if one.dead:
        todo = f"`ingest jobs list --state dead --source {one.source}`; then `jobs requeue`, or `jobs cancel`"
        yield act(about, f"dead jobs: {one.dead:,}", todo)
    if one.expired:
        yield note(about, f"jobs whose worker gives no sign of life: {one.expired:,}; the others take them back")
    waits = 0.0 if one.oldest_ready_at is None else now - one.oldest_ready_at
    if one.paused_until is not None:
        todo = f"`ingest source resume {one.source}`"
        yield note(about, f"paused{f': {one.pause_note}' if one.pause_note else ''}", todo)
    elif waits > LONG:
        takers = [worker for worker in alive if not worker.sources or one.source in worker.sources]
        todo = "more workers, or a higher `concurrency`" if takers else "start one: `ingest run`, or `ingest worker`"
        yield act(about, f"a job has been ready for {waits / 60:.0f} min; {len(takers)} workers take it", todo)


def _schedules(schedules: Sequence[Ticking], alive: Sequence[WorkerRow]) -> Iterator[Finding]:
    lonely = [one.id for one in schedules if not any(_takes(worker, one) for worker in alive)]
    late = [one.id for one in schedules if one.late is not None and one.late > SLOW and one.id not in lonely]
    if lonely:
        shown = ", ".join(lonely[:5]) + (f" and {len(lonely) - 5} more" if len(lonely) > 5 else "")
        todo = "start `ingest run` or `ingest worker`, or pause them: `ingest schedules pause`"
        yield act("schedules", f"no worker takes what these make: {shown}", todo)
    for id in late:
        yield act(f"schedule {id}", "its ticks are not decided", f"`ingest schedules why {id}`")


def _takes(worker: WorkerRow, one: Ticking) -> bool:
    kinds = not worker.kinds or one.kind in worker.kinds
    return kinds and (not worker.sources or one.source in worker.sources)
