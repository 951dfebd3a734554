"""The one reader of a consumer group in a SQLite file, as long as it keeps the group's lease.

There are no members to share partitions with: one process at a time holds `consumer:{group}`. When the lease is lost,
what was handed out is marked lost and `next_batch` raises Superseded; the store's compare-and-set stands behind.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import structlog

from checkpoints import Lease, Leases
from ingest.errors import ConfigError, LogUnavailable, StoreUnavailable, Superseded
from ingest.eventlog import UNKNOWN_TOPIC, Batch, Span, StartOffsets
from ingest.eventlog.handed_out import HandedOut
from ingest.eventlog.place import Place, place, trimmed
from ingest.eventlog.sqlite_records import SqliteRecord, Topic, bounds, records_from, topic_of, translated
from ingest.sqlite import Database

log = structlog.get_logger()

LEASE_TTL = 30.0  # seconds
RENEWALS = 3  # per LEASE_TTL
LOOK_FIRST, LOOK_LAST = 0.020, 0.100  # seconds between two looks for new records, doubling


class Membership(NamedTuple):
    """What it takes to be the reader of a group."""

    leases: Leases
    holder: str  # host:pid:id
    ttl: float  # seconds


class _Found(NamedTuple):
    """What one look found: records per partition, in the order in which they were read, and where partitions end; None
    where it is another topic than it was."""

    records: dict[int, list[SqliteRecord]]
    ends: dict[int, int]


class SqliteSubscription:
    """Made by `open_subscription`."""

    def __init__(
        self, database: Database, topic: str, start: StartOffsets, *, records: int, bytes: int, wait: float
    ) -> None:
        self._database = database
        self._topic = topic
        self._start = start
        self._records, self._bytes, self._wait = records, bytes, wait
        self._topic_id = UNKNOWN_TOPIC  # of the topic in which `_places` are
        self._places: dict[int, Place] = {}  # empty until they are located
        self._ends: dict[int, int] = {}
        self._without: frozenset[int] = frozenset()  # partitions that are not to be read now
        self._turn = 0  # the partition that the next batch begins with
        self._version: int | None = None  # of the file, when nothing was left to read
        self._handed_out = HandedOut()
        self._lost: Superseded | None = None

    async def next_batch(self) -> Batch:
        deadline = asyncio.get_running_loop().time() + self._wait
        pause = LOOK_FIRST
        while True:
            if not self._places:
                await self._locate()
            if self._lost is not None:
                raise Superseded(str(self._lost)) from self._lost
            with translated():
                version = await self._database.version()  # before the look: what comes after it changes it again
                found = await self._database.read(self._look) if version != self._version else _Found({}, self._ends)
            if found is None:
                log.warning("the topic was deleted and made anew while it was read", topic=self._topic)
                self._begin_again()
                continue
            self._ends = found.ends
            if found.records:
                return self._hand_out(found.records)
            self._version = version
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return Batch((), ())
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, LOOK_LAST)

    async def commit(self, batch: Batch) -> None:
        """Nothing to tell: the store's offsets are all there is."""
        self._handed_out.done(batch)

    async def rewind(self, without: Collection[int] = ()) -> None:
        self._without = frozenset(without)
        self._begin_again()

    def _begin_again(self) -> None:
        self._handed_out.lose()
        self._places.clear()
        self._version = None

    async def idle(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # the lease is renewed meanwhile

    def lag(self) -> Mapping[int, int]:
        return {p: self._ends.get(p, here.fetched) - here.fetched for p, here in self._places.items()}

    def partitions(self) -> frozenset[int]:
        return frozenset(self._places)

    def settled(self) -> bool:
        return bool(self._places)

    def trouble(self) -> str | None:
        return None

    async def keep(self, leases: Leases, lease: Lease, ttl: float) -> None:
        """Renew the lease until it is lost."""
        while self._lost is None:
            await asyncio.sleep(ttl / RENEWALS)
            try:
                await leases.renew(lease, ttl)
            except (StoreUnavailable, ConfigError) as exc:  # what a person must mend, the next read says too
                log.warning("lease not renewed, trying again", lease=lease.name, error=str(exc))
            except Superseded as exc:
                self._lost = exc
                self._handed_out.lose()

    def close(self) -> None:
        self._handed_out.lose()

    async def _locate(self) -> None:
        def edges(connection: sqlite3.Connection) -> tuple[str, list[tuple[int, int]]]:
            topic = topic_of(connection, self._topic)
            return topic.uid, [bounds(connection, topic, partition) for partition in range(topic.partitions)]

        with translated():
            self._topic_id, found = await self._database.read(edges)
        stored = await self._start(self._topic_id)
        self._places = {
            partition: place(self._topic, partition, stored.get(partition), first, end)
            for partition, (first, end) in enumerate(found)
        }

    def _look(self, connection: sqlite3.Connection) -> _Found | None:
        """Every partition gets an equal share of the batch; what one does not use goes to those behind it."""
        topic = topic_of(connection, self._topic)
        if topic.uid != self._topic_id:
            return None
        found: dict[int, list[SqliteRecord]] = {}
        records, room = self._records, self._bytes
        for n in range(topic.partitions):
            partition = (self._turn + n) % topic.partitions
            if records <= 0 or room <= 0:
                break
            if partition in self._without:
                continue
            left = topic.partitions - n
            here = self._places.get(partition, Place(0, 0))  # not there: the topic grew
            piece = records_from(
                connection, topic, partition, here.fetched, records=-(-records // left), bytes=-(-room // left)
            )
            if piece:
                found[partition] = piece
                records -= len(piece)
                room -= sum(len(record.key) + len(record.value) for record in piece)
        return _Found(found, self._find_ends(connection, topic))

    def _find_ends(self, connection: sqlite3.Connection, topic: Topic) -> dict[int, int]:
        return {partition: bounds(connection, topic, partition)[1] for partition in range(topic.partitions)}

    def _hand_out(self, found: Mapping[int, list[SqliteRecord]]) -> Batch:
        records: list[SqliteRecord] = []
        spans = []
        lost = 0
        for partition, piece in found.items():
            here = self._places.setdefault(partition, Place(0, 0))
            end = piece[-1].offset + 1
            spans.append(Span(self._topic, partition, here.handed, end, self._topic_id))
            # Offsets have no gaps here: what is missing was trimmed, before we came or while we read.
            lost += here.trimmed + trimmed(self._topic, partition, here.fetched, piece[0].offset)
            here.trimmed = 0
            here.handed = here.fetched = end
            records += piece
        self._turn = spans[-1].partition + 1
        batch = Batch(records, tuple(spans), trimmed=lost)
        self._handed_out.add(batch)
        return batch


@asynccontextmanager
async def open_subscription(
    database: Database,
    membership: Membership,
    topic: str,
    group: str,
    start: StartOffsets,
    *,
    records: int,
    bytes: int,
    wait: float,
) -> AsyncIterator[SqliteSubscription]:
    leases, holder, ttl = membership
    name = f"consumer:{group}"
    with translated():
        await database.read(lambda connection: topic_of(connection, topic))
        lease = await leases.acquire(name, holder, ttl)
        if lease is None:
            raise LogUnavailable(f"{topic} is already consumed by {await leases.holder(name)} for the group {group}")
    subscription = SqliteSubscription(database, topic, start, records=records, bytes=bytes, wait=wait)
    keeper = asyncio.create_task(subscription.keep(leases, lease, ttl))
    try:
        yield subscription
    finally:
        subscription.close()
        keeper.cancel()
        await asyncio.wait({keeper})
        with suppress(StoreUnavailable):  # then it ends by itself
            await leases.release(lease)
