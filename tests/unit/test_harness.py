"""The parts that other tests stand on do what those tests take for granted."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import asyncpg
import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.harness import datasette, postgres
from tests.harness.installs import REPOSITORY
from tests.harness.kafka import Kafka
from tests.harness.names import unique


async def test_a_message_makes_the_round_trip_through_kafka(kafka: Kafka) -> None:
    topic = unique("round-trip")
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all", enable_idempotence=True) as producer:
        await producer.send_and_wait(topic, b"value", key=b"key")
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap, group_id=unique("group"), auto_offset_reset="earliest"
    )
    async with consumer:
        message = await consumer.getone()
    assert (message.key, message.value) == (b"key", b"value")


async def test_every_test_gets_a_migrated_database_of_its_own(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM ingest.events") == 0
    finally:
        await connection.close()


async def test_a_bare_database_has_no_schema(bare_postgres_url: str) -> None:
    connection = await asyncpg.connect(bare_postgres_url)
    try:
        assert await connection.fetchval("SELECT to_regclass('ingest.events')") is None
    finally:
        await connection.close()


def test_postgres_keeps_what_was_committed_over_a_kill(tmp_path: Path) -> None:
    async def commit_one(url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
        await connection.close()

    async def count(url: str) -> int:
        connection = await asyncpg.connect(url)
        found: int = await connection.fetchval("SELECT count(*) FROM kept")
        await connection.close()
        return found

    server = postgres.start(tmp_path)
    try:
        asyncio.run(commit_one(server.url))
        server.kill()
        server.restart()
        assert asyncio.run(count(server.url)) == 1
    finally:
        server.close()


def test_a_test_that_leaves_a_task_running_fails(tmp_path: Path) -> None:
    leaky = tmp_path / "test_leaky.py"
    leaky.write_text(
        "import asyncio\n"
        "async def test_leaves_a_task():\n    globals()['task'] = asyncio.create_task(asyncio.Event().wait())\n"
        "async def test_leaves_none():\n    await asyncio.create_task(asyncio.sleep(0))\n"
    )
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest", str(leaky)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert "tasks left running: <coroutine object Event.wait" in done.stdout
    assert "2 passed, 1 error" in done.stdout


async def test_datasette_pages_through_each_flight_once(tmp_path: Path) -> None:
    served = datasette.start(tmp_path, rows=2_500)
    ids: list[int] = []
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            url: str | None = f"{served.flights}?_shape=objects&_size=max"
            while url is not None:
                page = (await client.get(url)).json()
                ids += [row["id"] for row in page["rows"]]
                url = page["next_url"]
    finally:
        served.close()
    assert ids == list(range(1, 2_501))


def test_flights_have_integers_text_and_nulls(tmp_path: Path) -> None:
    path = tmp_path / "flights.db"
    assert datasette.load(path, rows=900) == 900
    with closing(sqlite3.connect(path)) as database:
        first = database.execute("SELECT id, flight, tailnum, time_hour FROM flights WHERE id = 1").fetchone()
        assert first == (1, 1545, "N14228", "2013-01-01T10:00:00Z")
        assert database.execute("SELECT count(*) FROM flights WHERE dep_time IS NULL").fetchone() == (4,)
