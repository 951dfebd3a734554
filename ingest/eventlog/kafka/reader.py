"""Reads a topic of a Kafka cluster from any offset to its end, without a consumer group."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition

from ingest.event import Record
from ingest.eventlog import Admin
from ingest.eventlog.kafka.admin import open_admin
from ingest.eventlog.kafka.client import open_consumer
from ingest.eventlog.kafka.cluster import Cluster
from ingest.eventlog.place import missing

READ_RECORDS = 1_000
READ_WAIT_MS = 1_000
READ_STALL = 60.0  # seconds without a record before the brokers count as gone


class KafkaReader:
    """Each `read` has a consumer of its own, so that several may run at a time."""

    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self._cluster = cluster
        self._admin = admin

    async def read(self, topic: str, start: Mapping[int, int] | None = None) -> AsyncGenerator[Record, None]:
        info = (await self._admin.describe([topic])).get(topic)
        if info is None:
            raise missing(topic)
        async with open_consumer(self._cluster) as consumer:
            for partition, (first, end) in enumerate(zip(info.first_offsets, info.end_offsets, strict=True)):
                begin = max(first, (start or {}).get(partition, 0))
                tp = TopicPartition(topic, partition)
                async with aclosing(_read(self._cluster, consumer, tp, begin, end)) as records:
                    async for record in records:
                        yield record


async def _read(
    cluster: Cluster, consumer: AIOKafkaConsumer, tp: TopicPartition, begin: int, end: int
) -> AsyncGenerator[Record, None]:
    if begin >= end:
        return
    consumer.assign([tp])
    consumer.seek(tp, begin)
    position = begin
    while position < end:
        with cluster.translated(f"read {tp.topic}/{tp.partition} from {position}", may="Read", topic=tp.topic):
            async with asyncio.timeout(READ_STALL):
                found: Mapping[TopicPartition, Sequence[Record]] = {}
                while not found and position < end:
                    found = await consumer.getmany(timeout_ms=READ_WAIT_MS, max_records=READ_RECORDS)
                    position = await consumer.position(tp)  # also past what is no record: compacted offsets, markers
        for record in found.get(tp, ()):
            if record.offset < end:
                yield record


@asynccontextmanager
async def open_reader(cluster: Cluster) -> AsyncIterator[KafkaReader]:
    async with open_admin(cluster) as admin:
        yield KafkaReader(cluster, admin)
