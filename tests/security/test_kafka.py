"""Every way into Kafka, as the file describes it, and what a wrong setting says at the start."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

import pytest
import pytest_asyncio

from ingest.config import addresses
from ingest.config.addresses import KafkaAddress
from ingest.config.credentials import credentials
from ingest.config.loader import parse
from ingest.errors import ConfigError, IngestError, LogUnavailable
from ingest.event import Record
from ingest.eventlog.kafka import DEFAULT_TIMES, KafkaLog
from ingest.eventlog.kafka.watchdog import Times
from ingest.redaction import Redactor
from tests.contract.eventlogs import (
    DEADLINE,
    WAIT,
    Store,
    batches_of,
    message,
    new_topic,
    numbered,
    publish,
    read_all,
    records_of,
)
from tests.harness.certificates import Authority
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.harness.names import unique
from tests.security.kafka_guarded import PASSWORD, USER, Guarded

CUTS = 6  # connections, beyond the first ones, that a test waits for


@pytest.fixture(autouse=True)
def secrets_in_the_environment(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", PASSWORD)
    monkeypatch.setenv("WRONG", "not-the-password")
    monkeypatch.setenv("TOKEN", guarded.tokens.token(USER))
    monkeypatch.setenv("EXPIRED", guarded.tokens.token(USER, seconds=-300))


Log = Callable[..., KafkaLog]


@pytest.fixture
def log(guarded: Guarded) -> Log:
    """`log("SASL", mechanism="PLAIN", …)`: the log that a file with these keys means, one of them in each line."""
    files = {"CA": guarded.authority.ca, "CERT": guarded.client.cert, "KEY": guarded.client.key}

    def opened(
        listener: str,
        *,
        host: str = "localhost",
        secrets: Redactor | None = None,
        times: Times = DEFAULT_TIMES,
        **keys: object,
    ) -> KafkaLog:
        lines = ["version: 1", "log:", f"  url: kafka://{guarded.server(listener, host)}", "  security:"]
        lines += [f"    {key}: {files.get(str(value), value)}" for key, value in keys.items()]
        loaded = parse("\n".join(lines))
        redactor = secrets or Redactor()
        address = addresses.log(loaded.config, redactor, loaded.where)
        assert isinstance(address, KafkaAddress) and loaded.config.log is not None
        within = loaded.within("log.security")
        return KafkaLog(address.bootstrap, credentials(loaded.config.log.security, redactor, within), times=times)

    return opened


LOGIN = {"username": USER, "password": "${env:PASSWORD}"}
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "TLS": ("TLS", {"ca": "CA"}),
    "TLS both ways": ("MUTUAL", {"protocol": "SSL", "ca": "CA", "cert": "CERT", "key": "KEY"}),
    "PLAIN": ("SASL", {"mechanism": "PLAIN", **LOGIN, "ca": "CA"}),
    "SCRAM-SHA-256": ("SASL", {"mechanism": "SCRAM-SHA-256", **LOGIN, "ca": "CA"}),
    "SCRAM-SHA-512": ("SASL", {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", **LOGIN, "ca": "CA"}),
    "OAUTHBEARER": ("SASL", {"mechanism": "OAUTHBEARER", "password": "${env:TOKEN}", "ca": "CA"}),
    "SCRAM without TLS": ("OPEN", {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512", **LOGIN}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_topics_are_made_published_consumed_and_read(log: Log, way: str) -> None:
    listener, keys = WAYS[way]
    opened = log(listener, **keys)
    topic = await new_topic(opened)
    messages = numbered(20)
    await publish(opened, topic, messages)
    store = Store()
    async with opened.subscribe(topic, unique("group"), store, records=50, bytes=1_000_000, wait=WAIT) as subscription:
        batches = await batches_of(subscription, len(messages))
        for batch in batches:
            await subscription.commit(batch)
    assert values(records_of(batches)) == values(await read_all(opened, topic)) == {m.value for m in messages}


def values(records: Sequence[Record]) -> set[bytes | None]:
    return {record.value for record in records}


class Wrong(NamedTuple):
    listener: str
    keys: dict[str, str]
    at: str  # the key of `log.security` that the message points at; "" where it is not in the file
    says: str


WRONG = {
    "another password": Wrong(
        "SASL",
        {"mechanism": "PLAIN", "username": USER, "password": "${env:WRONG}", "ca": "CA"},
        "password",
        "does not let us in: Authentication failed: Invalid username or password; look at the user alice",
    ),
    "another password for SCRAM": Wrong(
        "SASL",
        {"mechanism": "SCRAM-SHA-256", "username": USER, "password": "${env:WRONG}", "ca": "CA"},
        "password",
        "invalid credentials with SASL mechanism SCRAM-SHA-256",
    ),
    "an expired token": Wrong(
        "SASL",
        {"mechanism": "OAUTHBEARER", "password": "${env:EXPIRED}", "ca": "CA"},
        "password",
        '{"status":"invalid_token"}; look at the token',
    ),
    "another authority": Wrong("TLS", {"ca": "OTHER"}, "ca", "`ca` must name the file with the certificate of who"),
    "the system's authorities": Wrong("TLS", {"protocol": "SSL"}, "", "`ca` must name the file"),
    "no client certificate": Wrong("MUTUAL", {"ca": "CA"}, "", "does not accept our certificate"),
    "another client certificate": Wrong(
        "MUTUAL",
        {"ca": "CA", "cert": "OTHERS_CERT", "key": "OTHERS_KEY"},
        "cert",
        "does not accept our certificate",
    ),
    "TLS where there is none": Wrong("OPEN", {"protocol": "SSL", "ca": "CA"}, "protocol", "speaks no TLS on this port"),
    "TLS and a user where there is no TLS": Wrong(
        "OPEN",
        {"protocol": "SASL_SSL", "mechanism": "PLAIN", **LOGIN, "ca": "CA"},
        "protocol",
        "speaks no TLS on this port; use one with TLS (protocol: SASL_PLAINTEXT does without)",
    ),
    "no TLS where there is": Wrong(
        "TLS", {"protocol": "PLAINTEXT"}, "protocol", "write `log: {security: {protocol: SSL}}`"
    ),
    "a user without TLS where there is": Wrong(
        "SASL",
        {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", **LOGIN},
        "protocol",
        "write `log: {security: {protocol: SASL_SSL}}`",
    ),
    "a user where none is asked for": Wrong(
        "TLS", {"mechanism": "PLAIN", **LOGIN, "ca": "CA"}, "", "asks for no user on this port; write protocol: SSL"
    ),
    "no user where one is asked for": Wrong(
        "SASL",
        {"protocol": "SSL", "ca": "CA"},
        "protocol",
        "write protocol: SASL_SSL and a mechanism: OAUTHBEARER, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
    ),
    "a mechanism that is not offered": Wrong(
        "ONLY",
        {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512", **LOGIN},
        "mechanism",
        "does not offer SCRAM-SHA-512: OAUTHBEARER",
    ),
    "a name that the certificate does not hold": Wrong(
        "NAMED", {"ca": "CA"}, "", "certificate is not valid for 'localhost'. Write the host name"
    ),
    "brokers of another name behind the first one": Wrong(
        "ELSEWHERE", {"protocol": "SSL", "ca": "CA"}, "", "sends us on to 127.0.0.1:"
    ),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_setting_is_for_a_person_and_says_where_and_why(log: Log, case: str, tmp_path: Path) -> None:
    listener, keys, at, says = WRONG[case]
    other = Authority(tmp_path)
    client = other.issue("other", "client.test")
    files = {"OTHER": other.ca, "OTHERS_CERT": client.cert, "OTHERS_KEY": client.key}
    opened = log(listener, **{key: files.get(value, value) for key, value in keys.items()})
    line = 5 + list(keys).index(at) if at else 4
    for attempt in (_describe, _publish, _subscribe):
        with pytest.raises(ConfigError) as caught:
            await attempt(opened)
        assert says in str(caught.value)
        assert str(caught.value).startswith(f"ingest.yaml:{line}:")


async def _describe(log: KafkaLog) -> None:
    async with log.admin() as admin:
        await admin.describe(["orders"])


async def _publish(log: KafkaLog) -> None:
    await publish(log, "orders", numbered(1))


async def _subscribe(log: KafkaLog) -> None:
    async with log.subscribe("orders", "group", Store(), records=1, bytes=1, wait=WAIT):
        pass


async def test_an_outage_stays_an_outage(log: Log) -> None:
    opened = KafkaLog("localhost:1", log("TLS", ca="CA")._cluster.credentials)
    with pytest.raises(LogUnavailable, match="localhost:1 ConnectionRefusedError"):
        await _describe(opened)


class Counting(Redactor):
    """Counts how often a password or token was asked for, which every new connection does."""

    asked = 0

    def renew(self, slot: str, secret: str) -> None:
        self.asked += 1
        super().renew(slot, secret)


async def test_nothing_is_lost_when_the_broker_cuts_connections_whose_token_is_old(
    log: Log, guarded: Guarded, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(guarded.tokens.token(USER))
    secrets = Counting()
    opened = log(
        "CUT", protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", password=f'"${{file:{file}}}"', secrets=secrets
    )
    topic = await new_topic(opened, partitions=1)
    sent: list[bytes] = []
    got: list[bytes | None] = []
    async with (
        opened.publisher() as publisher,
        opened.subscribe(topic, unique("group"), Store(), records=50, bytes=1_000_000, wait=WAIT) as subscription,
    ):
        await publisher.publish(topic, [message("key", b"first")])
        got += [record.value for record in records_of(await batches_of(subscription, 1))]
        first = secrets.asked
        async with asyncio.timeout(DEADLINE):
            while secrets.asked < first + CUTS:
                file.write_text(guarded.tokens.token(USER))  # as a mounted secret is renewed
                page = numbered(3, first=len(sent))
                sent += [m.value for m in page]
                await publisher.publish(topic, page)
                for batch in await batches_of(subscription, 3):
                    got += [record.value for record in batch.records]
                    await subscription.commit(batch)
    assert got == [b"first", *sent]
    assert [record.value for record in await read_all(opened, topic)] == got


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
async def test_credentials_that_are_refused_while_we_run_are_no_outage_and_are_taken_again_when_they_are_right(
    log: Log, guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    """The broker cuts every connection soon, and lets nobody in again with what the file holds meanwhile."""
    monkeypatch.setattr("ingest.eventlog.kafka.publisher.DOUBT_AFTER", 0.5)
    monkeypatch.setattr("ingest.eventlog.kafka.admin.ASK_PATIENCE", 0.5)
    monkeypatch.setattr("ingest.eventlog.kafka.cluster.REQUEST_TIMEOUT_MS", 2_000)
    right = PASSWORD if mechanism == "PLAIN" else guarded.tokens.token(USER)
    wrong = "not-the-password" if mechanism == "PLAIN" else guarded.tokens.token(USER, seconds=-300)
    file = tmp_path / "secret"
    file.write_text(right)
    user = {"username": USER} if mechanism == "PLAIN" else {}
    opened = log(
        "CUT",
        times=Times(look_every=0.3),
        protocol="SASL_PLAINTEXT",
        mechanism=mechanism,
        password=f'"${{file:{file}}}"',
        **user,
    )
    topic, store = await new_topic(opened), Store()
    async with opened.publisher() as publisher, opened.admin() as admin:
        async with opened.subscribe(topic, unique("g"), store, records=50, bytes=99_999, wait=WAIT) as subscription:
            await publisher.publish(topic, numbered(1))
            await batches_of(subscription, 1)
            file.write_text(wrong)
            for again in (
                lambda: publisher.publish(topic, numbered(1)),
                lambda: admin.describe([topic]),
                subscription.next_batch,
            ):
                with pytest.raises(ConfigError, match=r"ingest\.yaml:7:.* does not let us in: .*; look at the"):
                    async with asyncio.timeout(DEADLINE):
                        while True:
                            await again()
        file.write_text(right)
        await publisher.publish(topic, numbered(1))
        assert sum((await admin.describe([topic]))[topic].end_offsets) >= 2


class Issuer:
    """Answers at `/token` of the fake API as a token endpoint does, until a test says otherwise."""

    def __init__(self, api: FakeApi, guarded: Guarded) -> None:
        self._guarded = guarded
        self.url = f"{api.url}/token"
        self.status, self.body, self.life, self.token = 200, "", 3600.0, ""
        self.asked: list[Request] = []
        api.routes["/token"] = self._answer

    def _answer(self, request: Request) -> Answer:
        self.asked.append(request)
        self.token = self._guarded.tokens.token(USER)
        good = {"access_token": self.token, "token_type": "Bearer", "expires_in": self.life}
        return Answer(request, status=self.status, body=(self.body or json.dumps(good)).encode())


@pytest_asyncio.fixture
async def issuer(guarded: Guarded) -> AsyncIterator[Issuer]:
    async with FakeApi() as api:
        yield Issuer(api, guarded)


def fetching(issuer: Issuer, **more: str) -> dict[str, str]:
    secret = "${env:PASSWORD}"
    keys = {"protocol": "SASL_PLAINTEXT", "mechanism": "OAUTHBEARER", "username": "the client", "password": secret}
    return {**keys, "token_url": issuer.url, **more}


async def test_a_token_is_fetched_with_the_client_credentials_and_shared_until_it_grows_old(
    log: Log, issuer: Issuer
) -> None:
    secrets = Redactor()
    opened = log("ONLY", **fetching(issuer, scopes="[kafka, write]"), secrets=secrets)
    topic = await new_topic(opened)
    await publish(opened, topic, numbered(2))
    assert len(await read_all(opened, topic)) == 2
    [asked] = issuer.asked
    assert asked.method == "POST"
    assert parse_qs(asked.body.decode()) == {"grant_type": ["client_credentials"], "scope": ["kafka write"]}
    assert asked.headers["authorization"] == "Basic " + b64encode(f"the+client:{PASSWORD}".encode()).decode()
    assert secrets.scrub(f"it was {issuer.token}") == "it was ***"


async def test_a_token_without_a_life_left_is_fetched_for_every_connection(log: Log, issuer: Issuer) -> None:
    issuer.life = 0.0
    opened = log("ONLY", **fetching(issuer))
    await _describe(opened)
    fetched = len(issuer.asked)
    await _describe(opened)
    assert 1 < fetched < len(issuer.asked)


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (401, '{"error":"invalid_client"}', ConfigError, '/token answered 401: {"error":"invalid_client"}; look at'),
        (503, "busy", LogUnavailable, "/token answered 503: busy; no access token for Kafka"),
        (200, "<html>", ConfigError, "the answer has no `access_token`; is this the token endpoint?"),
        (200, '{"access_token": 5}', ConfigError, "the answer has no `access_token`"),
    ],
)
async def test_why_there_is_no_token_is_said(
    log: Log, issuer: Issuer, status: int, body: str, kind: type[IngestError], says: str
) -> None:
    issuer.status, issuer.body = status, body
    with pytest.raises(kind) as caught:
        await _describe(log("ONLY", **fetching(issuer)))
    assert says in str(caught.value)
    assert str(caught.value).startswith("ingest.yaml:9:16: POST http://127.0.0.1:")
    assert PASSWORD not in str(caught.value)


async def test_an_issuer_that_is_not_there_is_an_outage(log: Log, issuer: Issuer) -> None:
    keys = fetching(issuer) | {"token_url": "http://127.0.0.1:1/token"}
    with pytest.raises(LogUnavailable, match=r"POST http://127\.0\.0\.1:1/token: no access token: ConnectError"):
        await _describe(log("ONLY", **keys))


async def test_a_token_file_that_vanished_is_named_when_it_is_needed(
    log: Log, guarded: Guarded, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(guarded.tokens.token(USER))
    opened = log("ONLY", protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", password=f'"${{file:{file}}}"')
    await _describe(opened)
    file.unlink()
    with pytest.raises(ConfigError, match=r"ingest\.yaml:7:15: the file .*token cannot be read"):
        await _describe(opened)
