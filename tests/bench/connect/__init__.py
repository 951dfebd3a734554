"""Kafka Connect, standalone, with Debezium's JDBC sink in upsert mode: the peer of the consumer.

Its table has two text columns and no `json`, so Postgres does less for it. The clock runs from the first rows that are
seen to the last: the JVM's start, some ten seconds, is left out of the rate, though not of the CPU.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from tests.bench.measure import Failed, Process, Usage
from tests.bench.peers import TIMEOUT, Unavailable
from tests.bench.servers import CACHE
from tests.harness.brokers import jars
from tests.harness.processes import free_ports

POM = Path(__file__).with_name("pom.xml")
LOOK_EVERY = 0.2  # seconds between two counts; each costs Postgres a little
STOP_GRACE = 30.0  # seconds


def plugins() -> Path:
    """The folder of the connector's jars, filled by Maven when it is first asked for."""
    folder = CACHE / "connect"
    done = folder / "pom.xml"
    if done.exists() and done.read_text() == POM.read_text():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    libs = folder / "debezium"
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    try:
        made = subprocess.run([*command, f"-DoutputDirectory={libs}"], capture_output=True, text=True, check=False)
    except OSError as exc:
        raise Unavailable(f"Maven cannot be run: {exc}") from exc
    if made.returncode != 0:
        raise Unavailable(f"Maven could not fetch Debezium: {made.stdout[-300:]}{made.stderr[-300:]}")
    shutil.copy(POM, done)
    return folder


async def sink(brokers: str, topic: str, database: str, records: int, directory: Path) -> tuple[int, Usage]:
    """How many rows came while the clock ran, and what that took."""
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("CREATE TABLE connect_sink (event_id text PRIMARY KEY, payload text)")
        _write(directory / "worker.properties", _worker(brokers, plugins()))
        _write(directory / "sink.properties", _sink(topic, database))
        main = ["org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "sink.properties"]
        worker = Process(["java", "-Xmx1g", "-cp", f"{jars()}/*", *main], env={}, cwd=directory)
        try:
            first = await _rows(connection, worker, 1)
            began = time.perf_counter()
            await _rows(connection, worker, records)
            wall = time.perf_counter() - began
        finally:
            worker.kill()
        return records - first, (await worker.wait(STOP_GRACE, killed=True))._replace(wall=wall)
    finally:
        await connection.close()


async def _rows(connection: "asyncpg.Connection[asyncpg.Record]", worker: Process, wanted: int) -> int:
    """Wait for so many rows; returns how many there are then."""
    while (rows := int(await connection.fetchval("SELECT count(*) FROM connect_sink"))) < wanted:
        worker.look()
        if worker.ended() or time.perf_counter() - worker.started > TIMEOUT:
            raise Failed(f"Kafka Connect wrote {rows} rows of {wanted}")
        await asyncio.sleep(LOOK_EVERY)
    return rows


def _worker(brokers: str, plugins: Path) -> dict[str, object]:
    text = "org.apache.kafka.connect.storage.StringConverter"
    return {
        "bootstrap.servers": brokers,
        "key.converter": text,
        "value.converter": text,
        "offset.storage.file.filename": "offsets",
        "plugin.path": plugins,
        "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
        "consumer.max.poll.records": 5000,
        "consumer.max.partition.fetch.bytes": 4_194_304,
    }


def _sink(topic: str, database: str) -> dict[str, object]:
    parts = urlsplit(database)
    hoist = "org.apache.kafka.connect.transforms.HoistField"
    return {
        "name": "sink",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": 1,
        "topics": topic,
        "connection.url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}?reWriteBatchedInserts=true",
        "connection.username": parts.username,
        "connection.password": parts.password or "none",
        "insert.mode": "upsert",
        "primary.key.mode": "record_key",
        "primary.key.fields": "event_id",
        "collection.name.format": "connect_sink",
        "schema.evolution": "none",
        "batch.size": 5000,
        "transforms": "value,key",
        "transforms.value.type": f"{hoist}$Value",
        "transforms.value.field": "payload",
        "transforms.key.type": f"{hoist}$Key",
        "transforms.key.field": "event_id",
    }


def _write(file: Path, properties: Mapping[str, object]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
