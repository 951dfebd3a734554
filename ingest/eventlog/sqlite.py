"""The event log in one SQLite file: the tables `topics` and `log`.

A page is one transaction, so it is in the log as a whole or not at all. Offsets of a partition are contiguous.
"""

import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from typing import NamedTuple

import msgspec
import structlog

from checkpoints import Leases
from ingest.errors import IngestError
from ingest.event import Form, Message, Record
from ingest.eventlog import (
    NOTHING,
    Admin,
    Published,
    Publisher,
    Reader,
    StartOffsets,
    Subscription,
    TopicInfo,
    TopicSpec,
    by_partition,
)
from ingest.eventlog.sqlite_records import SqliteRecord, bounds, records_from, topic_of, translated
from ingest.eventlog.sqlite_retention import TRIM_EVERY, trim
from ingest.eventlog.sqlite_subscription import LEASE_TTL, Membership, open_subscription
from ingest.sqlite import Database

log = structlog.get_logger()

READ_RECORDS = 1_000  # that the reader takes at a time
READ_BYTES = 8_000_000

_encode = msgspec.msgpack.Encoder().encode


class SqliteLog:
    """`holder`: who this process is (host:pid:id) in the leases of consumer groups. `lease_ttl` in seconds."""

    def __init__(self, database: Database, leases: Leases, holder: str, *, lease_ttl: float = LEASE_TTL) -> None:
        self._database = database
        self._membership = Membership(leases, holder, lease_ttl)

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[Publisher]:
        yield SqlitePublisher(self._database)

    def subscribe(
        self, topic: str, group: str, start: StartOffsets, *, records: int, bytes: int, wait: float
    ) -> AbstractAsyncContextManager[Subscription]:
        return open_subscription(
            self._database, self._membership, topic, group, start, records=records, bytes=bytes, wait=wait
        )

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        yield SqliteAdmin(self._database)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        yield SqliteReader(self._database)


class SqlitePublisher:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._trim_at: dict[str, float] = {}  # topic → time.monotonic()

    async def publish(self, topic: str, messages: Sequence[Message]) -> Published:
        if not messages:
            return Published(0, 0, ())
        with translated():
            page = _Packed.of(messages)  # not in the transaction, which keeps others from writing
            published = await self._database.write(lambda connection: _append(connection, topic, page))
        await self._trim(topic)
        return published

    async def _trim(self, topic: str) -> None:
        """Now and then. What was published is published, whatever comes of this."""
        now = time.monotonic()
        if now < self._trim_at.get(topic, 0.0):
            return
        try:
            trimmed = await self._database.write(lambda connection: trim(connection, topic))
        except IngestError as exc:
            log.warning("the log was not trimmed", topic=topic, error=str(exc))
            return
        self._trim_at[topic] = now if trimmed.more else now + TRIM_EVERY
        if trimmed.rows:
            log.info("trimmed: older than the topic's retention", topic=topic, records=trimmed.rows)
        for consumer, records in trimmed.unread.items():
            log.error("trimmed before it was read", topic=topic, consumer=consumer, records=records)


class SqliteAdmin:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def identity(self) -> str:
        with translated():
            return await self._database.read(_identity)

    async def topic_ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        with translated():
            uids = await self._database.read(_uids)
        return {name: uids[name] for name in topics if name in uids}

    async def topics(self) -> Sequence[str]:
        with translated():
            return await self._database.read(_names)

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicInfo]:
        with translated():
            return await self._database.read(lambda connection: _describe(connection, topics))

    async def create(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        with translated():
            return await self._database.write(lambda connection: _create(connection, specs))

    async def permits(self, *, writes: Collection[str] = (), reads: Mapping[str, str] = NOTHING) -> None:
        """Who may open the file may do everything."""


class SqliteReader:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, topic: str, start: Mapping[int, int] | None = None) -> AsyncGenerator[Record, None]:
        with translated():
            info = await self._database.read(lambda connection: _info(connection, topic))
        for partition, (first, end) in enumerate(zip(info.first_offsets, info.end_offsets, strict=True)):
            position = max(first, (start or {}).get(partition, 0))
            while position < end:
                for record in await self._piece(topic, partition, position, end - position):
                    position = record.offset + 1
                    if position <= end:  # what is trimmed meanwhile lets a piece reach beyond it
                        yield record

    async def _piece(self, topic: str, partition: int, start: int, most: int) -> Sequence[SqliteRecord]:
        def read(connection: sqlite3.Connection) -> Sequence[SqliteRecord]:
            found = topic_of(connection, topic)
            records = min(most, READ_RECORDS)
            return records_from(connection, found, partition, start, records=records, bytes=READ_BYTES)

        with translated():
            return await self._database.read(read)


class _Packed(NamedTuple):
    """Messages of a page, their headers as they are written, and the bytes that each takes."""

    messages: Sequence[Message]
    headers: Sequence[bytes]
    sizes: Sequence[int]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "_Packed":
        headers = [_encode([*_shared(m.form), *zip(m.form.names, m.own, strict=True)]) for m in messages]
        return cls(
            messages, headers, [len(m.key) + len(h) + len(m.value) for m, h in zip(messages, headers, strict=True)]
        )


def _append(connection: sqlite3.Connection, name: str, page: _Packed) -> Published:
    topic = topic_of(connection, name)
    now = time.time_ns() // 1_000_000
    messages, headers, sizes = page
    limit = topic.max_message
    near = [index for index, size in enumerate(sizes) if size > limit // 2]
    oversized = {index for index in near if messages[index].size() > limit}
    rows = []
    for partition, indexes in by_partition(messages, topic.partitions).items():
        if oversized:
            indexes = [index for index in indexes if index not in oversized]
        begin = bounds(connection, topic, partition)[1]
        rows += [
            (topic.id, partition, offset, now, messages[index].key, headers[index], messages[index].value)
            for offset, index in enumerate(indexes, begin)
        ]
    connection.executemany(
        """INSERT INTO log (topic_id, partition, "offset", timestamp, key, headers, value)
           VALUES (?, ?, ?, ?, ?, ?, ?)""",
        rows,
    )
    size = sum(sizes) - sum(sizes[index] for index in oversized)
    return Published(len(rows), size, tuple(sorted(oversized)))


def _shared(form: Form) -> list[msgspec.Raw]:
    return _remembered(form) if form.names else _encoded(form)


def _encoded(form: Form) -> list[msgspec.Raw]:
    return [msgspec.Raw(_encode(header)) for header in form.shared]


_remembered = lru_cache(64)(_encoded)  # not of forms that one message has alone


def _identity(connection: sqlite3.Connection) -> str:
    return str(connection.execute("SELECT name FROM log_identity").fetchone()[0])


def _names(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM topics ORDER BY name")]


def _uids(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, uid FROM topics"))


def _info(connection: sqlite3.Connection, name: str) -> TopicInfo:
    topic = topic_of(connection, name)
    spec = TopicSpec(name, topic.partitions, 1, 1, topic.retention_ms, topic.max_message)
    edges = [bounds(connection, topic, partition) for partition in range(topic.partitions)]
    return TopicInfo(spec, tuple(first for first, _ in edges), tuple(end for _, end in edges))


def _describe(connection: sqlite3.Connection, names: Sequence[str]) -> dict[str, TopicInfo]:
    known = set(_names(connection))
    return {name: _info(connection, name) for name in names if name in known}


def _create(connection: sqlite3.Connection, specs: Sequence[TopicSpec]) -> list[str]:
    """Replication and min.insync.replicas mean nothing here: one file, one copy."""
    created = []
    for spec in specs:
        inserted = connection.execute(
            """INSERT INTO topics (name, partitions, retention_ms, max_message, uid)
               VALUES (?, ?, ?, ?, lower(hex(randomblob(8)))) ON CONFLICT (name) DO NOTHING""",
            (spec.name, spec.partitions, spec.retention_ms, spec.max_message),
        )
        if inserted.rowcount:
            created.append(spec.name)
    return created
