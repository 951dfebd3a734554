"""The event log on Apache Kafka: publisher, subscription, reader and admin of one cluster.

Only aiokafka speaks to the brokers, and only the modules `kafka*.py` of this package know it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition

from ingest.config.credentials import Credentials
from ingest.event import Record
from ingest.eventlog import Admin, Publisher, Reader, StartOffsets, Subscription
from ingest.eventlog.kafka_admin import open_admin
from ingest.eventlog.kafka_client import OPEN, Cluster, open_consumer, translated
from ingest.eventlog.kafka_publisher import PATIENCE, Patience, open_publisher
from ingest.eventlog.kafka_subscription import open_subscription
from ingest.eventlog.kafka_watchdog import Times
from ingest.eventlog.place import missing

DEFAULT_TIMES = Times()
READ_RECORDS = 1_000
READ_WAIT_MS = 1_000
READ_STALL = 60.0  # seconds without a record before the brokers count as gone


class KafkaLog:
    """`bootstrap`: `host:port`, several of them joined by commas. Nothing is connected before a port is opened.
    `credentials`: how the brokers let us in; absent, without TLS and password.
    `patience`: how long a page is waited for. `times`: of memberships in groups."""

    def __init__(
        self,
        bootstrap: str,
        credentials: Credentials = OPEN,
        *,
        patience: Patience = PATIENCE,
        times: Times = DEFAULT_TIMES,
    ) -> None:
        self._cluster = Cluster(bootstrap, credentials)
        self._patience, self._times = patience, times

    def publisher(self) -> AbstractAsyncContextManager[Publisher]:
        return open_publisher(self._cluster, self._patience)

    def subscribe(
        self, topic: str, group: str, start: StartOffsets, *, records: int, bytes: int, wait: float
    ) -> AbstractAsyncContextManager[Subscription]:
        return open_subscription(
            self._cluster, topic, group, start, self._times, records=records, bytes=bytes, wait=wait
        )

    def admin(self) -> AbstractAsyncContextManager[Admin]:
        return open_admin(self._cluster)

    def reader(self) -> AbstractAsyncContextManager[Reader]:
        return _open_reader(self._cluster)


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
                async with aclosing(_read(consumer, TopicPartition(topic, partition), begin, end)) as records:
                    async for record in records:
                        yield record


async def _read(consumer: AIOKafkaConsumer, tp: TopicPartition, begin: int, end: int) -> AsyncGenerator[Record, None]:
    if begin >= end:
        return
    consumer.assign([tp])
    consumer.seek(tp, begin)
    position = begin
    while position < end:
        with translated(f"read {tp.topic}/{tp.partition} from {position}"):
            async with asyncio.timeout(READ_STALL):
                found: Mapping[TopicPartition, Sequence[Record]] = {}
                while not found and position < end:
                    found = await consumer.getmany(timeout_ms=READ_WAIT_MS, max_records=READ_RECORDS)
                    position = await consumer.position(tp)  # also past what is no record: compacted offsets, markers
        for record in found.get(tp, ()):
            if record.offset < end:
                yield record


@asynccontextmanager
async def _open_reader(cluster: Cluster) -> AsyncIterator[KafkaReader]:
    async with open_admin(cluster) as admin:
        yield KafkaReader(cluster, admin)
