"""`log.security`: what it takes, what contradicts itself, and what is meant where little is said."""

import re

import pytest

from ingest.config import addresses
from ingest.config.addresses import KafkaAddress, SqliteAddress
from ingest.config.credentials import credentials
from ingest.config.loader import parse
from ingest.config.model import Log, Security
from ingest.config.problems import ConfigErrors
from ingest.errors import ConfigError
from ingest.redaction import Redactor

LOGIN = "username: me, password: '${env:PASSWORD}'"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INGEST_LOG_URL", raising=False)
    monkeypatch.setenv("PASSWORD", "open-sesame")


def security(keys: str) -> Security:
    log = parse(f"version: 1\nlog: {{security: {{{keys}}}}}").config.log
    assert log is not None and log.security is not None
    return log.security


def mistakes(keys: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        security(keys)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("keys", "protocol"),
    [
        ("ca: /ca.crt", "SSL"),
        ("cert: /c, key: /k", "SSL"),
        (f"mechanism: PLAIN, {LOGIN}", "SASL_SSL"),
        (f"mechanism: SCRAM-SHA-512, {LOGIN}, ca: /ca.crt", "SASL_SSL"),
        (f"protocol: SASL_PLAINTEXT, mechanism: PLAIN, {LOGIN}", "SASL_PLAINTEXT"),
        ("protocol: PLAINTEXT", "PLAINTEXT"),
    ],
)
def test_a_protocol_that_is_not_said_is_one_with_tls(keys: str, protocol: str) -> None:
    assert security(keys).way == protocol


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ("", "`security` is empty: say `protocol`, or leave it out"),
        ("protocol: SSLL", "`SSLL` is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, did you mean `SSL`?"),
        ("protocol: sasl_ssl", "did you mean `SASL_SSL`?"),
        ("mechanism: scram-sha-512", "did you mean `SCRAM-SHA-512`?"),
        ("mechanism: GSSAPI", "`GSSAPI` is not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        ("protocl: SSL", "unknown key `protocl`, did you mean `protocol`?"),
        ("linger_ms: 5", "unknown key `linger_ms`; known here: protocol, mechanism"),
        (
            f"protocol: SSL, mechanism: PLAIN, {LOGIN}",
            "`mechanism` means nothing with protocol: SSL; write protocol: SASL_SSL",
        ),
        (
            f"protocol: PLAINTEXT, {LOGIN}",
            "`username` means nothing with protocol: PLAINTEXT; write protocol: SASL_PLAINTEXT",
        ),
        ("protocol: SASL_SSL", "`mechanism` is missing: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        (LOGIN, "`mechanism` is missing: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        ("mechanism: PLAIN, password: '${env:P}'", "`username` is missing: PLAIN needs one"),
        ("mechanism: SCRAM-SHA-256, username: me", "`password` is missing: SCRAM-SHA-256 needs one"),
        ("mechanism: PLAIN, username: me, password: secret", "secrets only by reference"),
        ("mechanism: OAUTHBEARER", "`password` is missing: the token, or say `token_url`"),
        (
            "mechanism: OAUTHBEARER, token_url: https://x/token, password: '${env:P}'",
            "`username` is missing: the client id of `token_url`",
        ),
        (
            "mechanism: OAUTHBEARER, token_url: https://x/token, username: me",
            "`password` is missing: the client secret of `token_url`",
        ),
        (
            f"mechanism: OAUTHBEARER, {LOGIN}",
            "`username` means nothing without `token_url`: the token says who we are",
        ),
        ("mechanism: OAUTHBEARER, password: '${env:P}', scopes: [a]", "`scopes` mean nothing without `token_url`"),
        (
            f"mechanism: PLAIN, {LOGIN}, token_url: https://x/token",
            "`token_url` means nothing with mechanism: PLAIN; write mechanism: OAUTHBEARER",
        ),
        (f"mechanism: OAUTHBEARER, {LOGIN}, token_url: x/token", "`token_url` must be an absolute http or https URL"),
        (
            f"mechanism: OAUTHBEARER, {LOGIN}, token_url: 'https://me:pw@x/token'",
            "`token_url` holds a user name or password; they belong in `username` and `password`",
        ),
        ("protocol: PLAINTEXT, ca: /ca", "`ca` means nothing with protocol: PLAINTEXT; write protocol: SSL"),
        (
            f"protocol: SASL_PLAINTEXT, mechanism: PLAIN, {LOGIN}, ca: /ca",
            "`ca` means nothing with protocol: SASL_PLAINTEXT; write protocol: SASL_SSL",
        ),
        ("cert: /c", "`cert` without `key`: a client's certificate needs both"),
        ("key: /k", "`key` without `cert`: a client's certificate needs both"),
        ("ca: '${file:/ca.crt}'", "`ca` must be the path of a PEM file: /etc/kafka/tls/ca.crt"),
    ],
)
def test_what_contradicts_itself_is_refused_with_what_to_write(keys: str, wrong: str) -> None:
    said = mistakes(keys)
    assert any(re.match(r"ingest\.yaml:2:\d+: ", line) and wrong in line for line in said), said


def test_all_mistakes_are_reported_at_once() -> None:
    said = mistakes("mechanism: PLAIN, token_url: https://x/token, cert: /c")
    assert [line.partition(": ")[0] for line in said] == [
        "ingest.yaml:2:29",  # username
        "ingest.yaml:2:29",  # password
        "ingest.yaml:2:47",
        "ingest.yaml:2:70",
    ]


def test_a_sqlite_file_has_no_security() -> None:
    with pytest.raises(ConfigErrors, match="`security` is for Kafka, and `url` is a SQLite file"):
        parse("version: 1\nlog: {url: 'sqlite:///x.db', security: {protocol: SSL}}")
    with pytest.raises(ConfigErrors, match=r"ingest\.yaml:3:12: `security` is empty"):
        parse("version: 1\nlog:\n  security:")


def test_the_url_may_come_from_the_environment_and_its_security_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = parse("version: 1\nlog: {security: {protocol: SSL}}")
    assert isinstance(addresses.log(loaded.config, Redactor(), loaded.where), SqliteAddress)
    monkeypatch.setenv("INGEST_LOG_URL", "kafka://broker:9093")
    assert addresses.log(loaded.config, Redactor(), loaded.where) == KafkaAddress("broker:9093")


def test_a_url_alone_is_neither_encrypted_nor_guarded() -> None:
    assert parse("version: 1\nlog: kafka://h:9092").config.log == Log(url="kafka://h:9092")
    open_to_all = credentials(None, Redactor())
    assert (open_to_all.protocol, open_to_all.mechanism, open_to_all.tls) == ("PLAINTEXT", None, None)


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        (f"protocol: SASL_PLAINTEXT, mechanism: PLAIN, {LOGIN}", "events and the password travel to Kafka"),
        (f"protocol: SASL_PLAINTEXT, mechanism: SCRAM-SHA-256, {LOGIN}", "events travel to Kafka in the clear"),
        (f"mechanism: OAUTHBEARER, {LOGIN}, token_url: 'http://x/token'", "the client secret travels to `token_url`"),
        (f"mechanism: PLAIN, {LOGIN}", None),
        ("protocol: PLAINTEXT", None),
    ],
)
def test_what_travels_in_the_clear_is_warned_of(keys: str, warned: str | None) -> None:
    exposed = security(keys).exposed
    assert exposed == warned if warned is None else str(exposed).startswith(warned)


def test_a_password_is_masked_from_the_moment_it_is_read_and_only_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = Redactor()
    found = credentials(security(f"protocol: SASL_PLAINTEXT, mechanism: PLAIN, {LOGIN}"), secrets)
    assert secrets.scrub("me: open-sesame") == "me: ***"
    assert "open-sesame" not in repr(found)
    monkeypatch.setenv("PASSWORD", "another-one")
    assert found.secret() == "another-one"
    assert secrets.scrub("open-sesame another-one") == "open-sesame ***"


def test_everything_that_is_missing_is_named_with_its_place() -> None:
    loaded = parse(
        "version: 1\nlog:\n  security:\n"
        "    mechanism: PLAIN\n    username: ${env:NO_USER}\n    password: ${env:NO_PASSWORD}"
    )
    assert loaded.config.log is not None
    with pytest.raises(ConfigError) as caught:
        credentials(loaded.config.log.security, Redactor(), loaded.within("log.security"))
    assert str(caught.value).splitlines() == [
        "ingest.yaml:5:15: the environment variable NO_USER is not set",
        "ingest.yaml:6:15: the environment variable NO_PASSWORD is not set",
    ]
