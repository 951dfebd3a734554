"""The schedules of a configuration: when each ticks, and what job a tick makes."""

from collections.abc import Iterator, Mapping
from datetime import UTC

import orjson

from checkpoints.jobs import NewJob, Overlap
from ingest.config.model import Scheduled, Source, Task
from ingest.config.schema import spell
from ingest.config.values import SECONDS
from ingest.jobs.cron import Cron
from ingest.jobs.firing import Plan, Policy
from ingest.jobs.kinds import SYNC, SYNC_QUEUE, TASK, task_job
from ingest.jobs.ticks import Interval, Timing


def plan(id: str, part: Scheduled, job: NewJob) -> Plan:
    """What `part` says of when; `job` is what a tick makes."""
    policy = Policy(part.catch_up, part.catch_up_window, part.max_catch_up, part.jitter, Overlap(part.overlap))
    return Plan(id, spec(part), timing(id, part), job, policy, at_once=part.cron is None)


def of_stream(source: str, stream: str, part: Scheduled) -> Plan:
    """Its id is `source/stream`."""
    payload = orjson.dumps({"stream": stream})
    job = NewJob(kind=SYNC, source=source, queue=SYNC_QUEUE, payload=payload, max_attempts=part.attempts)
    return plan(f"{source}/{stream}", part, job)


def of_sources(sources: Mapping[str, Source]) -> Iterator[Plan]:
    """Those of all streams that have ticks; one that is polled more often than that stands by instead."""
    for name, source in sources.items():
        for stream, part in source.streams.items():
            if not part.standing:
                yield of_stream(name, stream, part)


def of_tasks(tasks: Mapping[str, Task]) -> Iterator[Plan]:
    """Those of all tasks that are not only called when somebody enqueues them. An id is `task:NAME`."""
    for name, part in tasks.items():
        if part.timed:
            yield plan(f"{TASK}{name}", part, task_job(name, part.attempts))


def timing(id: str, part: Scheduled) -> Timing:
    if part.interval is not None:
        return Interval(part.interval, id)
    assert part.cron is not None
    return Cron(part.cron, part.timezone or UTC, part.dst.gap, part.dst.fold)


def spec(part: Scheduled) -> str:
    """How it is written, for people; all that decides when it ticks is in it."""
    if part.interval is not None:
        return f"every {spell(part.interval, SECONDS)}"
    zone = f" {part.timezone}" if part.timezone else " UTC"
    dst = "" if part.dst == type(part.dst)() else f" (dst: {part.dst.gap}, {part.dst.fold})"
    return f"{part.cron}{zone}{dst}"
