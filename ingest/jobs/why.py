"""Why a schedule did not fire, or when it will: all that may be in the way, what counts most first. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from checkpoints.jobs import JOB_TTL, NEVER, Overlap, Schedule, State, Tick
from checkpoints.jobs.desk import FOREVER, Row, SourceSummary, WorkerRow
from ingest.jobs.firing import Plan
from ingest.jobs.ticks import jittered

LATE = 10.0  # seconds by which a tick may be undecided before that is odd
SKEW = 2.0  # seconds

Shown = Callable[[float], str]
"""A moment, for people."""


class Known(NamedTuple):
    """What there is to know of one schedule. `ours`: our clock when `schedule.now` was read."""

    plan: Plan | None  # None: it is not configured
    schedule: Schedule | None  # None: no process has declared it
    ours: float
    source: SourceSummary | None
    workers: Sequence[WorkerRow]
    running: Row | None = None  # the live job that a tick would find
    last: Row | None = None  # its newest job


def takes(worker: WorkerRow, kind: str, source: str) -> bool:
    """Whether it is alive and would take such a job."""
    fits = (not worker.kinds or kind in worker.kinds) and (not worker.sources or source in worker.sources)
    return fits and worker.silent <= JOB_TTL


def late(plan: Plan, schedule: Schedule) -> float | None:
    """For how many seconds a tick has waited for somebody to decide it; None: none has, or nobody may."""
    latest = plan.timing.until(schedule.now)
    if schedule.paused or schedule.cursor_at == NEVER or latest is None:
        return None
    since = max(schedule.cursor_at, schedule.resumed_at or 0.0)
    return None if latest <= since else schedule.now - latest


def reasons(known: Known, shown: Shown) -> Iterator[str]:
    plan, schedule = known.plan, known.schedule
    if schedule is None:
        yield "no process has declared it yet: it begins when `ingest run` does"
        return
    yield f"it ticks {schedule.spec}"
    if plan is None:
        yield "it is not in this configuration"
    elif plan.declared.digest != schedule.digest:
        yield f"here it is configured otherwise ({plan.spec}): restart what schedules it, with this file"
    if schedule.paused:
        yield f"it is paused: {schedule.note or 'without a note'}; `ingest schedules resume {schedule.id}`"
    yield from _cursor(known, schedule, shown)
    if known.running is not None:
        yield from _running(plan, known.running, schedule.now, shown)
    yield from _source(known, shown)
    if known.last is not None and known.last.state is State.DEAD:
        said = f"its job {known.last.id} is dead ({known.last.dead_reason}): {known.last.last_error_class}"
        yield f"{said}; `ingest jobs show {known.last.id}`"


def _cursor(known: Known, schedule: Schedule, shown: Shown) -> Iterator[str]:
    skew = schedule.now - known.ours
    if abs(skew) > SKEW:
        where = "ahead of" if skew > 0 else "behind"
        yield f"the database's clock, by which it goes, is {abs(skew):.0f} s {where} that of this machine"
    if schedule.cursor_at == NEVER:
        yield "it is new, and fires as soon as a process schedules it"
    elif schedule.cursor_at > schedule.now + LATE:
        until = shown(schedule.cursor_at)
        yield f"the database's clock was set back: nothing fires before {until}; resume it to begin now"
    else:
        yield f"its ticks are decided up to {shown(schedule.cursor_at)}"
    if known.plan is None or schedule.paused or known.plan.declared.digest != schedule.digest:
        return
    waits = late(known.plan, schedule)
    if waits is not None and waits > LATE:
        yield f"a tick has waited for {waits:.0f} s: no process schedules it; start `ingest run`"
    following = known.plan.timing.after(max(schedule.now, schedule.cursor_at))
    if following is None:
        yield "it never ticks again"
    else:
        begins = jittered(known.plan.timing, known.plan.id, following, known.plan.policy.jitter)
        jitter = f", and its job begins at {shown(begins)}" if begins != following else ""
        yield f"the next tick is at {shown(following)}{jitter}"


def _running(plan: Plan | None, job: Row, now: float, shown: Shown) -> Iterator[str]:
    if job.state is State.RUNNING:
        doing = f"running at {job.worker} since {shown(job.claimed_at or job.run_at)}"
    elif job.attempts:
        doing = f"waiting for another try at {shown(job.run_at)}, after {job.last_error_class}"
    else:
        doing = f"waiting {'for' if job.run_at > now else 'since'} {shown(job.run_at)}"
    what = f"job {job.id} (attempt {job.attempts} of {job.max_attempts}) is {doing}"
    policy = Overlap.ALLOW if plan is None else plan.policy.overlap
    yield f"{what}: a tick meanwhile is {MEANWHILE[policy]} (overlap: {policy})"


MEANWHILE = {
    Overlap.SKIP: "skipped",
    Overlap.QUEUE_ONE: "kept waiting, one at most",
    Overlap.ALLOW: "run beside it",
    Overlap.CANCEL_PREVIOUS: "run in its place",
}


def _source(known: Known, shown: Shown) -> Iterator[str]:
    source = known.source
    if source is not None and source.paused_until is not None:
        until = "until it is resumed" if source.paused_until == FOREVER else f"until {shown(source.paused_until)}"
        yield f"none of the jobs of {source.source} begins {until}: {source.pause_note or 'paused'}"
    if source is not None and source.limit is not None and source.running >= source.limit:
        yield f"{source.running} jobs of {source.source} run, and no more may: `source limit`, or `concurrency`"
    plan = known.plan
    if plan is None:
        return
    takers = sum(takes(worker, plan.job.kind, plan.job.source) for worker in known.workers)
    if not takers:
        yield f"no living worker takes {plan.job.kind} of {plan.job.source}: start `ingest run`, or `ingest worker`"


def decided(ticks: Sequence[Tick], at: float, plan: Plan | None, shown: Shown) -> str:
    """What became of the tick at a moment, or of the last one before it. `ticks`: newest first."""
    for tick in ticks:
        first = tick.tick_at if tick.covers == 1 or plan is None else _first(plan, tick)
        if tick.tick_at <= at or first <= at:
            covers = f", one of {tick.covers}" if tick.covers > 1 else ""
            job = f", job {tick.job}" if tick.job is not None else ""
            note = f": {tick.note}" if tick.note else ""
            when = f"the tick of {shown(tick.tick_at)}{covers}"
            late = max(0.0, tick.decided_at - tick.tick_at)
            return f"{when} is {tick.outcome}{job}{note} (by {tick.decided_by}, {late:.1f} s late)"
    return f"no tick of {shown(at)} or before is remembered"


def _first(plan: Plan, tick: Tick) -> float:
    """Of a range that ends with `tick`."""
    first = tick.tick_at
    for _ in range(min(tick.covers, 1_000) - 1):
        first = plan.timing.until(first - 0.001) or first
    return first
