"""Runs the streams of a source: each under its own lease, once or again and again.

claim the lease and the cursor → poll → release. The lease is given back only when no page is in flight: the next holder
takes a lease that was not given back as a sign that the last page may be in the log already.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from checkpoints import Checkpoints, Claim, Leases, StreamId, stream_lease
from checkpoints.keeping import LEASE_TTL, keep
from ingest import deadletter
from ingest.changes import Changes
from ingest.errors import BadRecord, ConfigError, Permanent, StoreUnavailable, Superseded, Transient
from ingest.eventlog import Locate, Publisher
from ingest.poller import Poller, Target
from ingest.report import Outcome, Report
from ingest.retry import backoff
from ingest.sources import Source
from ingest.sources.cursor import describe

log = structlog.get_logger()

CLAIM_EVERY = 0.5  # seconds between tries while someone else holds the lease
FAILED_BASE, FAILED_CAP = 1.0, 60.0  # seconds until a stream that failed is tried again, where `every` is shorter
DATABASE_CAP = 30.0  # seconds at most between tries to claim a stream while the database does not answer


@dataclass(frozen=True)
class Stream:
    """One stream, ready to run. `every`: seconds from the end of one run to the start of the next. `once`: a complete
    run is the last one, of which only the history keeps the cursor, with this note."""

    target: Target
    source: Source
    every: float
    changes: Changes = field(default_factory=Changes)
    once: str | None = None

    @property
    def topics(self) -> tuple[str, str]:
        return self.target.topic, deadletter.topic_for(self.target.topic, deadletter.SOURCE)


@dataclass(frozen=True)
class Runner:
    """`locate` names a topic of the log. `lease_ttl`: seconds that a stream stays ours without a sign of life, and that
    `once` waits for another's."""

    publisher: Publisher
    checkpoints: Checkpoints
    leases: Leases
    holder: str
    locate: Locate
    changed: Callable[[Report], None] = lambda report: None
    lease_ttl: float = LEASE_TTL
    latest: dict[StreamId, Report] = field(default_factory=dict)  # the run under way or the last one, by `kept_as`

    async def once(self, streams: Sequence[Stream], stop: asyncio.Event) -> list[Report]:
        """Every stream once, side by side; a held lease is waited for, up to its time-to-live."""
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(self._once(stream, stop))
        return [self.latest[stream.target.kept_as] for stream in streams]

    async def forever(self, streams: Sequence[Stream], stop: asyncio.Event) -> list[Report]:
        """Until `stop`; returns the last report of each stream. Who holds a stream keeps it, others stand by."""
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(self._forever(stream, stop))
        return list(self.latest.values())  # none of a stream that was stopped before it began

    async def take(
        self, stream: Stream, stop: asyncio.Event, changed: Callable[[Report], None] = lambda report: None
    ) -> Report | None:
        """The stream once, if nobody else has it; None: someone has. `changed` hears of this run, beside the other.

        Raises StoreUnavailable where that cannot be found out."""

        def both(report: Report) -> None:
            self.changed(report)
            changed(report)

        asked_at = time.monotonic()
        claim = await self.checkpoints.claim(stream.target.kept_as, self.holder, self.lease_ttl)
        if claim is None:
            return None
        report = self._begin(stream, both)
        try:
            async with keep(self.leases, claim.lease, self.lease_ttl, asked_at=asked_at):
                await self._release(await self._poll(stream, claim, report, stop))
        except Superseded as exc:
            report.error = exc
            report.superseded(str(exc))
        if stream.once is not None:
            del self.latest[stream.target.kept_as]  # there may be any number of those
        return report

    async def _once(self, stream: Stream, stop: asyncio.Event) -> None:
        report = self._begin(stream)
        name = stream_lease(stream.target.kept_as)
        try:
            asked_at, claim = await self._claim(stream.target.kept_as, stop, self.lease_ttl)
            if claim is None and stop.is_set():
                report.end(Outcome.INCOMPLETE, "stopped by a signal")
            elif claim is None:
                holder = await self.leases.holder(name) or "it has just ended"
                report.end(Outcome.UNAVAILABLE, f"another poller holds the stream: {holder}")
            else:
                async with keep(self.leases, claim.lease, self.lease_ttl, asked_at=asked_at):
                    await self._release(await self._poll(stream, claim, report, stop))
        except Transient as exc:
            report.end(Outcome.UNAVAILABLE, str(exc))
        except Superseded as exc:
            report.end(Outcome.SUPERSEDED, str(exc))

    async def _forever(self, stream: Stream, stop: asyncio.Event) -> None:
        """Stand by until the stream is free, then poll it under one lease until that is lost or `stop` is set."""
        failures = 0
        while not stop.is_set():
            standing_by = self._begin(stream)
            try:
                asked_at, claim = await self._claim(stream.target.kept_as, stop, math.inf)
                if claim is not None:
                    failures = 0
                    async with keep(self.leases, claim.lease, self.lease_ttl, asked_at=asked_at):
                        await self._release(await self._again_and_again(stream, claim, stop))
            except Superseded as exc:
                self.latest[stream.target.kept_as].superseded(str(exc))
            except (Transient, ConfigError) as exc:  # what a person must mend in the database does not end the others
                failures += 1
                standing_by.blocked_by(str(exc))
                level = log.warning if isinstance(exc, Transient) else log.error
                level("cannot claim the stream yet", stream=str(stream.target.kept_as), error=str(exc))
                await _stopped(stop, backoff(failures, FAILED_BASE, DATABASE_CAP))

    async def _again_and_again(self, stream: Stream, claim: Claim, stop: asyncio.Event) -> Claim:
        failures = 0
        while True:
            report = self._begin(stream)
            claim = await self._poll(stream, claim, report, stop)
            failures = 0 if report.outcome is Outcome.COMPLETE else failures + 1
            own = backoff(failures, FAILED_BASE, FAILED_CAP) if failures else 0.0
            if await _stopped(stop, max(stream.every, own, report.retry_after or 0.0)):
                return claim

    def _begin(self, stream: Stream, changed: Callable[[Report], None] | None = None) -> Report:
        report = self.latest[stream.target.kept_as] = Report(stream.target.kept_as, changed or self.changed)
        return report

    async def _poll(self, stream: Stream, claim: Claim, report: Report, stop: asyncio.Event) -> Claim:
        """One run under a claim that is being kept; returns the claim as it stands after it."""
        report.cursor_from = report.cursor_to = describe(claim.cursor)
        poller = Poller(
            stream.target, claim, stream.source, self.publisher, self.checkpoints, self.locate, report, stream.changes
        )
        try:
            await poller.run(stop)
            if stream.once is not None and report.outcome is Outcome.COMPLETE:
                await self.checkpoints.forget(claim, stream.once)
        except Transient as exc:
            report.retry_after, report.error = exc.retry_after, exc
            report.end(Outcome.UNAVAILABLE, str(exc))
        except (Permanent, ConfigError, BadRecord) as exc:
            report.error = exc
            report.end(Outcome.FAILED, str(exc))
        return poller.next_claim()

    async def _release(self, claim: Claim) -> None:
        if claim.lease.clean:
            with suppress(StoreUnavailable):  # then it ends by itself
                await self.leases.release(claim.lease)

    async def _claim(self, stream: StreamId, stop: asyncio.Event, patience: float) -> tuple[float, Claim | None]:
        """The claim, and `time.monotonic()` from before it was asked for. None: still held, or `stop`."""
        deadline = time.monotonic() + patience
        waiting = False
        while True:
            asked_at = time.monotonic()
            claim = await self.checkpoints.claim(stream, self.holder, self.lease_ttl)
            if claim is not None or asked_at >= deadline:
                return asked_at, claim
            if not waiting:
                log.info("standing by", stream=str(stream), held_by=await self.leases.holder(stream_lease(stream)))
                waiting = True
            if await _stopped(stop, CLAIM_EVERY):
                return asked_at, None


async def _stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Wait; true as soon as `stop` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return stop.is_set()
    return True
