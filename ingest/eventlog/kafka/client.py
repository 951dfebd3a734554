"""What every client of a Kafka cluster shares: a bounded start and stop, and the password of the moment."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from aiokafka import AIOKafkaConsumer, errors
from aiokafka.client import AIOKafkaClient

from ingest.errors import ConfigError
from ingest.eventlog.kafka.cluster import Cluster
from ingest.eventlog.kafka.diagnosis import diagnosed
from ingest.eventlog.kafka.rights import REFUSALS
from ingest.eventlog.kafka.tokens import NoToken

START_TIMEOUT = 30.0  # seconds to reach a broker
BROKER_TIMEOUT = 5.0  # seconds to reach one of the brokers that a bootstrap server names
STOP_TIMEOUT = 10.0  # seconds to leave politely, then connections are cut
FETCH_WAIT_MS = 10  # that a broker holds a fetch beyond the end, where what is read ends somewhere


class Client(Protocol):
    """Any of aiokafka's clients: producer, consumer, admin client."""

    async def start(self) -> None: ...


async def started(client: Client, cluster: Cluster) -> None:
    """Returns when a broker answers, not only a bootstrap server. Raises ConfigError where a person must act."""
    inner: AIOKafkaClient = getattr(client, "client", None) or client._client  # type: ignore[attr-defined]
    if inner._sasl_plain_password is not None:
        _Renewing.make(inner, cluster.credentials.secret)
    doing = f"connect to {cluster}"
    try:
        await asyncio.wait_for(client.start(), START_TIMEOUT)
        await _reach(inner)
    except REFUSALS as exc:  # who may write nowhere gets no producer's id
        raise cluster.meaning(exc, doing, may="Write") from exc
    except (errors.KafkaError, OSError) as exc:  # TimeoutError is an OSError
        raise await diagnosed(cluster.bootstrap, cluster.connection(), cluster.credentials, doing, exc) from exc


class _Renewing(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka keeps the password with which it began. This one asks for it whenever it connects: the file that it is
    in may have changed since."""

    _secret: Callable[[], str]

    @classmethod
    def make(cls, client: AIOKafkaClient, secret: Callable[[], str]) -> None:
        client.__dict__.pop("_sasl_plain_password")
        client._secret = secret
        client.__class__ = cls

    @property
    def _sasl_plain_password(self) -> str:
        try:
            return self._secret()
        except ConfigError as exc:
            raise NoToken(exc) from exc


async def _reach(client: AIOKafkaClient) -> None:
    """A connection that the client will use. Bootstrap servers send us on to brokers, perhaps to ones that we cannot
    reach or do not trust, and aiokafka would go on trying. A broker that refused a token may answer with none."""
    brokers = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(brokers)
    for broker in brokers:
        with suppress(TimeoutError):
            async with asyncio.timeout(BROKER_TIMEOUT):
                if await client.ready(broker):
                    return
    raise errors.NodeNotReadyError(f"none of {len(brokers)} brokers")


async def stopped(consumer: AIOKafkaConsumer) -> None:
    """Leaves the group, or cuts the connections when that takes too long."""
    if not await ended(consumer.stop(), STOP_TIMEOUT):
        await consumer._client.close()


async def ended(stop: Coroutine[None, None, None], seconds: float) -> bool:
    """Whether it came to its end in time; else it is cancelled. In a task of its own: aiokafka cancels tasks of its own
    while it stops, and lets their CancelledError out, which would look like a cancellation of us."""
    stopping = asyncio.create_task(stop)
    try:
        await asyncio.wait({stopping}, timeout=seconds)
    finally:
        stopping.cancel()
    await asyncio.wait({stopping}, timeout=seconds)
    return stopping.done() and not stopping.cancelled() and stopping.exception() is None


@asynccontextmanager
async def open_consumer(cluster: Cluster) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group: for offsets, and for reading partitions that are assigned by hand.

    A broker answers the requests of a connection one after the other, and aiokafka fetches ahead beyond the end; so a
    fetch that finds nothing is not to wait there, or whatever is asked next waits behind it."""
    consumer = AIOKafkaConsumer(
        **cluster.settings(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_bytes=16 * 1024 * 1024,
        fetch_max_wait_ms=FETCH_WAIT_MS,
    )
    try:
        await started(consumer, cluster)
        yield consumer
    finally:
        await stopped(consumer)
