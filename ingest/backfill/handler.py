"""The handler of a slice's job: the slice is listed once, from its own cursor, under its own lease."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from checkpoints import StreamId
from checkpoints.jobs import Job
from ingest.backfill import Payload, Slice
from ingest.errors import ConfigError
from ingest.jobs.handler import Again, Handler, Progress
from ingest.jobs.syncing import HELD_DELAY, Hold, conclude
from ingest.report import Report
from ingest.run import Runner, Stream

Open = Callable[[StreamId, Slice, str], Awaitable[Stream]]
"""The slice of a stream, ready to run; the text is the note with which its cursor goes to the history. Raises
ConfigError where the stream is not configured, or a reference cannot be resolved."""


def handler(runner: Runner, open_slice: Open, hold: Hold) -> Handler:
    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        payload, note = _payload(job), f"read by the backfill of job {job.id}"
        stream = await open_slice(StreamId(job.source, payload.stream), payload.slice, note)
        history = await runner.checkpoints.history(stream.target.kept_as)
        if any(entry.note == note for entry in history):
            return  # to its end, and only the job's row does not know
        report = await runner.take(stream, stop, lambda report: progress(_shown(report)))
        if report is None:
            raise Again("another process reads the slice", HELD_DELAY)
        await conclude(report, hold)

    return Handler(work)


def _payload(job: Job) -> Payload:
    try:
        return msgspec.json.decode(job.payload, type=Payload)
    except msgspec.MsgspecError as exc:
        raise ConfigError(f"a job of kind {job.kind} names a stream, `from` and `to`: {exc}") from exc


def _shown(report: Report) -> Mapping[str, object]:
    """Of this attempt; `position`: of the slice."""
    return {
        "pages": report.pages,
        "events": report.events,
        "unchanged": report.unchanged,
        "skipped": report.skipped,
        "position": report.cursor_to,
    }
