"""Publishes pages to Kafka: a page is done when every message of it is acknowledged, or found to be one that the topic
will never take."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka.errors import KafkaError

from ingest.errors import LogUnavailable
from ingest.event import Message
from ingest.eventlog import Published, by_partition
from ingest.eventlog.kafka.admin import max_message_bytes
from ingest.eventlog.kafka.batches import Page
from ingest.eventlog.kafka.cluster import Cluster
from ingest.eventlog.kafka.delivery import Delivery
from ingest.eventlog.kafka.lane import Lane
from ingest.eventlog.kafka.supervisor import Supervisor
from ingest.eventlog.kafka.unacked import Unacknowledged

STUCK_AFTER = 2  # request time-outs without a word from the brokers, after which the producer is replaced
LIMIT_AGE = 300.0  # seconds after which max.message.bytes is read again
LOOK_EVERY = 1.0  # seconds between looks at a page that waits
DOUBT_AFTER = 10.0  # seconds without an acknowledgement, after which the brokers are asked whether they let us in


class Patience(NamedTuple):
    """Seconds for all acknowledgements of a page, and for one answer of a broker."""

    deadline: float = 120.0
    request: float = 30.0


PATIENCE = Patience()


class _Limit(NamedTuple):
    bytes: int  # max.message.bytes
    read_at: float  # time.monotonic()


class KafkaPublisher:
    """Made by `open_publisher`. Pages may be published at the same time; they share one producer."""

    def __init__(self, cluster: Cluster, patience: Patience) -> None:
        self._cluster, self._patience = cluster, patience
        self._producers = Supervisor(cluster, patience.request)
        self._unacknowledged = Unacknowledged()
        self._limits: dict[str, _Limit] = {}

    async def publish(self, topic: str, messages: Sequence[Message]) -> Published:
        if not messages:
            return Published(0, 0, ())
        with self._unacknowledged.page(topic):
            page = Page(messages, await self._limit(topic), int(time.time() * 1000), [])
            delivery = Delivery(
                self._cluster, topic, page, self._producers, self._unacknowledged, lambda: self._limit(topic, 0.0)
            )
            try:
                async with asyncio.timeout(self._patience.deadline):
                    await self._deliver(delivery)
            except TimeoutError as exc:
                raise LogUnavailable(
                    f"Kafka: publish to {topic}: {delivery.acknowledged} of {len(messages)} messages acknowledged in"
                    f" {self._patience.deadline:.0f} s{delivery.waited_for()}"
                ) from exc
            return delivery.published()

    async def close(self) -> None:
        """Bounded: whatever a cancelled `publish` left is dropped, as no cursor stands for it."""
        await self._producers.close()

    async def _deliver(self, delivery: Delivery) -> None:
        lanes = [Lane(delivery, n, deque([part])) for n, part in (await self._parts(delivery)).items()]
        try:
            async with asyncio.TaskGroup() as group:
                running = {group.create_task(lane.run()) for lane in lanes}
                while running:
                    _, running = await asyncio.wait(running, timeout=LOOK_EVERY)
                    if running:
                        await self._look(delivery.topic, lanes)
                        if delivery.silent(DOUBT_AFTER):
                            await self._cluster.still_lets_us_in()
        except BaseExceptionGroup as group_of:
            first = group_of.exceptions[0]
            raise first from first.__cause__

    async def _parts(self, delivery: Delivery) -> Mapping[int, Sequence[int]]:
        """Partition → indexes of its messages, in order."""
        topic = delivery.topic
        async with self._producers.producer() as producer:
            if not producer.knows(topic):
                await self._limit(topic, LOOK_EVERY)  # else a topic that is gone would be waited for
            try:
                partitions = len(await producer.partitions(topic))
            except KafkaError as exc:
                raise delivery.meaning(exc) from exc
        return by_partition(delivery.page.messages, partitions)

    async def _look(self, topic: str, lanes: Sequence[Lane]) -> None:
        """While a page waits. Raises ConfigError when its topic is gone."""
        for lane in lanes:
            await lane.look(STUCK_AFTER * self._patience.request)
        for producer in {lane.producer for lane in lanes}:
            if producer is not None and (topic in producer.doubted or not producer.knows(topic)):
                try:
                    await self._limit(topic, 0.0)
                except LogUnavailable:
                    return
                producer.doubted.discard(topic)

    async def _limit(self, topic: str, age: float = LIMIT_AGE) -> int:
        """max.message.bytes, read at most `age` seconds ago. Raises ConfigError when there is no such topic, and
        LogUnavailable."""
        known = self._limits.get(topic)
        if known is None or time.monotonic() - known.read_at > age:
            self._limits.pop(topic, None)
            known = _Limit(await max_message_bytes(self._cluster, topic), time.monotonic())
            self._limits[topic] = known
        return known.bytes


@asynccontextmanager
async def open_publisher(cluster: Cluster, patience: Patience) -> AsyncIterator[KafkaPublisher]:
    publisher = KafkaPublisher(cluster, patience)
    try:
        yield publisher
    finally:
        await publisher.close()
