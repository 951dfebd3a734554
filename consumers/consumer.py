"""consume → write → commit.

A batch is read from the log and written to the store in one transaction with the offsets that it stands for; only then
are they committed to the log. So after a crash at any instruction the store says where to go on, and what is written a
second time is a row that exists already. While the store writes one batch the next one is read.

A bad record goes to the dead-letter topic. An outage is no bad record: then the consumer waits, and stays a member.
`stop` ends every wait at once; only the batch that is being written is finished before.
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
from ingest.event import Event, Record, decode
from ingest.eventlog import UNKNOWN_TOPIC, Batch, Publisher, Span, Subscription
from ingest.retry import backoff

log = structlog.get_logger()

RETRY_BASE = 0.2  # seconds
RETRY_CAP = 10.0  # seconds
PIECE = 500  # records decoded at once
LAG_EVERY = 1.0  # seconds between updates of the lag metric
LOOK_EVERY = 10.0  # seconds between looks at where the store stands, while all that was written is confirmed
ASK_EVERY = 1.0  # seconds between questions whether others have reached the finish, while there is work
NOTHING = Written(0, 0)
OUTCOMES = ("inserted", "duplicate", "dead_lettered", "stale")  # of a record


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
    trimmed: int = 0  # offsets that the log deleted before they were read: lost
    replaced: int = 0  # times that the topic turned out to be deleted and made anew

    def lost(self) -> str:
        """What was never read and is gone, in words; empty: nothing."""
        parts = []
        if self.trimmed:
            parts.append(f"{self.trimmed:,} offsets were deleted by the log before they were read")
        if self.replaced:
            parts.append("the topic was deleted and made anew; what the old one held unread is gone")
        return "; ".join(parts)

    def blocked_by(self, reason: str | None) -> None:
        if reason != self.blocked:
            self.blocked = reason
            self.changed(self)


class Finish(NamedTuple):
    """Where to stop: `ends` is partition → offset, `reached` asks the store whether it stands there."""

    ends: Mapping[int, int]
    reached: Callable[[], Awaitable[bool]]


@dataclass
class _Work:
    """A batch and how far it is done. `letters` None: nobody knows yet which of its events cannot be stored."""

    batch: Batch
    events: list[Event]
    bad: list[Bad]  # could not even be decoded
    spans: Sequence[Span]  # whose offsets did not move yet
    written: Written = NOTHING
    letters: list[Bad] | None = None
    buried: bool = False  # every dead letter is acknowledged


class Consumer:
    """One consumer on one topic. `publisher`: for dead letters."""

    def __init__(
        self, name: str, subscription: Subscription, store: EventStore, publisher: Publisher, tally: Tally
    ) -> None:
        self._name, self._subscription, self._store, self._publisher = name, subscription, store, publisher
        self._tally = tally
        self._labels = (tally.topic, tally.group)
        self._lag_shown = 0.0
        self._lags: frozenset[int] = frozenset()  # partitions whose lag is shown
        self._done: dict[int, int] = {}  # partition → next offset, as far as we wrote it, of the topic with this id
        self._topic_id = UNKNOWN_TOPIC
        self._look_at = 0.0  # time.monotonic(), when to ask whether the store still says so
        self._ask_at = 0.0  # time.monotonic(), when to ask whether the finish is reached
        self._store_away: str | None = None  # why the last look at the store failed
        for outcome in OUTCOMES:
            metrics.consumed.labels(*self._labels, outcome)  # from the start: `increase` does not see a first value

    async def run(self, stop: asyncio.Event, finish: "Finish | None" = None) -> None:
        """Until `stop` is set, or there is nothing left to do before `finish` (None: for ever).

        Raises ConfigError when a person must act, LogUnavailable, and Superseded when the topic has another consumer
        on SQLite."""
        stopping = asyncio.create_task(stop.wait())
        self._reading = asyncio.create_task(self._read())
        try:
            while (work := await self._next(stop, stopping)) is not None:
                self._tell()
                if work.batch.lost:
                    continue
                if not await self._handle(work, stop) or await self._fell_back():
                    await self._begin_again()
                if finish is not None and await self._finished(finish, idle=not work.batch.spans):
                    return
        finally:
            stopping.cancel()
            await _dropped(self._reading)
            metrics.paused.labels(*self._labels).set(0)
            self._forget_partitions()

    async def _next(self, stop: asyncio.Event, stopping: "asyncio.Task[bool]") -> _Work | None:
        """What was read ahead; the batch after it is being read from here on. None: we were told to stop."""
        attempt = 0  # to learn from the store where to begin
        while True:
            await asyncio.wait([self._reading, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                return None
            try:
                work = await self._reading
            except StoreUnavailable as exc:
                attempt += 1
                await self._wait(attempt, exc, stop)
                self._reading = asyncio.create_task(self._read())
            else:
                self._reading = asyncio.create_task(self._read())
                return work

    async def _read(self) -> _Work:
        """The next batch and what it holds; while the store writes the one before."""
        batch = await self._subscription.next_batch()
        return _Work(batch, *await _decoded(batch.records), batch.spans)

    async def _begin_again(self) -> None:
        """What was handed out and read ahead is dropped, and read again from where the store stands."""
        await _dropped(self._reading)
        await self._subscription.rewind()
        self._reading = asyncio.create_task(self._read())

    async def _handle(self, work: _Work, stop: asyncio.Event) -> bool:
        """write → commit. False: the store stands elsewhere, or we were stopped; what is left did not move."""
        batch = work.batch
        if not batch.spans:
            self._count_trimmed(batch)
            return True
        started = time.monotonic()
        attempt = 0
        while not batch.lost and not stop.is_set():
            attempt += 1
            try:
                await self._write(work)
            except (StoreUnavailable, LogUnavailable) as exc:
                await self._wait(attempt, exc, stop)
            except Superseded as exc:
                self._answered()
                metrics.consumed.labels(*self._labels, "stale").inc(len(batch.records))
                log.info("batch dropped: the store stands elsewhere", group=self._tally.group, reason=str(exc))
                return False
            else:
                self._answered()
                await self._subscription.commit(batch)
                self._remember(batch.spans)
                self._count(work, time.monotonic() - started)
                return True
        return False

    async def _write(self, work: _Work) -> None:
        """Rows and offsets in one transaction. Where a record is bad: the rows, the offsets of the partitions without
        one, the dead letters, the rest of the offsets; so the other partitions do not wait for the dead letters. May be
        repeated, and goes on where it failed."""
        if work.letters is None:
            try:
                if not work.bad:
                    work.written = await self._store.write(self._name, work.events, work.spans)
                    return
            except BadRecord:
                pass  # which one, `isolate` finds out
            work.written, isolated = await isolate(work.events, lambda some: self._store.write(self._name, some, ()))
            records = {(record.partition, record.offset): record for record in work.batch.records}
            found = [Bad(records[event.partition, event.offset], error) for event, error in isolated]
            work.letters = [*work.bad, *found]
        waiting = {letter.record.partition for letter in work.letters}
        ready = [span for span in work.spans if span.partition not in waiting]
        if ready:
            await self._store.write(self._name, (), ready)
            work.spans = [span for span in work.spans if span.partition in waiting]
        if not work.buried:
            await bury(self._publisher, self._tally.topic, self._name, self._tally.group, work.letters)
            work.buried = True
        await self._store.write(self._name, (), work.spans)

    async def _wait(self, attempt: int, exc: Exception, stop: asyncio.Event) -> None:
        """An outage: nothing is lost, nothing moves, and the group still knows us. Ends early when `stop` is set."""
        metrics.paused.labels(*self._labels).set(1)
        self._tally.blocked_by(str(exc))
        self._look_at = 0.0  # another server may answer next
        self._show_lag()
        log.warning("paused: cannot write yet", group=self._tally.group, attempt=attempt, error=str(exc))
        waits = [self._subscription.idle(backoff(attempt, RETRY_BASE, RETRY_CAP)), stop.wait()]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _tell(self) -> None:
        """Whether log and store answer, as far as we know, and how far we are behind."""
        trouble = self._subscription.trouble() or self._store_away
        if trouble is not None:
            self._tally.blocked_by(trouble)
        elif self._subscription.settled():
            self._answered()
        self._show_lag()

    def _answered(self) -> None:
        metrics.paused.labels(*self._labels).set(0)
        self._store_away = None
        self._tally.blocked_by(None)

    def _remember(self, spans: Sequence[Span]) -> None:
        for span in spans:
            if span.topic_id != self._topic_id:  # the topic was made anew: its offsets are others
                self._done.clear()
                self._topic_id = span.topic_id
            self._done[span.partition] = span.end

    async def _fell_back(self) -> bool:
        """Whether the store stands before what it had confirmed to us: it lost its last transactions, in a failover or
        to a backup. Rows are missing then, and no write would say so where nothing more comes."""
        if not self._done or time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_EVERY
        try:
            stored = await self._store.offsets(self._name, self._tally.topic, self._topic_id)
        except StoreUnavailable as exc:
            self._store_away = str(exc)
            self._tally.blocked_by(self._store_away)
            log.warning("the store does not answer", group=self._tally.group, error=str(exc))
            return False
        self._store_away = None
        lost = {partition: end for partition, end in self._done.items() if stored.get(partition, 0) < end}
        if lost:
            log.warning("the store fell back: reading again", group=self._tally.group, had=lost, has=dict(stored))
            self._done.clear()
        return bool(lost)

    async def _finished(self, finish: "Finish", *, idle: bool) -> bool:
        """The store knows: others may have done the rest, now or before we came, and what we did may be lost. `idle`:
        nothing was there to read; where there always is, we ask now and then, or a busy topic would have no end."""
        own = all(self._done.get(partition, 0) >= end for partition, end in finish.ends.items())
        if own:
            self._look_at = 0.0  # should it say no
        if not own and not idle and time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + ASK_EVERY
        return await finish.reached()

    def _count(self, work: _Work, seconds: float) -> None:
        tally, labels, now = self._tally, self._labels, time.time()
        written, buried, records = work.written, len(work.letters or ()), work.batch.records
        tally.batches += 1
        tally.inserted += written.inserted
        tally.duplicates += written.duplicates
        tally.dead_letters += buried
        counts = {"inserted": written.inserted, "duplicate": written.duplicates, "dead_lettered": buried}
        for outcome, count in counts.items():
            if count:
                metrics.consumed.labels(*labels, outcome).inc(count)
        metrics.batch_records.labels(*labels).observe(len(records))
        metrics.write_seconds.labels(*labels, "ok").observe(seconds)
        metrics.progressed.labels(*labels).set(now)
        if records:
            oldest = min(record.timestamp for record in records)
            metrics.record_to_row.labels(*labels).observe(max(0.0, now - oldest / 1000))
        self._count_trimmed(work.batch)
        tally.changed(tally)

    def _count_trimmed(self, batch: Batch) -> None:
        metrics.trimmed.labels(*self._labels).inc(batch.trimmed)
        self._tally.trimmed += batch.trimmed

    def _show_lag(self) -> None:
        if time.monotonic() - self._lag_shown < LAG_EVERY:
            return
        self._lag_shown = time.monotonic()
        owned = self._subscription.partitions()
        metrics.assigned.labels(*self._labels).set(len(owned))
        for partition in self._lags - owned:
            metrics.lag.remove(self._tally.group, self._tally.topic, str(partition))
        self._lags &= owned
        for partition, behind in self._subscription.lag().items():
            metrics.lag.labels(self._tally.group, self._tally.topic, str(partition)).set(behind)
            self._lags |= {partition}

    def _forget_partitions(self) -> None:
        metrics.assigned.labels(*self._labels).set(0)
        for partition in self._lags:
            metrics.lag.remove(self._tally.group, self._tally.topic, str(partition))


async def _dropped(reading: "asyncio.Task[_Work]") -> None:
    """Ends at once, and reads nothing: the subscription keeps what it has fetched."""
    reading.cancel()
    await asyncio.wait([reading])
    if not reading.cancelled():
        reading.exception()  # looked at, so that asyncio does not complain of it


async def _decoded(records: Sequence[Record]) -> tuple[list[Event], list[Bad]]:
    events: list[Event] = []
    bad: list[Bad] = []
    for n, record in enumerate(records, 1):
        try:
            events.append(decode(record))
        except BadRecord as exc:
            bad.append(Bad(record, exc))
        if n % PIECE == 0:
            await asyncio.sleep(0)
    return events, bad
