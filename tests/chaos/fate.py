"""The instant at which a process dies, and adapters around the real ones that bring it about.

Nothing in the product knows of them: they stand between a flow and its ports, and every call goes through to the real
log or database. A signal that a process sends to itself cannot come too early or too late.

| a poller dies | |
| --- | --- |
| `before_fetch` | the n-th page is asked for, no request was made |
| `after_parse` | the n-th page is read and parsed, the poller has not got it |
| `before_publish` | nothing of the n-th page was sent |
| `some_acknowledgements` | half of the n-th page is acknowledged, the rest was not sent |
| `all_acknowledgements` | all of it is acknowledged, its cursor is not saved |
| `inside_save` | every statement of the save was executed, COMMIT was not sent |
| `after_save` | the database has committed it |

| a consumer dies | |
| --- | --- |
| `after_fetch` | the n-th batch with records was handed out |
| `before_write` | nothing of it was sent to the database |
| `mid_write` | half of its rows and all of its offsets are in the transaction, COMMIT was not sent |
| `before_commit` | all of its rows and offsets are, COMMIT was not sent |
| `after_commit` | the database has committed |
| `before_offset_commit` | the log is about to be told |
| `after_offset_commit` | the log was told |
"""

import os
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from checkpoints import FORGOTTEN, Checkpoint, Checkpoints, Claim, HistoryEntry, Missing, Save, StreamId
from consumers.store import EventStore, Query, Row, Written
from ingest.event import Event, Message
from ingest.eventlog import (
    UNKNOWN_TOPIC,
    Admin,
    Batch,
    EventLog,
    Published,
    Publisher,
    Reader,
    Span,
    StartOffsets,
    Subscription,
)
from ingest.postgres import Postgres
from ingest.sources import Page, Saved, Source, Watch, nothing_saved
from ingest.sqlite import Database

if TYPE_CHECKING:
    from ingest.postgres import Connection

T = TypeVar("T")


class Fate:
    """`number` reaches this process when it comes to `point` for the `nth` time, counted from 1."""

    def __init__(self, point: str, nth: int, number: signal.Signals) -> None:
        self._point, self._nth, self._number = point, nth, number
        self._passed = Counter[str]()
        self.inside = self.behind = False
        """It strikes within the transaction that comes next, or right behind its COMMIT, before anything else."""

    def comes(self, point: str) -> bool:
        """Counts; true when this is the instant."""
        self._passed[point] += 1
        return point == self._point and self._passed[point] == self._nth

    def strike(self) -> None:
        os.kill(os.getpid(), self._number)

    def at(self, point: str) -> None:
        if self.comes(point):
            self.strike()

    def inside_transaction(self) -> None:
        if self.inside:
            self.inside = False  # a save that is refused has a second transaction, which asks why
            self.strike()

    def behind_transaction(self) -> None:
        if self.behind:
            self.behind = False
            self.strike()


class DoomedSource:
    def __init__(self, source: Source, fate: Fate) -> None:
        self._source, self._fate = source, fate

    async def pages(
        self, cursor: bytes | None, watch: Watch, saved: Saved = nothing_saved
    ) -> AsyncGenerator[Page, None]:
        pages = self._source.pages(cursor, watch, saved)
        try:
            while True:
                self._fate.at("before_fetch")
                page = await anext(pages, None)
                if page is None:
                    return
                self._fate.at("after_parse")
                yield page
        finally:
            await pages.aclose()


class DoomedPublisher:
    def __init__(self, publisher: Publisher, fate: Fate) -> None:
        self._publisher, self._fate = publisher, fate

    async def publish(self, topic: str, messages: Sequence[Message]) -> Published:
        self._fate.at("before_publish")
        if self._fate.comes("some_acknowledgements"):
            await self._publisher.publish(topic, messages[: len(messages) // 2])
            self._fate.strike()
        published = await self._publisher.publish(topic, messages)
        self._fate.at("all_acknowledgements")
        return published


class DoomedCheckpoints:
    """`claim_ttl`: seconds that a claim lasts in the database, whatever the poller believes."""

    def __init__(self, checkpoints: Checkpoints, fate: Fate, claim_ttl: float | None) -> None:
        self._checkpoints, self._fate, self._claim_ttl = checkpoints, fate, claim_ttl

    async def claim(self, stream: StreamId, holder: str, ttl: float) -> Claim | None:
        return await self._checkpoints.claim(stream, holder, ttl if self._claim_ttl is None else self._claim_ttl)

    async def save(self, claim: Claim, save: Save) -> None:
        self._fate.inside, self._fate.behind = self._fate.comes("inside_save"), self._fate.comes("after_save")
        await self._checkpoints.save(claim, save)

    async def missing(
        self, stream: StreamId, sweep: int, after: str, limit: int, *, twice: bool = False
    ) -> Sequence[Missing]:
        return await self._checkpoints.missing(stream, sweep, after, limit, twice=twice)

    async def seen(self, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
        return await self._checkpoints.seen(stream, ids)

    async def keys(self, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
        return await self._checkpoints.keys(stream, ids)

    async def cursors(self, stream: StreamId, partitions: Sequence[str]) -> Mapping[str, bytes]:
        return await self._checkpoints.cursors(stream, partitions)

    async def keep(self, claim: Claim, event_id: str, payload: bytes, headers: bytes) -> str:
        return await self._checkpoints.keep(claim, event_id, payload, headers)

    async def list(self) -> Sequence[Checkpoint]:
        return await self._checkpoints.list()

    async def history(self, stream: StreamId) -> Sequence[HistoryEntry]:
        return await self._checkpoints.history(stream)

    async def forget(self, claim: Claim, note: str = FORGOTTEN) -> None:
        await self._checkpoints.forget(claim, note)


class DoomedStore:
    def __init__(self, store: EventStore, fate: Fate) -> None:
        self._store, self._fate = store, fate

    async def offsets(self, consumer: str, topic: str, topic_id: str = UNKNOWN_TOPIC) -> Mapping[int, int]:
        return await self._store.offsets(consumer, topic, topic_id)

    async def other_ids(self, consumer: str, topic: str, topic_id: str) -> Sequence[str]:
        return await self._store.other_ids(consumer, topic, topic_id)

    async def write(self, consumer: str, events: Sequence[Event], spans: Sequence[Span]) -> Written:
        self._fate.at("before_write")
        half = self._fate.comes("mid_write")
        self._fate.inside, self._fate.behind = (
            self._fate.comes("before_commit") or half,
            self._fate.comes("after_commit"),
        )
        return await self._store.write(consumer, events[: len(events) // 2] if half else events, spans)

    def events(self, query: Query) -> AsyncIterator[Row]:
        return self._store.events(query)

    async def count(self, query: Query) -> int:
        return await self._store.count(query)


class DoomedSubscription:
    def __init__(self, subscription: Subscription, fate: Fate) -> None:
        self._subscription, self._fate = subscription, fate

    async def next_batch(self) -> Batch:
        batch = await self._subscription.next_batch()
        if batch.records:
            self._fate.at("after_fetch")
        return batch

    async def commit(self, batch: Batch) -> None:
        self._fate.at("before_offset_commit")
        await self._subscription.commit(batch)
        self._fate.at("after_offset_commit")

    async def rewind(self, without: Collection[int] = ()) -> None:
        await self._subscription.rewind(without)

    async def idle(self, seconds: float) -> None:
        await self._subscription.idle(seconds)

    def lag(self) -> Mapping[int, int]:
        return self._subscription.lag()

    def partitions(self) -> frozenset[int]:
        return self._subscription.partitions()

    def settled(self) -> bool:
        return self._subscription.settled()

    def trouble(self) -> str | None:
        return self._subscription.trouble()


class DoomedLog:
    def __init__(self, log: EventLog, fate: Fate) -> None:
        self._log, self._fate = log, fate

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[Publisher]:
        async with self._log.publisher() as publisher:
            yield DoomedPublisher(publisher, self._fate)

    @asynccontextmanager
    async def subscribe(
        self, topic: str, group: str, start: StartOffsets, *, records: int, bytes: int, wait: float
    ) -> AsyncIterator[Subscription]:
        opened = self._log.subscribe(topic, group, start, records=records, bytes=bytes, wait=wait)
        async with opened as subscription:
            yield DoomedSubscription(subscription, self._fate)

    def admin(self) -> AbstractAsyncContextManager[Admin]:
        return self._log.admin()

    def reader(self) -> AbstractAsyncContextManager[Reader]:
        return self._log.reader()


class DoomedDatabase(Database):
    """A SQLite file whose process may die between the last statement of a transaction and its COMMIT, or behind it."""

    def __init__(self, database: Database, fate: Fate) -> None:
        self._database, self._fate = database, fate
        self.path, self.presence = database.path, database.presence

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def doomed(connection: sqlite3.Connection) -> T:
            result = work(connection)
            self._fate.inside_transaction()
            return result

        result = await self._database.write(doomed)
        self._fate.behind_transaction()
        return result

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._database.read(work)

    async def version(self) -> int:
        return await self._database.version()


class DoomedPostgres(Postgres):
    """As `DoomedDatabase`."""

    def __init__(self, postgres: Postgres, fate: Fate) -> None:
        self._postgres, self._fate = postgres, fate

    @asynccontextmanager
    async def transaction(self, first: str = "") -> AsyncIterator["Connection"]:
        async with self._postgres.transaction(first) as connection:
            yield connection
            self._fate.inside_transaction()
        self._fate.behind_transaction()

    async def write_at_once(self, statement: str) -> int:
        """Struck inside, it has written and not committed, as where its message came and the process was gone."""
        if self._fate.inside:
            async with self.transaction() as connection:
                return int((await connection.execute(statement)).rpartition(" ")[2])
        rows = await self._postgres.write_at_once(statement)
        self._fate.behind_transaction()
        return rows
