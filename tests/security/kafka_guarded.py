"""A broker with a listener for every way in, and what each of them asks for."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.harness.certificates import Authority, Certificate, Tokens
from tests.harness.kafka import Kafka, Listeners, start_guarded

USER, PASSWORD = "alice", "open-sesame-8"
REAUTH_MS = 1_500  # after which the listener CUT closes a connection that did not authenticate anew

PROTOCOLS = {
    "TLS": "SSL",
    "MUTUAL": "SSL",  # wants a client's certificate
    "SASL": "SASL_SSL",
    "OPEN": "SASL_PLAINTEXT",
    "CUT": "SASL_PLAINTEXT",
    "ONLY": "SASL_PLAINTEXT",  # takes tokens and nothing else
    "NAMED": "SSL",  # its certificate holds another name
    "ELSEWHERE": "SSL",  # sends clients on to a host that its certificate does not name
}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_LOGIN = {
    "PLAIN": f'plain.PlainLoginModule required user_{USER}="{PASSWORD}"',
    "SCRAM-SHA-256": "scram.ScramLoginModule required",
    "SCRAM-SHA-512": "scram.ScramLoginModule required",
    "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule required",
}


class Guarded(NamedTuple):
    kafka: Kafka
    authority: Authority
    client: Certificate
    tokens: Tokens

    def server(self, listener: str, host: str = "localhost") -> str:
        return f"{host}:{self.kafka.listeners[listener]}"


def start(directory: Path) -> Guarded:
    authority, tokens = Authority(directory), Tokens(directory)
    listeners = Listeners(
        PROTOCOLS,
        _properties(authority, tokens),
        advertised={"ELSEWHERE": "127.0.0.1"},
        scram=[f"{name}=[name={USER},password={PASSWORD}]" for name in MECHANISMS if name.startswith("SCRAM")],
        java=[f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.jwks.as_uri()}"],
    )
    return Guarded(start_guarded(directory, listeners), authority, authority.issue("client", "client.test"), tokens)


def _properties(authority: Authority, tokens: Tokens) -> Mapping[str, str]:
    server, other = authority.issue("broker", "localhost"), authority.issue("other", "kafka.example.com")
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        # Kafka 4.1 finds these without a prefix only; with one, it takes tokens of any signature.
        "sasl.oauthbearer.jwt.validator.class": f"{_OAUTH}.BrokerJwtValidator",
        "sasl.oauthbearer.jwks.endpoint.url": tokens.jwks.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "listener.name.named.ssl.keystore.type": "PEM",
        "listener.name.named.ssl.keystore.location": str(other.both),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.cut.oauthbearer.connections.max.reauth.ms": str(REAUTH_MS),
    }
    for listener, protocol in PROTOCOLS.items():
        if protocol.startswith("SASL"):
            prefix = f"listener.name.{listener.lower()}"
            offered = MECHANISMS if listener != "ONLY" else ("OAUTHBEARER",)
            properties[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(offered)
            for mechanism, login in _LOGIN.items():
                own = f"{prefix}.{mechanism.lower()}"
                properties[f"{own}.sasl.jaas.config"] = f"org.apache.kafka.common.security.{login};"
            handler = f"{prefix}.oauthbearer.sasl.server.callback.handler.class"
            properties[handler] = f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
    return properties
