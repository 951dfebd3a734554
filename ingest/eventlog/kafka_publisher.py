"""Publishes pages to Kafka: a page is sent as few batches per partition, and is done when all of them are acknowledged.

A failed batch leaves a gap in the sequence numbers of aiokafka's idempotent producer, and every later batch of that
partition is refused. So whatever fails, the producer is thrown away with all that it holds, and the next page gets a
new one.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import NamedTuple

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError

from ingest.event import Message
from ingest.eventlog import Published, by_partition
from ingest.eventlog.kafka_admin import max_message_bytes
from ingest.eventlog.kafka_batches import Page, RecordBatch
from ingest.eventlog.kafka_client import STOP_TIMEOUT, Cluster, ended, meaning, started

log = structlog.get_logger()

DELIVERY_DEADLINE = 120.0  # seconds for all acknowledgements of a page
MAX_IN_FLIGHT = 64_000_000  # bytes in batches that are not acknowledged, over all pages
BATCHES_AHEAD = 2  # per partition: one on its way, one in the queue
LIMIT_AGE = 300.0  # seconds after which max.message.bytes is read again
ABANDON_TIMEOUT = 3.0  # seconds for requests on their way to a broker that may be gone


class _Limit(NamedTuple):
    bytes: int  # max.message.bytes
    read_at: float  # time.monotonic()


class KafkaPublisher:
    """Made by `open_publisher`. Pages of different topics may be published at the same time."""

    def __init__(self, cluster: Cluster, deadline: float) -> None:
        self._cluster = cluster
        self._deadline = deadline  # seconds
        self._producer: AIOKafkaProducer | None = None
        self._changing = asyncio.Lock()  # held while the producer is made or thrown away
        self._limits: dict[str, _Limit] = {}
        self._in_flight = _Budget(MAX_IN_FLIGHT)

    async def publish(self, topic: str, messages: Sequence[Message]) -> Published:
        if not messages:
            return Published(0, 0, ())
        limit = await self._limit(topic)
        producer = await self._current()
        try:
            async with asyncio.timeout(self._deadline):
                return await self._deliver(producer, topic, messages, limit)
        except (KafkaError, OSError) as exc:
            await self._throw_away(producer)
            raise meaning(exc, f"publish {len(messages)} messages to {topic}") from exc

    async def close(self) -> None:
        """Waits a bounded time for what a cancelled `publish` left behind."""
        async with self._changing:
            producer, self._producer = self._producer, None
            if producer is None:
                return
            if not await ended(producer.flush(), STOP_TIMEOUT):
                log.warning("closing the Kafka producer: some batches were not acknowledged")
            await _abandon(producer)

    async def _limit(self, topic: str) -> int:
        known = self._limits.get(topic)
        if known is None or time.monotonic() - known.read_at > LIMIT_AGE:
            known = _Limit(await max_message_bytes(self._cluster, topic), time.monotonic())
            self._limits[topic] = known
        return known.bytes

    async def _current(self) -> AIOKafkaProducer:
        async with self._changing:
            if self._producer is None:
                self._producer = await _start(self._cluster)
            return self._producer

    async def _throw_away(self, producer: AIOKafkaProducer) -> None:
        """Stop it before a new one is made: a batch that it still repeats would land behind the next page."""
        async with self._changing:
            if self._producer is not producer:
                return  # another page that failed with it did it
            self._producer = None
            self._limits.clear()
            log.warning("the Kafka producer is thrown away after a failed delivery; the next page gets a new one")
            await _abandon(producer)

    async def _deliver(
        self, producer: AIOKafkaProducer, topic: str, messages: Sequence[Message], limit: int
    ) -> Published:
        partitions = len(await producer.partitions_for(topic))
        parts = by_partition(messages, partitions)
        page = Page(messages, limit, int(time.time() * 1000), [])
        results = await asyncio.gather(
            *(self._send(producer, topic, partition, page, indexes) for partition, indexes in parts.items()),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        oversized = tuple(sorted(page.oversized))
        return Published(len(messages) - len(oversized), sum(r for r in results if isinstance(r, int)), oversized)

    async def _send(
        self, producer: AIOKafkaProducer, topic: str, partition: int, page: Page, indexes: Sequence[int]
    ) -> int:
        """Send one partition's part of a page, in order; returns its bytes when all of it is acknowledged."""
        unacknowledged: deque[asyncio.Future[object]] = deque()
        total = 0
        async with aclosing(page.batches(indexes)) as batches:
            async for batch in batches:
                if len(unacknowledged) == BATCHES_AHEAD:
                    await _acknowledged(unacknowledged.popleft())
                total += batch.size()  # before it is sent, and compressed
                unacknowledged.append(await self._enqueue(producer, batch, topic, partition))
        while unacknowledged:
            await _acknowledged(unacknowledged.popleft())
        return total

    async def _enqueue(
        self, producer: AIOKafkaProducer, batch: RecordBatch, topic: str, partition: int
    ) -> "asyncio.Future[object]":
        """The acknowledgement to come. The deadline is the page's, so a place in the queue that is not free within
        aiokafka's own limit is waited for again."""
        size = batch.size()
        acknowledgement: asyncio.Future[object] | None = None
        await self._in_flight.take(size)
        try:
            while acknowledgement is None:
                with suppress(KafkaTimeoutError):
                    acknowledgement = await producer.send_batch(batch, topic, partition=partition)
        except BaseException:
            self._in_flight.give(size)
            raise

        def settled(acknowledgement: "asyncio.Future[object]") -> None:
            self._in_flight.give(size)
            if not acknowledgement.cancelled():
                acknowledgement.exception()  # looked at, also where `publish` gave up before

        acknowledgement.add_done_callback(settled)
        return acknowledgement


class _Budget:
    """Bytes that may be in use at a time; more than all of it is granted to one who is alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Event()

    async def take(self, size: int) -> None:
        while self._used and self._used + size > self._limit:
            self._freed.clear()
            await self._freed.wait()
        self._used += size

    def give(self, size: int) -> None:
        self._used -= size
        self._freed.set()


async def _acknowledged(acknowledgement: "asyncio.Future[object]") -> None:
    """Not a plain `await`: that would cancel it along with `publish`, and nobody would look at its error."""
    await asyncio.wait({acknowledgement})
    acknowledgement.result()


async def _start(cluster: Cluster) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(**cluster.settings(), enable_idempotence=True, acks="all", linger_ms=0)
    try:
        await started(producer, cluster)
    except BaseException:
        await _abandon(producer)
        raise
    return producer


async def _abandon(producer: AIOKafkaProducer) -> None:
    """Fail every batch that it holds, so that whoever waits for one is released, and end it within a bounded time.

    `stop` alone would wait for batches that may never be acknowledged.
    """
    producer._message_accumulator.fail_all(KafkaError("the producer was thrown away after a failed delivery"))
    try:
        await ended(producer.stop(), ABANDON_TIMEOUT)
    finally:
        await producer.client.close()  # does nothing when it is closed


@asynccontextmanager
async def open_publisher(cluster: Cluster, deadline: float) -> AsyncIterator[KafkaPublisher]:
    publisher = KafkaPublisher(cluster, deadline)
    try:
        yield publisher
    finally:
        await publisher.close()
