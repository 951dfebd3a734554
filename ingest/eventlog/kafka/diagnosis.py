"""Why a broker does not let us in: asked after a failed start, on connections of its own.

aiokafka tries one server after the other, logs what each said, and raises that none of them answered. Here each is
asked again, and an answer that only a person can change becomes a ConfigError that says what to try. What aiokafka 0.14
raises in each case was measured against Kafka 4.1:

    unknown CA, other host name        SSLCertVerificationError
    client certificate wanted          closed, with an SSLError as cause or not (TLS 1.3: after the handshake)
    TLS to a port without              ConnectionResetError; the port answers in the clear
    no TLS to a port with              closed; the port answers a TLS handshake
    password, token                    SaslAuthenticationFailed; for OAUTHBEARER closed, see `_Asking`
    mechanism not offered              UnsupportedSaslMechanismError
    SASL where none is asked for       IllegalSaslStateError
    no SASL where it is asked for      closed at the first request; a handshake for SASL is answered
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka import errors
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator, collect_hosts
from aiokafka.protocol.admin import SaslHandShakeRequest
from aiokafka.protocol.metadata import MetadataRequest

from ingest.config.credentials import Credentials
from ingest.errors import ConfigError, IngestError, LogUnavailable
from ingest.eventlog.kafka.tokens import NoToken
from ingest.tls import HOST_MISMATCH

LIMIT = 10.0  # seconds for all servers
ALERT_WAIT = 4.0  # seconds for a broker to refuse our certificate; one that takes it says nothing

Server = tuple[str, int]  # host, port
Arguments = Mapping[str, Any]  # of aiokafka's connection


class Finding(NamedTuple):
    server: str
    text: str
    key: str | None = None  # of `log.security`, where a person must act there; else it may pass


async def diagnosed(
    bootstrap: str, arguments: Arguments, credentials: Credentials, doing: str, raised: BaseException
) -> IngestError:
    """What kept us from doing so, by what its servers say now. `arguments`: of aiokafka's connections."""
    servers = [(host, port) for host, port, _ in collect_hosts(bootstrap, randomize=False)]
    try:
        async with asyncio.timeout(LIMIT):
            found = await asyncio.gather(*(_ask(server, arguments, credentials) for server in servers))
    except NoToken as exc:
        return exc.meaning
    except TimeoutError:
        found = []
    for finding in found:
        if finding is not None and finding.key is not None:
            return ConfigError(f"{credentials.where(finding.key)}: Kafka at {finding.server} {finding.text}")
    said = "; ".join(f"{finding.server} {finding.text}" for finding in found if finding is not None)
    return LogUnavailable(f"Kafka: {doing}: {said or f'{type(raised).__name__} {raised}'.rstrip()}")


async def _ask(server: Server, arguments: Arguments, credentials: Credentials) -> Finding | None:
    """None: it lets us in, and so do the brokers that it names (the last of them, where all do not)."""
    name = f"{server[0]}:{server[1]}"
    try:
        brokers = await _brokers(server, arguments)
    except NoToken:
        raise
    except (errors.KafkaError, OSError) as exc:
        return await _meaning(server, name, exc, arguments, credentials)
    refused = None
    for broker in brokers:
        if broker == server:
            return None
        try:
            await _brokers(broker, arguments)
        except (errors.KafkaError, OSError) as exc:
            sent = f"{name} sends us on to {broker[0]}:{broker[1]} (advertised.listeners), which"
            refused = await _meaning(broker, sent, exc, arguments, credentials)
        else:
            return None
    return refused


async def _brokers(server: Server, arguments: Arguments) -> Sequence[Server]:
    async with _connection(server, arguments) as connection:
        metadata = await connection.send(MetadataRequest([]))
        return [(broker[1], broker[2]) for broker in metadata.brokers]


async def _meaning(server: Server, name: str, exc: Exception, arguments: Arguments, has: Credentials) -> Finding:
    def person(key: str, text: str) -> Finding:
        return Finding(name, text, key)

    if isinstance(exc, ssl.SSLCertVerificationError):
        why = f"shows a certificate that is not accepted: {exc.verify_message}"
        if exc.verify_code in HOST_MISMATCH:
            return person("url", f"{why} Write the host name that its certificate holds")
        return person("ca", f"{why}; `ca` must name the file with the certificate of who signed it")
    if isinstance(exc, errors.SaslAuthenticationFailed):
        who = f" {has.username}" if has.username else ""
        what = "the token" if has.mechanism == "OAUTHBEARER" else f"the user{who}, `password` and `mechanism`"
        return person("password", f"does not let us in: {_text(exc)}; look at {what}")
    if isinstance(exc, errors.UnsupportedSaslMechanismError):
        return person("mechanism", f"does not offer {has.mechanism}: {', '.join(await _offered(server, arguments))}")
    if isinstance(exc, errors.IllegalSaslStateError):
        other = "SSL" if has.protocol == "SASL_SSL" else "PLAINTEXT"
        return person("protocol", f"asks for no user on this port; write protocol: {other}, or another port")
    if isinstance(exc, errors.AuthenticationFailedError | errors.AuthenticationMethodNotSupported):
        return person("password", f"does not let us in: {_text(exc)}")
    tls = has.protocol.endswith("SSL")
    if tls and isinstance(exc, OSError) and await _answers_in_the_clear(server, arguments):
        other = has.protocol.replace("SSL", "PLAINTEXT")
        return person("protocol", f"speaks no TLS on this port; use one with TLS (protocol: {other} does without)")
    if not tls and await _speaks_tls(server):
        other = "SASL_SSL" if has.protocol == "SASL_PLAINTEXT" else "SSL"
        return person("protocol", f"speaks TLS on this port: write `log: {{security: {{protocol: {other}}}}}`")
    if not has.protocol.startswith("SASL") and (offered := await _offered(server, arguments)):
        other = "SASL_SSL" if tls else "SASL_PLAINTEXT"
        return person("protocol", f"asks who we are: write protocol: {other} and a mechanism: {', '.join(offered)}")
    if has.tls is not None and (alert := await _alert(server, has.tls)):
        why = f"does not accept our certificate: {alert.replace('_', ' ').lower()}"
        return person("cert", f"{why}; `cert` and `key` must name one that it trusts")
    return Finding(name, f"{type(exc).__name__} {exc}".rstrip())


def _text(exc: errors.KafkaError) -> str:
    return str(exc.args[0]) if exc.args and exc.args[0] else type(exc).__name__


async def _answers_in_the_clear(server: Server, arguments: Arguments) -> bool:
    try:
        async with _connection(server, {**arguments, "security_protocol": "PLAINTEXT"}):
            return True
    except (errors.KafkaError, OSError):
        return False


async def _offered(server: Server, arguments: Arguments) -> Sequence[str]:
    """The SASL mechanisms of this port; none where it asks for no SASL or does not answer."""
    plain = {"SASL_SSL": "SSL", "SASL_PLAINTEXT": "PLAINTEXT"}
    protocol = arguments.get("security_protocol", "PLAINTEXT")
    try:
        async with _connection(server, {**arguments, "security_protocol": plain.get(protocol, protocol)}) as connection:
            answer = await connection.send(SaslHandShakeRequest("?"))
            return sorted(answer.enabled_mechanisms)
    except (errors.KafkaError, OSError):
        return []


async def _speaks_tls(server: Server) -> bool:
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE  # it is asked, and told nothing
    try:
        _, writer = await asyncio.open_connection(*server, ssl=anyone)
    except ssl.SSLError as exc:
        return "ALERT" in (exc.reason or "")
    except OSError:
        return False
    writer.close()
    return True


async def _alert(server: Server, tls: ssl.SSLContext) -> str | None:
    """With what a broker ends a TLS connection on which we say nothing. (Where we do, its alert may be lost.)"""
    writer = None
    try:
        reader, writer = await asyncio.open_connection(*server, ssl=tls)
        async with asyncio.timeout(ALERT_WAIT):
            await reader.read(1)
    except ssl.SSLError as exc:
        return exc.reason
    except OSError:  # TimeoutError is one
        pass
    finally:
        if writer is not None:
            writer.close()
    return None


class _connection:
    """`async with`: one that stands."""

    def __init__(self, server: Server, arguments: Arguments) -> None:
        self._connection = _Asking(*server, **arguments)

    async def __aenter__(self) -> AIOKafkaConnection:
        await self._connection.connect()
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()


class _Asking(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka takes every answer to a token for a yes. A broker that refuses one answers with the reason, and fails
    the login when that was acknowledged (RFC 7628, 3.2.3)."""

    def authenticator_oauth(self) -> OAuthAuthenticator:
        return _AskingOAuth(sasl_oauth_token_provider=self._sasl_oauth_token_provider)


class _AskingOAuth(OAuthAuthenticator):  # type: ignore[misc]  # aiokafka has no types
    async def step(self, payload: bytes | None) -> Any:
        return (b"\x01", True) if payload else await super().step(payload)
