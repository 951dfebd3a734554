"""Runs the streams of a source: each under its own lease, once or again and again.

claim the lease and the cursor → poll → release. The lease is given back only when no page is in flight: the next holder
takes a lease that was not given back as a sign that the last page may be in the log already.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from checkpoints import Checkpoints, Claim, Leases, StreamId, stream_lease
from checkpoints.keeping import LEASE_TTL, keep
from ingest import deadletter
from ingest.errors import Permanent, StoreUnavailable, Superseded, Transient
from ingest.eventlog import Publisher
from ingest.poller import Poller, Target
from ingest.report import Outcome, Report
from ingest.retry import backoff
from ingest.sources import Source
from ingest.sources.cursor import describe

log = structlog.get_logger()

CLAIM_EVERY = 0.5  # seconds between tries while someone else holds the lease
FAILED_BASE, FAILED_CAP = 1.0, 300.0  # seconds until a stream that failed is tried again, where `every` is shorter


@dataclass(frozen=True)
class Stream:
    """One stream, ready to run. `every`: seconds from the end of one run to the start of the next."""

    target: Target
    source: Source
    every: float

    @property
    def topics(self) -> tuple[str, str]:
        return self.target.topic, deadletter.topic_for(self.target.topic, deadletter.SOURCE)


@dataclass(frozen=True)
class Runner:
    """`log_name`: the log's identity. `lease_ttl`: seconds that a stream stays ours without a sign of life, and that
    `once` waits for another's."""

    publisher: Publisher
    checkpoints: Checkpoints
    leases: Leases
    holder: str
    log_name: str
    changed: Callable[[Report], None] = lambda report: None
    lease_ttl: float = LEASE_TTL

    async def once(self, streams: Sequence[Stream], stop: asyncio.Event) -> list[Report]:
        """Every stream once, side by side; a held lease is waited for, up to its time-to-live."""
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._run(stream, stop, patience=self.lease_ttl)) for stream in streams]
        return [task.result() for task in running]

    async def forever(self, streams: Sequence[Stream], stop: asyncio.Event) -> list[Report]:
        """Until `stop`; returns the last report of each stream."""
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._again_and_again(stream, stop)) for stream in streams]
        return [task.result() for task in running]

    async def _again_and_again(self, stream: Stream, stop: asyncio.Event) -> Report:
        failures = 0
        while True:
            report = await self._run(stream, stop, patience=0.0)
            failures = 0 if report.outcome in (Outcome.COMPLETE, Outcome.SUPERSEDED) else failures + 1
            own = backoff(failures, FAILED_BASE, FAILED_CAP) if failures else 0.0
            if await _stopped(stop, max(stream.every, own, report.retry_after or 0.0)):
                return report

    async def _run(self, stream: Stream, stop: asyncio.Event, *, patience: float) -> Report:
        report = Report(stream.target.stream, self.changed)
        try:
            await self._claimed_run(stream, report, stop, patience)
        except Transient as exc:
            report.retry_after = exc.retry_after
            report.end(Outcome.UNAVAILABLE, str(exc))
        except Permanent as exc:
            report.end(Outcome.FAILED, str(exc))
        except Superseded as exc:
            report.end(Outcome.SUPERSEDED, str(exc))
        return report

    async def _claimed_run(self, stream: Stream, report: Report, stop: asyncio.Event, patience: float) -> None:
        asked_at, claim = await self._claim(stream.target.stream, stop, patience)
        if claim is None and stop.is_set():
            report.end(Outcome.INCOMPLETE, "stopped by a signal")
            return
        if claim is None:
            holder = await self.leases.holder(stream_lease(stream.target.stream))
            report.end(Outcome.UNAVAILABLE, f"another poller holds the stream: {holder or 'it has just ended'}")
            return
        report.cursor_from = report.cursor_to = describe(claim.cursor)
        poller = Poller(
            stream.target, claim, stream.source, self.publisher, self.checkpoints, self.log_name, report
        )
        async with keep(self.leases, claim.lease, self.lease_ttl, asked_at=asked_at):
            try:
                await poller.run(stop)
            finally:
                if not poller.in_flight:
                    with suppress(StoreUnavailable):  # then it ends by itself
                        await self.leases.release(claim.lease)

    async def _claim(self, stream: StreamId, stop: asyncio.Event, patience: float) -> tuple[float, Claim | None]:
        """The claim, and `time.monotonic()` from before it was asked for."""
        deadline = time.monotonic() + patience
        while True:
            asked_at = time.monotonic()
            claim = await self.checkpoints.claim(stream, self.holder, self.lease_ttl)
            if claim is not None or asked_at >= deadline or await _stopped(stop, CLAIM_EVERY):
                return asked_at, claim


async def _stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Wait; true as soon as `stop` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return stop.is_set()
    return True
