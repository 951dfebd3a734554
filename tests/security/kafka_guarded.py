"""A broker with a listener for every way in, what each of them asks for, and who may do what there.

Who comes in by the plain listener may do everything, and so may USER and the holder of the client's certificate.
STRANGERS may do nothing that a test did not allow."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from tests.harness.certificates import Authority, Certificate, Tokens
from tests.harness.kafka import Kafka, Listeners, start_guarded

USER, PASSWORD = "alice", "open-sesame-8"
CERTIFIED = "client"  # by their certificate
STRANGERS = ("bob", "dave")  # with the same password, by PLAIN
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
    "PLAIN": "plain.PlainLoginModule required " + " ".join(f'user_{name}="{PASSWORD}"' for name in (USER, *STRANGERS)),
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
    client = authority.issue(CERTIFIED, "client.test")
    listeners = Listeners(
        PROTOCOLS,
        _properties(authority, tokens),
        advertised={"ELSEWHERE": "127.0.0.1"},
        scram=[f"{name}=[name={USER},password={PASSWORD}]" for name in MECHANISMS if name.startswith("SCRAM")],
        java=[f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.jwks.as_uri()}"],
    )
    return Guarded(start_guarded(directory, listeners), authority, client, tokens)


def _properties(authority: Authority, tokens: Tokens) -> Mapping[str, str]:
    server, other = authority.issue("broker", "localhost"), authority.issue("other", "kafka.example.com")
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:{CERTIFIED}",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/,DEFAULT",
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
        "listener.name.cut.plain.connections.max.reauth.ms": str(REAUTH_MS),
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


_KINDS = {"topic": 2, "group": 3, "cluster": 4}
_OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10, "IdempotentWrite": 12}
_LITERAL, _ALLOW, _ANY_HOST, _CLUSTER = 3, 3, "*", "kafka-cluster"


async def allow(kafka: Kafka, user: str, operation: str, kind: str, name: str = _CLUSTER) -> None:
    """As kafka-acls.sh does with `--add`."""
    await _change(kafka, CreateAclsRequest, user, operation, kind, name)


async def forbid(kafka: Kafka, user: str, operation: str, kind: str, name: str = _CLUSTER) -> None:
    """What was allowed before: as kafka-acls.sh does with `--remove`."""
    await _change(kafka, DeleteAclsRequest, user, operation, kind, name)


async def _change(
    kafka: Kafka,
    request: type[CreateAclsRequest | DeleteAclsRequest],
    user: str,
    operation: str,
    kind: str,
    name: str,
) -> None:
    rule = (_KINDS[kind], name, _LITERAL, f"User:{user}", _ANY_HOST, _OPERATIONS[operation], _ALLOW)
    async with kafka.admin() as admin:
        client = admin._client
        answer = await client.send(client.get_random_node(), request(*rule))
    [(code, text, *_)] = answer.creation_responses if request is CreateAclsRequest else answer.filter_responses
    assert code == 0, text
