"""Faults of the brokers and of Postgres: killed, stopped, frozen, one or two at a time; backends terminated."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import asyncpg
from aiokafka.admin import AIOKafkaAdminClient

from tests.chaos.scene import STRUCK, NoEffect, Scene, Strikes
from tests.chaos.schedule import Fault
from tests.chaos.servers import BROKERS
from tests.harness.kafka import Kafka
from tests.harness.postgres import Postgres
from tests.harness.processes import NotStarted

HEALED = 90.0  # seconds until a cluster is whole again


@asynccontextmanager
async def _brokers(
    scene: Scene, fault: Fault, numbers: Sequence[int], strike: Callable[[Kafka, int], None]
) -> AsyncIterator[None]:
    kafka = _kafka(scene)
    try:
        for n in numbers:
            strike(kafka, n)
        if strike is not Kafka.ask_to_stop:
            await scene.wait_until(lambda: not any(kafka.runs(n) for n in numbers), "the brokers are gone")
        scene.struck(fault, brokers=list(numbers))
        yield
        await scene.wait_until(lambda: not any(kafka.runs(n) for n in numbers), "the brokers are gone")
    finally:
        for n in numbers:
            kafka.start_again(n)


@asynccontextmanager
async def _brokers_frozen(scene: Scene, fault: Fault, numbers: Sequence[int]) -> AsyncIterator[None]:
    kafka = _kafka(scene)
    try:
        for n in numbers:
            kafka.pause(n)
        scene.struck(fault, brokers=list(numbers))
        yield
    finally:
        for n in numbers:
            kafka.resume(n)


def _kafka(scene: Scene) -> Kafka:
    assert scene.servers.kafka is not None
    return scene.servers.kafka


@asynccontextmanager
async def _postgres_down(scene: Scene, fault: Fault, strike: Callable[[Postgres], None]) -> AsyncIterator[None]:
    server = _postgres(scene)
    try:
        strike(server)
        scene.struck(fault)
        yield
    finally:
        await _start(server)


@asynccontextmanager
async def _postgres_freeze(scene: Scene, fault: Fault) -> AsyncIterator[None]:
    server = _postgres(scene)
    server.pause()
    scene.struck(fault)
    try:
        yield
    finally:
        server.resume()


@asynccontextmanager
async def _postgres_terminate(scene: Scene, fault: Fault) -> AsyncIterator[None]:
    """One backend of ours or several, whatever they are in the middle of."""
    connection = await asyncpg.connect(scene.servers.place.database, timeout=STRUCK)
    try:
        ended = 0
        deadline = time.monotonic() + STRUCK
        while not ended and time.monotonic() < deadline:
            ended = await connection.fetchval(
                """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE application_name = 'ingest' AND random() < $1""",
                0.2 + 0.8 * fault.which,
            )
        scene.struck(fault, backends=ended)
    finally:
        await connection.close()
    yield


def _postgres(scene: Scene) -> Postgres:
    assert scene.servers.postgres is not None
    return scene.servers.postgres


async def whole(scene: Scene) -> None:
    """The brokers that were gone are in sync again: a second fault would find fewer of them than it means to."""
    deadline = time.monotonic() + HEALED
    while time.monotonic() < deadline:
        if await _in_sync(_kafka(scene).bootstrap, scene.servers.place.topic):
            return
        await asyncio.sleep(0.5)
    raise NoEffect(f"the brokers are not in sync again after {HEALED:.0f} s")


def _first(fault: Fault) -> int:
    return 1 + int(fault.which * BROKERS)


def _second(fault: Fault) -> int:
    return 1 + _first(fault) % BROKERS


async def _start(server: Postgres) -> None:
    """Backends of a killed postmaster hold its shared memory for a moment longer."""
    deadline = time.monotonic() + HEALED
    while True:
        try:
            return server.restart("immediate")
        except NotStarted:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)


async def _in_sync(bootstrap: str, topic: str) -> bool:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=5_000)
    try:
        await admin.start()
        found = await admin.describe_topics()
    except Exception:  # whatever it is, it is not well yet
        return False
    finally:
        await admin.close()
    partitions = [p for t in found if t["topic"] in (topic, "__consumer_offsets") for p in t["partitions"]]
    return bool(partitions) and all(len(p["isr"]) == BROKERS for p in partitions)


def _stop(server: Postgres, fault: Fault) -> None:
    mode: Literal["fast", "immediate"] = "fast" if fault.detail == "fast" else "immediate"
    server.stop(mode)


STRIKES: Strikes = {
    "broker_kill": lambda scene, fault: _brokers(scene, fault, [_first(fault)], Kafka.kill),
    "broker_stop": lambda scene, fault: _brokers(scene, fault, [_first(fault)], Kafka.ask_to_stop),
    "broker_freeze": lambda scene, fault: _brokers_frozen(scene, fault, [_first(fault)]),
    "brokers_two_killed": lambda scene, fault: _brokers(scene, fault, [_first(fault), _second(fault)], Kafka.kill),
    "brokers_two_frozen": lambda scene, fault: _brokers_frozen(scene, fault, [_first(fault), _second(fault)]),
    "postgres_restart": lambda scene, fault: _postgres_down(scene, fault, lambda server: _stop(server, fault)),
    "postgres_kill": lambda scene, fault: _postgres_down(scene, fault, Postgres.kill),
    "postgres_freeze": _postgres_freeze,
    "postgres_terminate": _postgres_terminate,
}
