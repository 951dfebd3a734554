"""Servers that ask who we are and show who they are."""

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import asyncpg
import pytest
import pytest_asyncio

from tests.harness import postgres as postgres_server
from tests.harness.certificates import Authority, Certificate
from tests.harness.postgres import Postgres
from tests.security import kafka_guarded
from tests.security.kafka_guarded import Guarded


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The broker with a listener for every way in."""
    found = kafka_guarded.start(tmp_path_factory.mktemp("guarded-kafka"))
    try:
        yield found
    finally:
        found.kafka.close()


class GuardedPostgres(NamedTuple):
    server: Postgres  # its certificate names localhost
    authority: Authority
    client: Certificate  # of the user `certified`, who has no password


HBA = """
hostssl all certified all cert
host    all postgres  all password
"""


@pytest_asyncio.fixture(scope="session")
async def guarded_postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GuardedPostgres]:
    """A server with TLS; the user `certified` must show a certificate."""
    directory = tmp_path_factory.mktemp("guarded-postgres")
    authority = Authority(directory)
    certificate = authority.issue("server", "localhost")
    (hba := directory / "pg_hba.conf").write_text(HBA)
    files = {"ssl_cert_file": certificate.cert, "ssl_key_file": certificate.key, "ssl_ca_file": authority.ca}
    server = postgres_server.start_guarded(directory, {**files, "hba_file": hba})
    try:
        connection = await asyncpg.connect(server.url)
        await connection.execute("CREATE ROLE certified LOGIN")
        await connection.close()
        yield GuardedPostgres(server, authority, authority.issue("certified", "client.test"))
    finally:
        server.close()
