"""The handler of jobs that run a stream once, under the stream's own lease: that is what fences the cursor."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from checkpoints import StreamId
from checkpoints.jobs import Job
from ingest.errors import ConfigError, Transient
from ingest.jobs.handler import Again, Handler, Progress
from ingest.report import Outcome, Report
from ingest.run import Runner, Stream

HELD_DELAY = 5.0  # seconds until a stream is tried again that someone else polls
LONG_WAIT = 60.0  # seconds: who is asked to wait longer leaves the whole source alone, and no attempt is burned

Open = Callable[[StreamId], Awaitable[Stream]]
"""Raises ConfigError where it is not configured, or a reference cannot be resolved."""


Hold = Callable[[str, float, str], Awaitable[None]]
"""Leaves a source alone for so many seconds, for this reason."""


class _Wanted(msgspec.Struct):
    """The payload."""

    stream: str


def handler(runner: Runner, open_stream: Open, hold: Hold) -> Handler:
    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        stream = await open_stream(StreamId(job.source, _wanted(job)))
        report = await runner.take(stream, stop, lambda report: progress(_shown(report)))
        if report is None:
            raise Again("another process polls the stream", HELD_DELAY)
        await conclude(report, hold)

    return Handler(work)


def _wanted(job: Job) -> str:
    try:
        return msgspec.json.decode(job.payload, type=_Wanted).stream
    except msgspec.MsgspecError as exc:
        raise ConfigError(f"a job of kind {job.kind} names its stream: {exc}") from exc


def _shown(report: Report) -> dict[str, int]:
    return {"pages": report.pages, "events": report.events, "unchanged": report.unchanged}


async def conclude(report: Report, hold: Hold) -> None:
    """Raises what the end of the run means for its job."""
    if isinstance(report.error, Transient) and (wait := report.error.retry_after or 0.0) > LONG_WAIT:
        await hold(report.stream.source, wait, report.reason)
        raise Again(report.reason, wait)
    if report.error is not None:
        raise report.error
    if report.outcome is not Outcome.COMPLETE:  # stopped between two pages
        raise Again(report.reason)
