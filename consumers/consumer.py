"""consume → write → commit.

A batch is read from the log and written to the store in one transaction with the offsets that it stands for; only then
are they committed to the log. So after a crash at any instruction the store says where to go on, and what is written a
second time is a row that exists already. While the store writes one batch the next one is read.

A bad record goes to the dead-letter topic. An outage is no bad record: then the consumer waits, and stays a member.
`stop` ends every wait at once; only the batch that is being written is finished before.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from consumers.burials import Burials
from consumers.deadletter import Bad, bury, isolate
from consumers.store import EventStore, Written
from consumers.tally import Gauges, Tally
from ingest.errors import BadRecord, StoreUnavailable, Superseded
from ingest.event import Event, Record, decode_all
from ingest.eventlog import UNKNOWN_TOPIC, Batch, Publisher, Span, Subscription
from ingest.retry import backoff

log = structlog.get_logger()

RETRY_BASE = 0.2  # seconds
RETRY_CAP = 10.0  # seconds
PIECE = 500  # records decoded at once
LOOK_EVERY = 10.0  # seconds between looks at where the store stands, while all that was written is confirmed
ASK_EVERY = 1.0  # seconds between questions whether others have reached the finish, while there is work
NOTHING = Written(0, 0)


class Finish(NamedTuple):
    """Where to stop: `ends` is partition → offset, `reached` asks the store whether it stands there, but for some
    partitions that are not asked for."""

    ends: Mapping[int, int]
    reached: Callable[[Collection[int]], Awaitable[bool]]


@dataclass
class _Work:
    """A batch and how far it is done. `letters` None: nobody knows yet which of its events cannot be stored."""

    batch: Batch
    events: list[Event]
    bad: list[Bad]  # could not even be decoded
    spans: Sequence[Span]  # whose offsets did not move yet
    written: Written = NOTHING
    letters: list[Bad] | None = None


class Consumer:
    """One consumer on one topic. `publisher`: for dead letters."""

    def __init__(
        self, name: str, subscription: Subscription, store: EventStore, publisher: Publisher, tally: Tally
    ) -> None:
        self._name, self._subscription, self._store, self._publisher = name, subscription, store, publisher
        self._tally, self._gauges = tally, Gauges(tally.topic, tally.group)
        self._burials = Burials(tally.group, self._bury, self._move, subscription.partitions)
        self._done: dict[int, int] = {}  # partition → next offset, as far as we wrote it, of the topic with this id
        self._topic_id = UNKNOWN_TOPIC
        self._look_at = 0.0  # time.monotonic(), when to ask whether the store still says so
        self._ask_at = 0.0  # time.monotonic(), when to ask whether the finish is reached
        self._store_away: str | None = None  # why the last look at the store failed

    async def run(self, stop: asyncio.Event, finish: "Finish | None" = None) -> None:
        """Until `stop` is set, or there is nothing left to do before `finish` (None: for ever).

        Raises ConfigError when a person must act, LogUnavailable, and Superseded when the topic has another consumer
        on SQLite."""
        self._tally.begin()
        self._stopping = asyncio.create_task(stop.wait())
        self._reading = asyncio.create_task(self._read())
        try:
            while (work := await self._next()) is not None:
                self._tell()
                if work.batch.lost:
                    continue
                if not await self._handle(work) or await self._fell_back():
                    await self._begin_again()
                if finish is not None and await self._finished(finish, idle=not work.batch.spans):
                    return
        finally:
            self._stopping.cancel()
            await self._burials.close()
            await _dropped(self._reading)
            self._gauges.forget()

    async def _next(self) -> _Work | None:
        """What was read ahead; the batch after it is being read from here on. None: we were told to stop."""
        attempt = 0  # to learn from the store where to begin
        while True:
            waits = [self._reading, self._stopping, *self._burials.under_way()]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.done():
                return None
            if await self._released():
                continue
            try:
                work = await self._reading
            except StoreUnavailable as exc:
                attempt += 1
                await self._wait(attempt, exc)
                self._reading = asyncio.create_task(self._read())
            else:
                self._reading = asyncio.create_task(self._read())
                return work

    async def _read(self) -> _Work:
        """The next batch and what it holds; while the store writes the one before."""
        batch = await self._subscription.next_batch()
        return _Work(batch, *await _decoded(batch.records), batch.spans)

    async def _begin_again(self) -> None:
        """What was handed out and read ahead is dropped, and read again from where the store stands; partitions that
        wait for their dead letters come later."""
        await _dropped(self._reading)
        await self._subscription.rewind(self._burials.partitions())
        self._reading = asyncio.create_task(self._read())

    async def _handle(self, work: _Work) -> bool:
        """write → commit. False: the store stands elsewhere, we were stopped, or partitions wait for their dead
        letters; what is left did not move."""
        batch = work.batch
        if not batch.spans:
            self._tally.missed(batch.trimmed)
            return True
        started = time.monotonic()
        attempt = 0
        while not batch.lost and not self._stopping.done():
            attempt += 1
            try:
                done = await self._write(work)
            except StoreUnavailable as exc:
                await self._wait(attempt, exc)
            except Superseded as exc:
                self._superseded(len(batch.records), exc)
                return False
            else:
                self._answered()
                batch.spans = tuple(span for span in batch.spans if done or span not in work.spans)
                await self._moved(batch)
                self._tally.missed(batch.trimmed)
                self._tally.wrote(batch.records, work.written, time.monotonic() - started)
                return done
        return False

    async def _write(self, work: _Work) -> bool:
        """Rows and offsets in one transaction. Where a record is bad: the rows, the offsets of the partitions without
        one, the dead letters, the rest of the offsets. May be repeated, and goes on where it failed. False: the dead
        letters, and so that rest, are still to come."""
        if work.letters is None:
            try:
                if not work.bad:
                    work.written = await self._store.write(self._name, work.events, work.spans)
                    return True
            except BadRecord:
                pass  # which one, `isolate` finds out
            work.written, isolated = await isolate(work.events, lambda some: self._store.write(self._name, some, ()))
            records = {(record.partition, record.offset): record for record in work.batch.records}
            found = [Bad(records[event.partition, event.offset], error) for event, error in isolated]
            work.letters = [*work.bad, *found]
        waiting = {letter.record.partition for letter in work.letters}
        ready = [span for span in work.spans if span.partition not in waiting]
        if ready:
            await self._move(ready)
            work.spans = [span for span in work.spans if span.partition in waiting]
        if not work.letters:  # written in pieces, each of them was good
            return True
        if not await self._burials.begin(work.letters, work.spans, self._stopping):
            return False
        self._tally.buried(len(work.letters))
        return True

    async def _bury(self, letters: Sequence[Bad]) -> None:
        await bury(self._publisher, self._tally.topic, self._name, self._tally.group, letters)

    async def _move(self, spans: Sequence[Span]) -> None:
        await self._store.write(self._name, (), spans)

    async def _released(self) -> bool:
        """Whether partitions no longer wait for their dead letters: they are read on."""
        ended = self._burials.ended()
        for burial, superseded in ended:
            if superseded is None:
                await self._moved(Batch((), tuple(burial.spans)))
                self._tally.buried(len(burial.letters))
            else:
                self._superseded(len(burial.letters), superseded)
        if ended:
            await self._begin_again()
        return bool(ended)

    async def _moved(self, batch: Batch) -> None:
        """The store has its spans."""
        await self._subscription.commit(batch)
        for span in batch.spans:
            if span.topic_id != self._topic_id:  # the topic was made anew: its offsets are others
                self._done.clear()
                self._topic_id = span.topic_id
            self._done[span.partition] = span.end

    def _superseded(self, records: int, exc: Superseded) -> None:
        self._answered()
        self._tally.dropped(records)
        log.info("batch dropped: the store stands elsewhere", group=self._tally.group, reason=str(exc))

    async def _wait(self, attempt: int, exc: Exception) -> None:
        """An outage: nothing is lost, nothing moves, and the group still knows us. Ends early when we are to stop."""
        self._gauges.pause(True)
        self._tally.blocked_by(str(exc))
        self._look_at = 0.0  # another server may answer next
        self._gauges.show(self._subscription, self._burials.partitions())
        log.warning("paused: cannot write yet", group=self._tally.group, attempt=attempt, error=str(exc))
        idling = asyncio.create_task(self._subscription.idle(backoff(attempt, RETRY_BASE, RETRY_CAP)))
        try:
            await asyncio.wait([idling, self._stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            idling.cancel()
            await asyncio.wait([idling])

    def _tell(self) -> None:
        """Whether log and store answer, as far as we know, and how far we are behind."""
        trouble = self._subscription.trouble() or self._store_away
        if trouble is not None:
            self._tally.blocked_by(trouble)
        elif self._subscription.settled():
            self._answered()
        self._gauges.show(self._subscription, self._burials.partitions())

    def _answered(self) -> None:
        self._gauges.pause(False)
        self._store_away = None
        self._tally.blocked_by(self._burials.trouble())

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
        nothing was there to read; where there always is, we ask now and then, or a busy topic would have no end.

        Raises ConfigError when only dead letters are left, and a person must act before they can be written."""
        held = self._burials.partitions()
        own = all(self._done.get(p, 0) >= end for p, end in finish.ends.items() if p not in held)
        if own:
            self._look_at = 0.0  # should it say no
        if not own and not idle and time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + ASK_EVERY
        if not await finish.reached(held):
            return False
        if (failure := self._burials.for_a_person()) is not None:
            raise failure
        return not held


async def _dropped(reading: "asyncio.Task[_Work]") -> None:
    """Ends at once, and reads nothing: the subscription keeps what it has fetched."""
    reading.cancel()
    await asyncio.wait([reading])
    if not reading.cancelled():
        reading.exception()  # looked at, so that asyncio does not complain of it


async def _decoded(records: Sequence[Record]) -> tuple[list[Event], list[Bad]]:
    events: list[Event] = []
    bad: list[Bad] = []
    for start in range(0, len(records), PIECE):
        good, others = decode_all(records[start : start + PIECE])
        events += good
        bad += [Bad(record, error) for record, error in others]
        await asyncio.sleep(0)
    return events, bad
