"""Where log, store and state are: the file, the environment, the embedded default, in this order."""

from pathlib import Path

import pytest

from ingest.config import addresses as places
from ingest.config.addresses import Addresses, KafkaAddress, PostgresAddress, SqliteAddress, addresses
from ingest.config.loader import parse
from ingest.errors import ConfigError
from ingest.redaction import Redactor

EMBEDDED = SqliteAddress(Path(".ingest/ingest.db"))


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INGEST_LOG_URL", "INGEST_STORE_URL", "INGEST_STATE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


def read(keys: str = "", secrets: Redactor | None = None) -> Addresses:
    loaded = parse(f"version: 1\n{keys}")
    return addresses(loaded.config, secrets or Redactor(), loaded.where)


def test_the_default_is_one_embedded_file() -> None:
    assert read() == Addresses(EMBEDDED, EMBEDDED, EMBEDDED)


def test_the_environment_comes_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGEST_LOG_URL", "kafka://h1:9092,h2:9092")
    monkeypatch.setenv("INGEST_STORE_URL", "postgresql://h/store")
    found = read()
    assert found.log == KafkaAddress("h1:9092,h2:9092")
    assert found.store == found.state == PostgresAddress("postgresql://h/store")
    monkeypatch.setenv("INGEST_STATE_URL", "sqlite:////var/state.db")
    assert read().state == SqliteAddress(Path("/var/state.db"))


def test_the_file_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGEST_LOG_URL", "kafka://h1:9092")
    monkeypatch.setenv("INGEST_STATE_URL", "postgresql://h/env")
    found = read("log: sqlite:///log.db\nstate: postgres://h/file")
    assert found.log == SqliteAddress(Path("log.db"))
    assert found.state == PostgresAddress("postgres://h/file")


def test_a_process_that_needs_the_state_alone_needs_no_secret_of_the_store() -> None:
    config = parse("version: 1\nstore: ${env:DATABASE_URL}\nstate: postgresql://h/state").config
    assert places.state(config, Redactor()) == PostgresAddress("postgresql://h/state")


def test_a_reference_that_is_not_set_is_named_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        read("store: ${env:DATABASE_URL}")
    assert str(caught.value) == "ingest.yaml:2:8: the environment variable DATABASE_URL is not set"


def test_a_bad_url_is_refused_with_the_place_it_came_from_and_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INGEST_STORE_URL", "mysql://user:hidden@h/db")
    with pytest.raises(ConfigError, match=r"INGEST_STORE_URL: `mysql://` is no database") as caught:
        read()
    assert "hidden" not in str(caught.value)


def test_passwords_become_secrets_in_every_spelling_and_are_never_shown() -> None:
    secrets = Redactor()
    found = read("store: postgresql://user:p%40ssword@h:5432/db?sslpassword=other-one", secrets)
    assert secrets.scrub("p@ssword p%40ssword other-one user") == "*** *** *** user"
    assert str(found.store) == "postgresql://h:5432/db"
    assert "ssword" not in repr(found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("log: kafka://user:pw@h:9092", "a user and password for Kafka stand in `log.security`, not in the URL"),
        ("log: kafka://h:9092/topic", "`h:9092/topic` is no Kafka server"),
        ("log: 'kafka://'", "`` is no Kafka server"),
        ("log: postgresql://h/db", "`postgresql://` is no event log"),
        ("store: kafka://h:9092", "`kafka://` is no database"),
        ("store: postgresql://h:port/db", "this is no PostgreSQL URL"),
        ("store: sqlite:///x?mode=ro", "a SQLite URL is sqlite:///PATH"),
    ],
)
def test_a_url_of_another_kind_is_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(line)


def test_an_address_of_several_hosts_is_one_with_a_host_each_and_its_password_is_a_secret() -> None:
    secrets = Redactor()
    hosts = "user:hush-hush@a:5433,[::1],b.example:5434"
    found = read(f'store: "postgresql://{hosts}/db?target_session_attrs=read-write"', secrets).store
    assert isinstance(found, PostgresAddress)
    assert str(found) == "postgresql://a:5433,[::1],b.example:5434/db"
    assert found.hosts() == [
        f"postgresql://user:hush-hush@{host}/db?target_session_attrs=read-write"
        for host in ("a:5433", "[::1]", "b.example:5434")
    ]
    assert "hush" not in secrets.scrub(found.url)


@pytest.mark.parametrize("hosts", ["a:x,b", "a,b:99999", "a:5432,b:5433:1"])
def test_a_port_of_one_of_several_hosts_that_is_none_is_refused(hosts: str) -> None:
    with pytest.raises(ConfigError, match="no PostgreSQL URL"):
        read(f'store: "postgresql://{hosts}/db"')
