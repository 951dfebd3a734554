"""What the measured programs talk to: the fixture API, Kafka and PostgreSQL, each a process of its own.

Every run gets a topic and a database that nobody has used before, and leaves none behind.
"""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import asyncpg
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from migrations.runner import migrate
from tests.harness import kafka as kafka_server
from tests.harness import postgres as postgres_server
from tests.harness.installs import REPOSITORY
from tests.harness.kafka import Kafka
from tests.harness.names import unique
from tests.harness.postgres import Postgres
from tests.harness.processes import Child, accepts, free_ports

FIXTURE = REPOSITORY / "tests" / "bench" / "fixture_api"
CACHE = REPOSITORY / ".cache" / "bench"
PARTITIONS = 4
API_START = 60.0  # seconds
POSTGRES = {"shared_buffers": "128MB"}  # PostgreSQL's own default; the tests take less


@dataclass(frozen=True)
class Api:
    """The fixture API, serving `records` records. `started`: time.time() at which it began to count, in live mode."""

    url: str
    records: int
    started: float


@contextmanager
def api(records: int, directory: Path, *options: str) -> Iterator[Api]:
    """`options`: of fixture_api/README.md."""
    binary = CACHE / "fixture_api"
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "build", "-o", binary, "."], cwd=FIXTURE, check=True)
    [port] = free_ports(1)
    command = [str(binary), "-addr", f"127.0.0.1:{port}", "-n", str(records), *options]
    child = Child(command, log=directory / "api.log")
    try:
        child.wait_until(lambda: accepts(port), timeout=API_START, name="the fixture API")
        with urlopen(f"http://127.0.0.1:{port}/_fixture") as answer:
            yield Api(f"http://127.0.0.1:{port}", records, json.load(answer)["t0"])
    finally:
        child.stop()


@dataclass(frozen=True)
class Servers:
    kafka: Kafka
    postgres: Postgres
    template: str  # the name of a migrated database

    @asynccontextmanager
    async def database(self, *, template: str | None = None) -> AsyncIterator[str]:
        """The address of a new database, migrated and empty unless `template` says otherwise; dropped afterwards."""
        name = unique("bench")
        url = await self.postgres.create_database(name, template=template or self.template)
        try:
            await self._checkpoint()
            yield url
        finally:
            await self.postgres.drop_database(name)

    @asynccontextmanager
    async def topic(self) -> AsyncIterator[str]:
        """A new topic of four partitions; deleted afterwards, with the dead-letter topics that were made beside it."""
        name = unique("bench")
        async with self._admin() as admin:
            await admin.create_topics([NewTopic(name, PARTITIONS, 1)])
        try:
            yield name
        finally:
            async with self._admin() as admin:
                await admin.delete_topics([t for t in await admin.list_topics() if t.startswith(name)])

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    async def _checkpoint(self) -> None:
        """So that no run pays for what the one before it left to be written."""
        await query(self.postgres.url, "CHECKPOINT")


@asynccontextmanager
async def servers(directory: Path) -> AsyncIterator[Servers]:
    """Kafka and PostgreSQL, from the environment or started here (tests/harness)."""
    postgres = postgres_server.start(directory / "postgres", options=POSTGRES)
    try:
        kafka = kafka_server.start(directory / "kafka")
        try:
            name = unique("migrated")
            await migrate(await postgres.create_database(name))
            yield Servers(kafka, postgres, name)
            await postgres.drop_database(name)
        finally:
            kafka.close()
    finally:
        postgres.close()


async def query(url: str, statement: str) -> Sequence[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()
