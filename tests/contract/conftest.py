"""What several contract suites share."""

from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient

from tests.harness.kafka import Kafka
from tests.harness.names import unique
from tests.harness.pgbouncer import PgBouncer
from tests.harness.postgres import Postgres


@pytest_asyncio.fixture
async def cluster(kafka: Kafka) -> AsyncIterator[AIOKafkaAdminClient]:
    """What a person does to the cluster behind our back."""
    client = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await client.start()
    yield client
    await client.close()


@pytest_asyncio.fixture(scope="module")
async def shared_jobs_url(postgres: Postgres, migrated_template: str, pgbouncer: PgBouncer) -> AsyncIterator[str]:
    name = unique("jobs")
    yield pgbouncer.through(await postgres.create_database(name, template=migrated_template))
    await postgres.drop_database(name)


@pytest_asyncio.fixture
async def jobs_url(shared_jobs_url: str) -> AsyncIterator[str]:
    """A database that these tests share, since making one takes longer than most of them; empty before each."""
    yield shared_jobs_url
    server = await asyncpg.connect(shared_jobs_url, statement_cache_size=0)
    tables = ("jobs", "sources", "queues", "workers", "tallies")
    await server.execute("; ".join(f"DELETE FROM ingest.{table}" for table in tables))
    await server.close()
