"""Postgres over TLS: what `sslmode` and its files do against a real server, and what a wrong one says at the start."""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

import pytest

from ingest.errors import ConfigError, StoreUnavailable
from ingest.postgres import open_postgres
from migrations.runner import migrate, pending
from tests.harness.certificates import Authority
from tests.harness.names import unique
from tests.harness.postgres import Postgres
from tests.security.conftest import GuardedPostgres


def with_tls(url: str, host: str = "localhost", user: str = "", **parameters: Path | str) -> str:
    parts = urlsplit(url)
    login = user or f"{parts.username}:{parts.password}"
    return urlunsplit(parts._replace(netloc=f"{login}@{host}:{parts.port}", query=urlencode(parameters)))


async def encrypted(url: str) -> tuple[bool, str]:
    """Whether this connection is, and who the server takes us for."""
    async with open_postgres(url, size=1) as postgres, postgres.transaction() as connection:
        row = await connection.fetchrow("SELECT ssl, current_user FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    assert row is not None
    return row[0], row[1]


async def test_the_certificate_and_the_host_name_are_checked(guarded_postgres: GuardedPostgres) -> None:
    url = with_tls(guarded_postgres.server.url, sslmode="verify-full", sslrootcert=guarded_postgres.authority.ca)
    assert await encrypted(url) == (True, "postgres")


async def test_a_certificate_of_ours_can_stand_for_a_password(guarded_postgres: GuardedPostgres) -> None:
    client = guarded_postgres.client
    url = with_tls(
        guarded_postgres.server.url,
        user="certified",
        sslmode="verify-full",
        sslrootcert=guarded_postgres.authority.ca,
        sslcert=client.cert,
        sslkey=client.key,
    )
    assert await encrypted(url) == (True, "certified")


async def test_a_database_is_migrated_over_tls(guarded_postgres: GuardedPostgres) -> None:
    plain = await guarded_postgres.server.create_database(unique("tls"))
    url = with_tls(plain, sslmode="verify-full", sslrootcert=guarded_postgres.authority.ca)
    assert await pending(url) == await migrate(url)
    assert await pending(url) == []


class Wrong(NamedTuple):
    parameters: dict[str, str]
    says: str
    host: str = "localhost"
    user: str = ""


WRONG = {
    "another authority": Wrong(
        {"sslmode": "verify-full", "sslrootcert": "OTHER_CA"},
        "`sslrootcert` must name the file with the certificate of who signed it",
    ),
    "another host name": Wrong(
        {"sslmode": "verify-full", "sslrootcert": "CA"},
        "certificate is not valid for '127.0.0.1'.; write the host name that it holds",
        host="127.0.0.1",
    ),
    "no file": Wrong(
        {"sslmode": "verify-full", "sslrootcert": "NOTHING"}, "sslrootcert: the file NOTHING cannot be read"
    ),
    "no PEM": Wrong(
        {"sslmode": "verify-full", "sslrootcert": "CA", "sslcert": "CERT", "sslkey": "CERT"},
        "is no PEM file with a private key",
    ),
    "no authority at all": Wrong({"sslmode": "verify-full"}, "root certificate file"),
    "no such mode": Wrong({"sslmode": "verify-ful"}, "`sslmode` parameter must be one of"),
    "no TLS where it is wanted": Wrong(
        {"sslmode": "disable"}, "it takes connections with TLS only: write sslmode=verify-full", user="certified"
    ),
    "no certificate where it is wanted": Wrong(
        {"sslmode": "verify-full", "sslrootcert": "CA"},
        "connection requires a valid client certificate",
        user="certified",
    ),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_setting_is_for_a_person_and_says_why(
    guarded_postgres: GuardedPostgres, case: str, tmp_path: Path
) -> None:
    wrong = WRONG[case]
    other = Authority(tmp_path)
    files = {"CA": guarded_postgres.authority.ca, "OTHER_CA": other.ca, "CERT": guarded_postgres.client.cert}
    parameters = {name: str(files.get(value, value)) for name, value in wrong.parameters.items()}
    url = with_tls(guarded_postgres.server.url, wrong.host, wrong.user, **parameters)
    with pytest.raises(ConfigError) as caught:
        await encrypted(url)
    assert wrong.says in str(caught.value)
    assert str(caught.value).startswith(f"cannot connect to Postgres at postgresql://{wrong.host}:")
    assert str(urlsplit(guarded_postgres.server.url).password) not in str(caught.value)


async def test_a_server_without_tls_is_refused(postgres: Postgres, guarded_postgres: GuardedPostgres) -> None:
    url = with_tls(postgres.url, host="127.0.0.1", sslmode="verify-full", sslrootcert=guarded_postgres.authority.ca)
    with pytest.raises(ConfigError, match="the server speaks no TLS; sslmode=disable does without"):
        await encrypted(url)


async def test_a_server_that_hangs_up_on_our_certificate_is_an_outage_with_a_hint(
    guarded_postgres: GuardedPostgres, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path).issue("stranger", "client.test")
    ca = guarded_postgres.authority.ca
    own = {"sslcert": str(stranger.cert), "sslkey": str(stranger.key)}
    url = with_tls(guarded_postgres.server.url, sslmode="verify-full", sslrootcert=ca, **own)
    with pytest.raises(StoreUnavailable, match="does the server trust `sslcert`"):
        await encrypted(url)
