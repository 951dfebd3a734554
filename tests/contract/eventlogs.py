"""Event logs for the contract tests, and short words for what those tests do with them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from checkpoints.sqlite import SqliteLeases
from ingest.event import Message, Record
from ingest.eventlog import Batch, EventLog, Subscription, TopicSpec
from ingest.eventlog.sqlite import SqliteLog
from ingest.sqlite import open_database
from migrations.runner import migrate
from tests.harness.names import unique

DEADLINE = 30.0  # seconds that a test waits for what must come
WAIT = 0.2  # seconds that a batch waits for its first record
LEASE_TTL = 1.5  # seconds, for the tests in which a lease is renewed or lost
HEADERS = [("ce_specversion", b"1.0"), ("ce_id", b"billing:invoices:1"), ("ce_source", b"/billing/invoices")]


@asynccontextmanager
async def open_sqlite_log(path: Path, holder: str = "here:1:a", *, lease_ttl: float = 30.0) -> AsyncIterator[SqliteLog]:
    """As one process opens it: several on one path stand for several processes."""
    await migrate(f"sqlite:///{path}")
    async with open_database(path) as database:
        yield SqliteLog(database, SqliteLeases(database), holder, lease_ttl=lease_ttl)


def spec(name: str, *, partitions: int = 4, max_message: int = 1_000_000) -> TopicSpec:
    return TopicSpec(name, partitions, replication=1, min_insync=1, retention_ms=604_800_000, max_message=max_message)


async def new_topic(log: EventLog, *, partitions: int = 4, max_message: int = 1_000_000) -> str:
    topic = unique("orders")
    async with log.admin() as admin:
        await admin.create([spec(topic, partitions=partitions, max_message=max_message)])
    return topic


def message(key: str, value: bytes = b"{}", headers: Sequence[tuple[str, bytes]] = HEADERS) -> Message:
    return Message.of(key.encode(), value, headers)


def numbered(count: int, *, keys: int = 7, first: int = 0) -> list[Message]:
    """Messages whose values count up, spread over some keys."""
    return [message(f"key-{n % keys}", b'{"n":%d}' % n) for n in range(first, first + count)]


async def publish(log: EventLog, topic: str, messages: Sequence[Message]) -> None:
    async with log.publisher() as publisher:
        await publisher.publish(topic, messages)


async def read_all(log: EventLog, topic: str, start: Mapping[int, int] | None = None) -> list[Record]:
    async with log.reader() as reader:
        return [record async for record in reader.read(topic, start)]


class Store:
    """Where a store stands, for tests of the log alone: partition → next offset."""

    def __init__(self, offsets: Mapping[int, int] | None = None) -> None:
        self.stands = dict(offsets or {})
        self.asked = 0
        self.topic_id = ""

    async def __call__(self, topic_id: str) -> Mapping[int, int]:
        self.asked += 1
        self.topic_id = topic_id
        return dict(self.stands)

    def write(self, batch: Batch) -> None:
        """Moves by compare-and-set, as an event store does."""
        for span in batch.spans:
            assert self.stands.get(span.partition, span.start) == span.start, "an offset of the store is elsewhere"
            self.stands[span.partition] = span.end


async def some_batch(subscription: Subscription) -> Batch:
    """The next batch that is not empty."""
    async with asyncio.timeout(DEADLINE):
        while True:
            batch = await subscription.next_batch()
            if batch.records:
                return batch


async def batches_of(subscription: Subscription, records: int) -> list[Batch]:
    """Batches, not empty, that have so many records together."""
    batches: list[Batch] = []
    while sum(len(batch.records) for batch in batches) < records:
        batches.append(await some_batch(subscription))
    return batches


def records_of(batches: Sequence[Batch]) -> list[Record]:
    return [record for batch in batches for record in batch.records]


def offsets_by_partition(records: Sequence[Record]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for record in records:
        found[record.partition].append(record.offset)
    return dict(found)


def ends_of(records: Sequence[Record]) -> dict[int, int]:
    """Partition → the offset after the last record."""
    return {partition: max(offsets) + 1 for partition, offsets in offsets_by_partition(records).items()}
