"""Hands out the one producer that all pages share, and has another one made when it cannot go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from ingest import metrics
from ingest.eventlog.kafka.cluster import Cluster
from ingest.eventlog.kafka.producer import Producer

log = structlog.get_logger()


class Supervisor:
    def __init__(self, cluster: Cluster, request_timeout: float) -> None:
        self._cluster, self._request_timeout = cluster, request_timeout
        self._producer: Producer | None = None
        self._former: Producer | None = None  # whose id the next one takes over
        self._changing = asyncio.Lock()  # held while a producer is started

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        """The producer, started when there is none. Raises LogUnavailable and ConfigError."""
        async with self._changing:
            if self._producer is None:
                started = Producer(self._cluster, self._request_timeout)
                await started.start(self._former)
                self._producer = started
            producer = self._producer
        producer.users += 1
        try:
            yield producer
        finally:
            producer.users -= 1
            if producer is not self._producer and not producer.users:
                await producer.abandon()  # the last to leave one that was retired

    async def replace(self, producer: Producer, reason: str) -> None:
        """Give it up at once: every page on it goes on with a new one. Ends when nothing of the old one is pending."""
        self.retire(producer, reason)
        await producer.abandon()

    def retire(self, producer: Producer, reason: str) -> None:
        """Whoever asks next gets a new one; pages that are under way may end on this one."""
        if self._producer is producer:
            self._producer, self._former = None, producer
            metrics.producer_rebuilds.labels(reason).inc()
            log.warning("the Kafka producer is replaced", reason=reason)

    async def close(self) -> None:
        async with self._changing:
            producer, self._producer = self._producer, None
            if producer is not None:
                await producer.abandon()
