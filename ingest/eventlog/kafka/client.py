"""What every client of a Kafka cluster shares: settings, a bounded start and stop, and what aiokafka's errors mean."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from aiokafka import AIOKafkaConsumer, errors
from aiokafka.client import AIOKafkaClient

from ingest.config.credentials import Credentials
from ingest.errors import ConfigError, IngestError, LogUnavailable
from ingest.eventlog.kafka.diagnosis import diagnosed
from ingest.eventlog.kafka.tokens import NoToken, Tokens

START_TIMEOUT = 30.0  # seconds to reach a broker
BROKER_TIMEOUT = 5.0  # seconds to reach one of the brokers that a bootstrap server names
STOP_TIMEOUT = 10.0  # seconds to leave politely, then connections are cut
REQUEST_TIMEOUT_MS = 30_000
METADATA_MAX_AGE_MS = 30_000  # new partitions are seen within this time
RETRY_BACKOFF_MS = 200
FETCH_WAIT_MS = 10  # that a broker holds a fetch beyond the end, where what is read ends somewhere

FOR_A_PERSON = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.AuthenticationFailedError,
    errors.AuthenticationMethodNotSupported,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.InvalidTopicError,
    errors.InvalidGroupIdError,
    errors.InconsistentGroupProtocolError,
)


OPEN = Credentials("PLAINTEXT")


@dataclass(frozen=True)
class Cluster:
    """Which brokers, and how they let us in."""

    bootstrap: str  # host:port, several of them joined by commas
    credentials: Credentials = OPEN

    def __str__(self) -> str:
        return self.bootstrap

    def settings(self) -> dict[str, object]:
        """Arguments that every aiokafka client takes."""
        return {
            **self.connection(),
            "bootstrap_servers": self.bootstrap,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
        }

    def connection(self) -> dict[str, object]:
        """Those of them that a single connection takes. The password is the one of this moment."""
        has = self.credentials
        found: dict[str, object] = {"client_id": "ingest", "request_timeout_ms": REQUEST_TIMEOUT_MS}
        found |= {"security_protocol": has.protocol, "ssl_context": has.tls}
        if has.mechanism == "OAUTHBEARER":
            found |= {"sasl_mechanism": has.mechanism, "sasl_oauth_token_provider": self._tokens}
        elif has.mechanism is not None:
            found |= {"sasl_mechanism": has.mechanism, "sasl_plain_username": has.username}
            found["sasl_plain_password"] = has.secret()
        return found

    @cached_property
    def _tokens(self) -> Tokens:
        return Tokens(self.credentials)


class Client(Protocol):
    """Any of aiokafka's clients: producer, consumer, admin client."""

    async def start(self) -> None: ...


def meaning(exc: BaseException, doing: str) -> IngestError:
    """What an error of aiokafka, of the network or of a deadline means. `raise … from exc` is the caller's."""
    if isinstance(exc, NoToken):
        return exc.meaning
    kind = ConfigError if isinstance(exc, FOR_A_PERSON) else LogUnavailable
    return kind(f"Kafka: {doing}: {type(exc).__name__} {exc}".rstrip())


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """`doing`: what we did, for the message, as in "commit offsets of orders"."""
    try:
        yield
    except (errors.KafkaError, OSError) as exc:  # TimeoutError is an OSError
        raise meaning(exc, doing) from exc


async def started(client: Client, cluster: Cluster) -> None:
    """Returns when a broker answers, not only a bootstrap server. Raises ConfigError where a person must act."""
    try:
        await asyncio.wait_for(client.start(), START_TIMEOUT)
        await _reach(getattr(client, "client", None) or client._client)  # type: ignore[attr-defined]
    except (errors.KafkaError, OSError) as exc:  # TimeoutError is an OSError
        doing = f"connect to {cluster}"
        raise await diagnosed(cluster.bootstrap, cluster.connection(), cluster.credentials, doing, exc) from exc


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
