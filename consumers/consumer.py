"""consume → write → commit.

A batch is read from the log and written to the store in one transaction with the offsets that it stands for; only then
are they committed to the log. So after a crash at any instruction the store says where to go on, and what is written a
second time is a row that exists already. While the store writes one batch the next one is read.

A bad record goes to the dead-letter topic. An outage is no bad record: then the consumer waits, and stays a member.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from consumers.deadletter import Bad, bury, isolate
from consumers.store import EventStore, Written
from ingest import metrics
from ingest.errors import BadRecord, LogUnavailable, StoreUnavailable, Superseded
from ingest.event import Event, decode
from ingest.eventlog import Batch, Publisher, Subscription
from ingest.retry import backoff

log = structlog.get_logger()

RETRY_BASE = 0.2  # seconds
RETRY_CAP = 10.0  # seconds
LAG_EVERY = 1.0  # seconds between updates of the lag metric
LOOK_EVERY = 10.0  # seconds between looks at where the store stands, while all that was written is confirmed


@dataclass
class Tally:
    """What a consumer did to one topic since it started."""

    topic: str
    group: str
    changed: Callable[["Tally"], None] = lambda tally: None
    blocked: str | None = None  # what the log or the store last failed with; None: it answers
    failed: str | None = None  # what a person must mend before this topic goes on
    batches: int = 0
    inserted: int = 0
    duplicates: int = 0
    dead_letters: int = 0

    def blocked_by(self, reason: str | None) -> None:
        if reason != self.blocked:
            self.blocked = reason
            self.changed(self)


class Finish(NamedTuple):
    """Where to stop: `ends` is partition → offset, `reached` asks the store whether it stands there."""

    ends: Mapping[int, int]
    reached: Callable[[], Awaitable[bool]]


class Consumer:
    """One consumer on one topic. `publisher`: for dead letters."""

    def __init__(
        self, name: str, subscription: Subscription, store: EventStore, publisher: Publisher, tally: Tally
    ) -> None:
        self._name, self._subscription, self._store, self._publisher = name, subscription, store, publisher
        self._tally = tally
        self._labels = (tally.topic, tally.group)
        self._lag_shown = 0.0
        self._done: dict[int, int] = {}  # partition → next offset, as far as we wrote it
        self._look_at = 0.0  # time.monotonic(), when to ask whether the store still says so

    async def run(self, stop: asyncio.Event, finish: "Finish | None" = None) -> None:
        """Until `stop` is set, or there is nothing left to do before `finish` (None: for ever).

        Raises ConfigError when a person must act, LogUnavailable, and Superseded when the topic has another consumer
        on SQLite."""
        reading = asyncio.create_task(self._subscription.next_batch())
        try:
            while not stop.is_set():
                batch = await reading
                if batch.records:
                    self._tally.blocked_by(None)
                self._show_lag()
                reading = asyncio.create_task(self._subscription.next_batch())
                if batch.lost:
                    continue
                if (batch.spans and not await self._handle(batch, stop)) or await self._fell_back():
                    await asyncio.wait([reading])  # what was read ahead is to be read again
                    await self._rewind(stop)
                    reading = asyncio.create_task(self._subscription.next_batch())
                if finish is not None and await self._finished(finish, ask=not batch.spans):
                    return
        finally:
            await asyncio.wait([reading])  # aiokafka's fetch must not be cancelled; it ends by itself
            if not reading.cancelled():
                reading.exception()

    async def _handle(self, batch: Batch, stop: asyncio.Event) -> bool:
        """write → commit. False: the store stands elsewhere, or we were stopped; none of the batch's offsets moved."""
        events, bad = _decoded(batch)
        started = time.monotonic()
        attempt = 0
        while not batch.lost and not stop.is_set():
            attempt += 1
            try:
                written, buried = await self._write(batch, events, bad)
            except (StoreUnavailable, LogUnavailable) as exc:
                await self._wait(attempt, exc)
            except Superseded as exc:
                metrics.consumed.labels(*self._labels, "stale").inc(len(batch.records))
                log.info("batch dropped: the store stands elsewhere", group=self._tally.group, reason=str(exc))
                return False
            else:
                metrics.paused.labels(*self._labels).set(0)
                self._tally.blocked_by(None)
                await self._subscription.commit(batch)
                self._done.update({span.partition: span.end for span in batch.spans})
                self._count(batch, written, buried, time.monotonic() - started)
                return True
        return False

    async def _write(self, batch: Batch, events: Sequence[Event], bad: Sequence[Bad]) -> tuple[Written, int]:
        """Rows and offsets in one transaction; where a record is bad: rows, then dead letters, then offsets."""
        try:
            if not bad:
                return await self._store.write(self._name, events, batch.spans), 0
        except BadRecord:
            pass  # which one, `isolate` finds out
        written, isolated = await isolate(events, lambda some: self._store.write(self._name, some, ()))
        records = {(record.partition, record.offset): record for record in batch.records}
        buried = [*bad, *(Bad(records[event.partition, event.offset], error) for event, error in isolated)]
        await bury(self._publisher, self._tally.topic, self._name, self._tally.group, buried)
        await self._store.write(self._name, (), batch.spans)
        return written, len(buried)

    async def _wait(self, attempt: int, exc: Exception) -> None:
        """An outage: nothing is lost, nothing moves, and the group still knows us."""
        metrics.paused.labels(*self._labels).set(1)
        self._tally.blocked_by(str(exc))
        self._look_at = 0.0  # another server may answer next
        log.warning("paused: cannot write yet", group=self._tally.group, attempt=attempt, error=str(exc))
        await self._subscription.idle(backoff(attempt, RETRY_BASE, RETRY_CAP))

    async def _rewind(self, stop: asyncio.Event) -> None:
        attempt = 0
        while not stop.is_set():
            attempt += 1
            try:
                return await self._subscription.rewind()
            except StoreUnavailable as exc:
                await self._wait(attempt, exc)
        return None

    async def _fell_back(self) -> bool:
        """Whether the store stands before what it had confirmed to us: it lost its last transactions, in a failover or
        to a backup. Rows are missing then, and no write would say so where nothing more comes."""
        if not self._done or time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_EVERY
        try:
            stored = await self._store.offsets(self._name, self._tally.topic)
        except StoreUnavailable as exc:
            self._tally.blocked_by(str(exc))
            log.warning("the store does not answer", group=self._tally.group, error=str(exc))
            return False
        self._tally.blocked_by(None)
        lost = {partition: end for partition, end in self._done.items() if stored.get(partition, 0) < end}
        if lost:
            log.warning("the store fell back: reading again", group=self._tally.group, had=lost, has=dict(stored))
            self._done.clear()
        return bool(lost)

    async def _finished(self, finish: "Finish", *, ask: bool) -> bool:
        """The store knows: other members of the group may have done the rest, and what we did may be lost. `ask`: also
        where that is not done by us."""
        own = all(self._done.get(partition, 0) >= end for partition, end in finish.ends.items())
        if own:
            self._look_at = 0.0  # should it say no
        return (own or ask) and await finish.reached()

    def _count(self, batch: Batch, written: Written, buried: int, seconds: float) -> None:
        tally, labels, now = self._tally, self._labels, time.time()
        tally.batches += 1
        tally.inserted += written.inserted
        tally.duplicates += written.duplicates
        tally.dead_letters += buried
        counts = {"inserted": written.inserted, "duplicate": written.duplicates, "dead_lettered": buried}
        for outcome, count in counts.items():
            if count:
                metrics.consumed.labels(*labels, outcome).inc(count)
        metrics.batch_records.labels(*labels).observe(len(batch.records))
        metrics.write_seconds.labels(*labels, "ok").observe(seconds)
        metrics.progressed.labels(*labels).set(now)
        if batch.records:
            oldest = min(record.timestamp for record in batch.records)
            metrics.record_to_row.labels(*labels).observe(max(0.0, now - oldest / 1000))
        tally.changed(tally)

    def _show_lag(self) -> None:
        if time.monotonic() - self._lag_shown < LAG_EVERY:
            return
        self._lag_shown = time.monotonic()
        for partition, behind in self._subscription.lag().items():
            metrics.lag.labels(self._tally.group, self._tally.topic, str(partition)).set(behind)


def _decoded(batch: Batch) -> tuple[list[Event], list[Bad]]:
    events: list[Event] = []
    bad: list[Bad] = []
    for record in batch.records:
        try:
            events.append(decode(record))
        except BadRecord as exc:
            bad.append(Bad(record, exc))
    return events, bad
