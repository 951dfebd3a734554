"""A cluster: how it is reached, and what its errors mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from aiokafka import errors

from ingest.config.credentials import Credentials
from ingest.errors import ConfigError, IngestError, LogUnavailable
from ingest.eventlog.kafka.diagnosis import diagnosed
from ingest.eventlog.kafka.rights import REFUSALS, missing_right, refusal
from ingest.eventlog.kafka.tokens import NoToken, Tokens

REQUEST_TIMEOUT_MS = 30_000
METADATA_MAX_AGE_MS = 30_000  # new partitions are seen within this time
RETRY_BACKOFF_MS = 200

FOR_A_PERSON = (
    *REFUSALS,
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

    def meaning(
        self, exc: BaseException, doing: str, *, may: str = "Describe", topic: str = "", group: str = ""
    ) -> IngestError:
        """What an error of aiokafka, of the network or of a deadline means. `raise … from exc` is the caller's.

        `doing`: what we did, for the message, as in "read orders"; `may`: the operation that one must be allowed for
        that, on the `topic`, the `group` or the cluster."""
        if isinstance(exc, NoToken):
            return exc.meaning
        right = missing_right(exc, may, topic, group)
        if right is not None:
            return refusal([right], doing, self.bootstrap, self.credentials)
        kind = ConfigError if isinstance(exc, FOR_A_PERSON) else LogUnavailable
        return kind(f"Kafka: {doing}: {type(exc).__name__} {exc}".rstrip())

    @contextmanager
    def translated(self, doing: str, *, may: str = "Describe", topic: str = "", group: str = "") -> Iterator[None]:
        """As `meaning` has it."""
        try:
            yield
        except (errors.KafkaError, OSError) as exc:  # TimeoutError is an OSError
            raise self.meaning(exc, doing, may=may, topic=topic, group=group) from exc

    async def still_lets_us_in(self) -> None:
        """Brokers that fall silent may have stopped letting us in, which aiokafka takes for an outage. Raises
        ConfigError when they say so; that they do not answer raises nothing."""
        if self.credentials.protocol == "PLAINTEXT":
            return
        silence = TimeoutError("no answer")
        error = await diagnosed(self.bootstrap, self.connection(), self.credentials, "connect", silence)
        if isinstance(error, ConfigError):
            raise error

    @cached_property
    def _tokens(self) -> Tokens:
        return Tokens(self.credentials)
