"""How each fault of tests/chaos/schedule.py is brought about and healed.

A fault is an async context: entered when it has struck (a process is seen dead, a broker is seen gone), left when it is
healed. What it strikes at is seen to be struck: a fault that had no effect raises.
"""

import asyncio
import itertools
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Literal

import asyncpg
from aiokafka.admin import AIOKafkaAdminClient

from tests.chaos.fleet import Fleet, Member
from tests.chaos.oplog import OperationLog
from tests.chaos.processes import POLL
from tests.chaos.schedule import Fault
from tests.chaos.servers import BROKERS, Servers
from tests.harness import faults as wrong
from tests.harness.kafka import Kafka
from tests.harness.listings import Answer
from tests.harness.postgres import Postgres
from tests.harness.processes import NotStarted
from tests.harness.proxy import Mode

STRUCK = 120.0  # seconds within which a fault must have its effect; a failpoint has to be reached
HEALED = 90.0  # seconds until a cluster is whole again
CONSUMERS = 3  # where nothing is scaled
BALLAST = bytes(1_000_000)


class NoEffect(Exception):
    """A fault that was drawn did not happen."""


class Afflicter:
    """`active`: the poller that holds the stream."""

    def __init__(
        self, servers: Servers, fleet: Fleet, log: OperationLog, active: Callable[[], Awaitable[Member | None]]
    ) -> None:
        self._servers, self._fleet, self._log, self._active = servers, fleet, log, active

    def of(self, fault: Fault) -> AbstractAsyncContextManager[None]:
        """The one method named after it; `poller_kill` and `consumer_kill` share one."""
        role, _, what = fault.kind.partition("_")
        if role in ("poller", "consumer"):
            return {
                "kill": self._gone, "term": self._gone, "freeze": self._frozen, "zombie": self._frozen,
                "failpoint": self._doomed,
            }[what](fault, role)  # fmt: skip
        if role == "net":
            return self._net(fault, what)
        method: Callable[[Fault], AbstractAsyncContextManager[None]] = getattr(self, f"_{fault.kind}")
        return method(fault)

    # ---- processes

    async def _victim(self, fault: Fault, role: str) -> Member:
        """For pollers mostly the one that works: the other one only waits for its lease."""
        members = self._fleet.pollers if role == "poller" else [c for c in self._fleet.consumers if c.up]
        if role == "poller" and fault.which < 0.7 and (active := await self._active()) is not None:
            return active
        return members[int(fault.which * len(members))]

    @asynccontextmanager
    async def _gone(self, fault: Fault, role: str) -> AsyncIterator[None]:
        """Killed, or asked to stop; and not started again before the fault is over."""
        member = await self._victim(fault, role)
        await self._await(lambda: member.running, "it runs")
        process = member.process
        assert process is not None
        member.up = False
        try:
            process.send(signal.SIGKILL if fault.kind.endswith("kill") else signal.SIGTERM)
            await self._await(lambda: process.exitcode is not None, f"{process.name} ends")
            self._struck(fault, process=process.name, code=process.exitcode)
            yield
        finally:
            member.up = True

    @asynccontextmanager
    async def _frozen(self, fault: Fault, role: str) -> AsyncIterator[None]:
        member = await self._victim(fault, role)
        await self._await(lambda: member.running, "it runs")
        process = member.process
        assert process is not None
        process.send(signal.SIGSTOP)
        try:
            await self._await(lambda: process.stands_still() or process.exitcode is not None, "it stands still")
            self._struck(fault, process=process.name)
            yield
        finally:
            process.send(signal.SIGCONT)

    @asynccontextmanager
    async def _doomed(self, fault: Fault, role: str) -> AsyncIterator[None]:
        """A process that strikes itself at a failpoint takes the place of one. Where one has all the work, the rivals
        are gone meanwhile: it would only stand by."""
        member = await self._victim(fault, role)
        alike = self._fleet.pollers if role == "poller" else self._fleet.consumers
        shared = role == "consumer" and self._servers.kafka is not None
        rivals = [] if shared else [m for m in alike if m is not member]
        member.doom = tuple(fault.detail.split())
        for rival in rivals:
            rival.up = False
        try:
            for one in (member, *rivals):
                one.send(signal.SIGTERM)
            await self._await(lambda: _has_struck(member), f"{member.name} reaches {fault.detail}")
            process = member.process
            assert process is not None
            self._struck(fault, process=process.name, detail=fault.detail)
            member.doom = None
            for rival in rivals:
                rival.up = True
            yield
            process.send(signal.SIGCONT)  # where it is frozen: past its lease by now
            await asyncio.sleep(1.0)
            process.send(signal.SIGTERM)  # what comes next is the real command
        finally:
            member.doom = None
            for rival in rivals:
                rival.up = True

    @asynccontextmanager
    async def _everyone_kill(self, fault: Fault) -> AsyncIterator[None]:
        members = [member for member in self._fleet.members if member.running]
        ups = [member.up for member in self._fleet.members]
        for member in self._fleet.members:
            member.up = False
        try:
            for member in members:
                member.send(signal.SIGKILL)
            await self._await(lambda: not any(member.running for member in members), "all are dead")
            self._struck(fault, processes=len(members))
            yield
        finally:
            for member, up in zip(self._fleet.members, ups, strict=True):
                member.up = up

    @asynccontextmanager
    async def _scale_consumers(self, fault: Fault) -> AsyncIterator[None]:
        count = int(fault.detail)
        self._fleet.scale_consumers(count)
        self._struck(fault, consumers=count)
        try:
            yield
        finally:
            self._fleet.scale_consumers(CONSUMERS)

    # ---- the API and the network

    @asynccontextmanager
    async def _api_errors(self, fault: Fault) -> AsyncIterator[None]:
        chances = "500:0.2,503:0.3,429:0.1,reset:0.2,truncated:0.1,empty:0.05"
        async with self._misbehaving(fault, wrong.by_chance(chances, fault.n)):
            yield

    @asynccontextmanager
    async def _api_slow(self, fault: Fault) -> AsyncIterator[None]:
        async with self._misbehaving(fault, itertools.repeat(wrong.slow(0.5 + fault.which * 2))):
            yield

    @asynccontextmanager
    async def _misbehaving(self, fault: Fault, ways: Iterable[wrong.Fault]) -> AsyncIterator[None]:
        """Struck as soon as one request got something else than the truth."""
        told: list[Answer] = []

        def counted(way: wrong.Fault) -> wrong.Fault:
            def tell(answer: Answer) -> Answer:
                if (said := way(answer)) is not answer:
                    told.append(said)
                return said

            return tell

        self._servers.api.misbehave(counted(way) for way in ways)
        try:
            await self._await(lambda: bool(told), "a request is answered wrongly")
            self._struck(fault)
            yield
        finally:
            self._servers.api.misbehave(())
            self._log.write("misbehaved", n=fault.n, answers=len(told))

    @asynccontextmanager
    async def _api_gone(self, fault: Fault) -> AsyncIterator[None]:
        async with self._through(fault, "poller-api", _mode(fault.detail)):
            yield

    @asynccontextmanager
    async def _net(self, fault: Fault, what: str) -> AsyncIterator[None]:
        delay = 0.02 + fault.which * 0.3 if what == "delay" else 0.0
        async with self._through(fault, fault.detail, "open" if what == "delay" else _mode(what), delay):
            yield

    @asynccontextmanager
    async def _through(self, fault: Fault, pair: str, mode: Mode, delay: float = 0.0) -> AsyncIterator[None]:
        proxies = self._servers.proxies[pair]
        for proxy in proxies:
            proxy.set(mode, delay=delay)
        self._struck(fault, pair=pair, mode=mode, delay=delay)
        try:
            yield
        finally:
            for proxy in proxies:
                proxy.heal()

    # ---- the SQLite file

    @asynccontextmanager
    async def _file_lock(self, fault: Fault) -> AsyncIterator[None]:
        """Someone else writes, and takes their time."""
        connection = sqlite3.connect(self._servers.place.database, isolation_level=None, timeout=30.0)
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._struck(fault)
            yield
        finally:
            connection.close()

    @asynccontextmanager
    async def _file_full(self, fault: Fault) -> AsyncIterator[None]:
        """No byte of the file system is left."""
        assert self._servers.disk is not None
        ballast = self._servers.disk / "ballast"
        try:
            with ballast.open("wb", buffering=0) as file, suppress(OSError):  # it ends with ENOSPC
                while True:
                    file.write(BALLAST)
            left = os.statvfs(self._servers.disk)
            if left.f_bavail > 0:
                raise NoEffect(f"the file system is not full: {left.f_bavail} blocks are free")
            self._struck(fault)
            yield
        finally:
            ballast.unlink()

    # ---- brokers

    @asynccontextmanager
    async def _broker_kill(self, fault: Fault) -> AsyncIterator[None]:
        async with self._brokers(fault, [_first(fault)], Kafka.kill):
            yield

    @asynccontextmanager
    async def _broker_stop(self, fault: Fault) -> AsyncIterator[None]:
        async with self._brokers(fault, [_first(fault)], Kafka.ask_to_stop):
            yield

    @asynccontextmanager
    async def _brokers_two_killed(self, fault: Fault) -> AsyncIterator[None]:
        async with self._brokers(fault, [_first(fault), _second(fault)], Kafka.kill):
            yield

    @asynccontextmanager
    async def _broker_freeze(self, fault: Fault) -> AsyncIterator[None]:
        async with self._brokers_frozen(fault, [_first(fault)]):
            yield

    @asynccontextmanager
    async def _brokers_two_frozen(self, fault: Fault) -> AsyncIterator[None]:
        async with self._brokers_frozen(fault, [_first(fault), _second(fault)]):
            yield

    @asynccontextmanager
    async def _brokers(
        self, fault: Fault, numbers: Sequence[int], strike: Callable[[Kafka, int], None]
    ) -> AsyncIterator[None]:
        kafka = self._kafka()
        try:
            for n in numbers:
                strike(kafka, n)
            if strike is not Kafka.ask_to_stop:
                await self._await(lambda: not any(kafka.runs(n) for n in numbers), "the brokers are gone")
            self._struck(fault, brokers=list(numbers))
            yield
            await self._await(lambda: not any(kafka.runs(n) for n in numbers), "the brokers are gone")
        finally:
            for n in numbers:
                kafka.start_again(n)

    @asynccontextmanager
    async def _brokers_frozen(self, fault: Fault, numbers: Sequence[int]) -> AsyncIterator[None]:
        kafka = self._kafka()
        try:
            for n in numbers:
                kafka.pause(n)
            self._struck(fault, brokers=list(numbers))
            yield
        finally:
            for n in numbers:
                kafka.resume(n)

    def _kafka(self) -> Kafka:
        assert self._servers.kafka is not None
        return self._servers.kafka

    # ---- Postgres

    @asynccontextmanager
    async def _postgres_restart(self, fault: Fault) -> AsyncIterator[None]:
        mode: Literal["fast", "immediate"] = "fast" if fault.detail == "fast" else "immediate"
        async with self._postgres_down(fault, lambda server: server.stop(mode)):
            yield

    @asynccontextmanager
    async def _postgres_kill(self, fault: Fault) -> AsyncIterator[None]:
        async with self._postgres_down(fault, Postgres.kill):
            yield

    @asynccontextmanager
    async def _postgres_down(self, fault: Fault, strike: Callable[[Postgres], None]) -> AsyncIterator[None]:
        server = self._postgres()
        try:
            strike(server)
            self._struck(fault)
            yield
        finally:
            await _start(server)

    @asynccontextmanager
    async def _postgres_freeze(self, fault: Fault) -> AsyncIterator[None]:
        server = self._postgres()
        server.pause()
        self._struck(fault)
        try:
            yield
        finally:
            server.resume()

    @asynccontextmanager
    async def _postgres_terminate(self, fault: Fault) -> AsyncIterator[None]:
        """One backend of ours or several, whatever they are in the middle of."""
        connection = await asyncpg.connect(self._servers.place.database, timeout=STRUCK)
        try:
            ended = 0
            deadline = time.monotonic() + STRUCK
            while not ended and time.monotonic() < deadline:
                ended = await connection.fetchval(
                    """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                       WHERE application_name = 'ingest' AND random() < $1""",
                    0.2 + 0.8 * fault.which,
                )
            self._struck(fault, backends=ended)
        finally:
            await connection.close()
        yield

    def _postgres(self) -> Postgres:
        assert self._servers.postgres is not None
        return self._servers.postgres

    # ----

    def _struck(self, fault: Fault, **facts: object) -> None:
        self._log.write("struck", n=fault.n, kind=fault.kind, **facts)

    async def _await(self, seen: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STRUCK
        while not seen():
            if time.monotonic() > deadline:
                raise NoEffect(f"not within {STRUCK:.0f} s: {what}")
            await asyncio.sleep(POLL)

    async def whole(self) -> None:
        """The brokers that were gone are in sync again: a second fault would find fewer of them than it means to."""
        deadline = time.monotonic() + HEALED
        while time.monotonic() < deadline:
            if await _in_sync(self._kafka().bootstrap, self._servers.place.topic):
                return
            await asyncio.sleep(0.5)
        raise NoEffect(f"the brokers are not in sync again after {HEALED:.0f} s")


def _has_struck(member: Member) -> bool:
    """Its process is a doomed one, and was killed or stopped."""
    process = member.process
    if process is None or member.ops:
        return False
    return process.exitcode == -signal.SIGKILL or process.stands_still()


def _first(fault: Fault) -> int:
    return 1 + int(fault.which * BROKERS)


def _second(fault: Fault) -> int:
    return 1 + _first(fault) % BROKERS


def _mode(text: str) -> Mode:
    modes: dict[str, Mode] = {"cut": "cut", "silent": "silent", "deaf": "deaf"}
    return modes[text]


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

