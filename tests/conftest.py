"""What tests get by naming it: real servers, started once a session when first asked for, and clean places on them.

A server that cannot be had fails the tests that need it; nothing is skipped.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings

from migrations.runner import migrate
from tests.harness import kafka as kafka_server
from tests.harness import pgbouncer as pgbouncer_server
from tests.harness import postgres as postgres_server
from tests.harness.kafka import Kafka
from tests.harness.names import unique
from tests.harness.pgbouncer import PgBouncer
from tests.harness.postgres import Postgres

# The same examples every time, and no clock: a suite that fails does so again. HYPOTHESIS_PROFILE=default explores.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

LEAK_GRACE = 1.0  # seconds that a task may take to end after its test


@pytest.fixture(autouse=True)
def logs_of_commands() -> Iterator[None]:
    """A command in the tests' own process says where lines go: to an output that is closed when its test is over."""
    before = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = [one for one in logging.getLogger().handlers if one in before]
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The server that all tests share. To kill or restart one, `harness.postgres.start` makes one of your own."""
    server = postgres_server.start(tmp_path_factory.mktemp("postgres"))
    try:
        yield server
    finally:
        server.close()


@pytest_asyncio.fixture(scope="session")
async def migrated_template(postgres: Postgres) -> str:
    """The name of a database with all migrations applied, to copy from: 40 ms, where migrating takes longer."""
    name = unique("migrated")
    url = await postgres.create_database(name)
    await migrate(url)
    return name


@pytest_asyncio.fixture
async def postgres_url(postgres: Postgres, migrated_template: str) -> AsyncIterator[str]:
    """The address of a database of the test's own, migrated and empty."""
    name = unique("test")
    yield await postgres.create_database(name, template=migrated_template)
    await postgres.drop_database(name)


@pytest_asyncio.fixture
async def bare_postgres_url(postgres: Postgres) -> AsyncIterator[str]:
    """As `postgres_url`, without migrations."""
    name = unique("bare")
    yield await postgres.create_database(name)
    await postgres.drop_database(name)


@pytest.fixture(scope="session")
def pgbouncer(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[PgBouncer]:
    """In front of the server that all tests share: `pgbouncer.through(postgres_url)`."""
    bouncer = pgbouncer_server.start(tmp_path_factory.mktemp("pgbouncer"), postgres.url)
    try:
        yield bouncer
    finally:
        bouncer.close()


@pytest.fixture
def pooled_postgres_url(pgbouncer: PgBouncer, postgres_url: str) -> str:
    """As `postgres_url`, by way of PgBouncer in transaction mode: what works there works without it, as no session is
    anybody's. Contract suites run here; tests of one engine and of whole commands connect directly."""
    return pgbouncer.through(postgres_url)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """The one broker that all tests share: name topics and groups by `unique`. To kill one, as with `postgres`."""
    server = kafka_server.start(tmp_path_factory.mktemp("kafka"))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def cluster_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    server = kafka_server.start(tmp_path_factory.mktemp("brokers"), brokers=3)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def three_brokers(cluster_of_three: Kafka) -> Iterator[Kafka]:
    """Three brokers to kill, freeze and restart: every test finds all of them running and every copy in sync."""
    cluster_of_three.heal()
    yield cluster_of_three
    cluster_of_three.heal()


@pytest.fixture(scope="session")
def kafka_url(kafka: Kafka) -> str:
    """`kafka://host:port`."""
    return kafka.url


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where the test's own SQLite file goes; nothing is there yet."""
    return tmp_path / "ingest.db"


@pytest_asyncio.fixture(autouse=True)
async def no_task_is_left_running() -> AsyncIterator[None]:
    """Fails a test after which tasks still run that it or its fixtures started."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if not left:
        return
    _, running = await asyncio.wait(left, timeout=LEAK_GRACE)
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=LEAK_GRACE)
        pytest.fail("tasks left running: " + ", ".join(sorted(repr(task.get_coro()) for task in running)))
