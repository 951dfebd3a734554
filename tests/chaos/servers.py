"""What a chaos run runs on, reached by its processes through proxies: the API, and on one engine Kafka and Postgres.

Three brokers with three replicas of which two must be in sync, whose clients are told the ports of proxies: pollers and
consumers come in by doors of their own, so that either can be cut off. Who looks on from outside uses no proxy.
"""

import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from migrations.runner import migrate
from tests.chaos import configuration, evidence
from tests.chaos.configuration import ALONE, CONSUMER, STREAM
from tests.chaos.evidence import Place
from tests.chaos.feed import Feed
from tests.chaos.schedule import Engine
from tests.harness import kafka as kafka_server
from tests.harness import postgres as postgres_server
from tests.harness.fake_api import FakeApi
from tests.harness.kafka import Door, Kafka
from tests.harness.names import unique
from tests.harness.postgres import Postgres
from tests.harness.processes import free_ports
from tests.harness.proxy import Beside, Proxy

BROKERS = 3
PARTITIONS = 6
PAGE = 100
ROLES = ("poller", "consumer")
DISK, DISK_PER_MINUTE = 64, 25  # megabytes of the file system that may be filled; the program takes a third of it
TOKEN, PASSWORD = "canary-token-8c1f77d2e0", "canary-password-5b90aa31c4"
"""Secrets that no line of a log may show."""

SOURCE_KEYS = (
    'auth: {bearer: "${env:CHAOS_TOKEN}"}',
    "retry: {base: 100ms, cap: 2s, budget: 30s}",
    "timeout: {connect: 3s, read: 5s, total: 10s}",
)
STREAM_KEYS = ("occurred_at: updated_at", "every: 200ms")


@dataclass
class Servers:
    place: Place
    api: FakeApi
    feed: Feed
    beside: Beside
    proxies: Mapping[str, list[Proxy]]
    """By pair, such as `poller-kafka`; the API's only client is the poller."""
    env: Mapping[str, Mapping[str, str]]
    """By role."""
    kafka: Kafka | None
    postgres: Postgres | None
    disk: Path | None
    """The file system that holds the SQLite file alone."""


def start(folder: Path, engine: Engine, seed: int, stack: ExitStack, *, disk: int | None) -> Servers:
    """All that is started ends with `stack`. The configuration is written to `folder`. `disk`: megabytes of a file
    system for the SQLite file alone, which can be filled."""
    beside = stack.enter_context(Beside())
    api = FakeApi(log_path=folder / "served.jsonl")
    beside.call(api.__aenter__())
    stack.callback(lambda: beside.call(api.__aexit__(None, None, None)))
    feed = Feed(folder / "made.jsonl", PAGE, seed)
    stack.callback(feed.close)
    api.list_as("events", feed)
    proxies = {"poller-api": [_proxy(beside, api.port, stack)]}
    kafka, postgres, small = None, None, None
    urls: dict[str, dict[str, str]]
    if engine == "sqlite":
        small = None if disk is None else _small_disk(folder, disk, stack)
        database = (small or folder) / "ingest.db"
        urls = {role: {"log": f"sqlite:///{database}", "store": f"sqlite:///{database}"} for role in ROLES}
        address, bootstrap = str(database), None
    else:
        kafka, urls = _kafka(folder, beside, proxies, stack)
        postgres = postgres_server.start(folder)
        stack.callback(postgres.close)
        address, bootstrap = _postgres(postgres, beside, proxies, urls, stack), kafka.bootstrap
    place = Place(address, bootstrap, unique("billing"), STREAM, CONSUMER)
    safety = "replication: 3, min_insync: 2" if kafka else ALONE
    url = f"http://127.0.0.1:{proxies['poller-api'][0].port}"
    configuration.write(
        folder,
        place.source,
        url,
        partitions=PARTITIONS,
        safety=safety,
        batch=200,
        source_keys=SOURCE_KEYS,
        stream_keys=STREAM_KEYS,
    )
    env = {
        role: {
            "INGEST_LOG_URL": own["log"],
            "INGEST_STORE_URL": own["store"],
            "INGEST_STATE_URL": own["store"],
            "CHAOS_TOKEN": TOKEN,
        }
        for role, own in urls.items()
    }
    return Servers(place, api, feed, beside, proxies, env, kafka, postgres, small)


async def prepare(servers: Servers) -> None:
    """The tables, and the triggers that watch them."""
    database = servers.place.database
    await migrate(f"sqlite:///{database}" if servers.postgres is None else database)
    await evidence.watch_cursors(servers.place)


def _kafka(
    folder: Path, beside: Beside, proxies: dict[str, list[Proxy]], stack: ExitStack
) -> tuple[Kafka, dict[str, dict[str, str]]]:
    doors, urls = {}, {}
    for role in ROLES:
        behind = free_ports(BROKERS)
        proxies[f"{role}-kafka"] = [_proxy(beside, port, stack) for port in behind]
        told = [proxy.port for proxy in proxies[f"{role}-kafka"]]
        doors[f"{role.upper()}S"] = [Door(*pair) for pair in zip(behind, told, strict=True)]
        urls[role] = {"log": "kafka://" + ",".join(f"127.0.0.1:{port}" for port in told)}
    # The broker's clock says when a record was appended, which is compared with when a cursor was saved.
    kafka = kafka_server.start(
        folder, brokers=BROKERS, properties={"log.message.timestamp.type": "LogAppendTime"}, doors=doors
    )
    stack.callback(kafka.close)
    return kafka, urls


def _postgres(
    server: Postgres,
    beside: Beside,
    proxies: dict[str, list[Proxy]],
    urls: dict[str, dict[str, str]],
    stack: ExitStack,
) -> str:
    """The address of a new database for whoever needs no proxy. Its user's password is the canary."""
    beside.call(_make_user(server.url))
    parts = urlsplit(server.url)
    for role in ROLES:
        proxy = _proxy(beside, parts.port or 5432, stack)
        proxies[f"{role}-postgres"] = [proxy]
        own = parts._replace(netloc=f"chaos:{PASSWORD}@127.0.0.1:{proxy.port}", path="/chaos")
        urls[role]["store"] = urlunsplit(own)
    return urlunsplit(parts._replace(netloc=f"chaos:{PASSWORD}@127.0.0.1:{parts.port}", path="/chaos"))


async def _make_user(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE USER chaos SUPERUSER PASSWORD '{PASSWORD}'")
    await connection.execute("CREATE DATABASE chaos OWNER chaos")
    await connection.close()


def _proxy(beside: Beside, target: int, stack: ExitStack) -> Proxy:
    proxy = Proxy(beside, target)
    proxy.open()
    stack.callback(proxy.close)
    return proxy


def _small_disk(folder: Path, megabytes: int, stack: ExitStack) -> Path:
    """A file system in memory. Only root may mount one."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "chaos", str(disk)], check=True)
    stack.callback(lambda: subprocess.run(["umount", "-l", str(disk)], check=False))
    return disk
