"""The processes of a chaos run, each started again when it ends, as Kubernetes would.

The one who looks after them writes down every start and every end; `up` and `doom` are what faults change.
"""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.chaos.haste import LEASE_TTL
from tests.chaos.oplog import OperationLog
from tests.chaos.processes import HURRY, POLL, Process
from tests.harness.processes import free_ports

PAUSE = (0.1, 1.0)  # seconds until a process is started again
CRASH_PAUSE = 2.0  # seconds, after it ended by itself


class Member:
    """A poller or a consumer, over all the processes that it is in turn."""

    def __init__(
        self, name: str, verb: Sequence[str], folder: Path, env: Mapping[str, str], log: OperationLog, seed: int
    ) -> None:
        self.name = name
        self.up = True
        """It is to run; its process is started, and started again, while this is true."""
        self.doom: tuple[str, ...] | None = None
        """Failpoint, number of the pass and signal (tests/chaos/fate.py), for the processes started from now on."""
        self.process: Process | None = None
        self.ops = ""
        """Where the process serves its metrics, where it does."""
        self._asked: Process | None = None
        self.started_at = 0.0  # time.monotonic()
        self.starts = 0
        self._verb, self._folder, self._env, self._log = verb, folder, env, log
        self._chance = random.Random(f"{seed} {name}")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.exitcode is None

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send(number)

    def ask_to_stop(self) -> None:
        """SIGTERM, and never twice: a second one would cut it short."""
        if self.process is not None and self.process is not self._asked:
            self._asked = self.process
            self._log.write("asked to stop", process=self.process.name)
            self.process.send(signal.SIGTERM)

    async def keep(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; what runs then runs on."""
        while not stop.is_set():
            if not self.up:
                await asyncio.sleep(POLL)
                continue
            process = self._start()
            while process.exitcode is None:
                if stop.is_set():
                    return
                await asyncio.sleep(POLL)
            self.write_end(process)
            crashed = process.exitcode > 0
            await asyncio.sleep(CRASH_PAUSE if crashed else self._chance.uniform(*PAUSE))

    def write_end(self, process: Process) -> None:
        silent = not process.output.exists() or process.output.stat().st_size == 0
        self._log.write("ended", process=process.name, code=process.exitcode, silent=silent)

    def _start(self) -> Process:
        self.starts += 1
        name = f"{self.name}-{self.starts:03d}"
        if self.doom is None:
            self.ops = f"127.0.0.1:{free_ports(1)[0]}"
            words = ["ingest", *self._verb, "--ops", self.ops]
        else:
            self.ops = ""
            words = ["victim", self._verb[0], *self.doom, "--forever", *_leases(self.doom)]
        self.process = Process(name, words, self._folder, {**self._env, HURRY: "1"})
        self.started_at = time.monotonic()
        self._log.write("started", process=name, pid=self.process.pid, command=words)
        return self.process


def _leases(doom: Sequence[str]) -> list[str]:
    """Who is to be frozen does not know that its lease ends: when it wakes, nothing but the fence holds it back."""
    if doom[-1] == "SIGSTOP":
        return ["--lease-ttl", "600", "--claim-ttl", str(LEASE_TTL)]
    return ["--lease-ttl", str(LEASE_TTL)]


class Fleet:
    """`pollers` and `consumers` in the order of their names."""

    def __init__(self, make: Callable[[str, Sequence[str], str], Member], pollers: int, consumers: int) -> None:
        self._make = make
        self.pollers = [self._member("poller", n) for n in range(1, pollers + 1)]
        self.consumers = [self._member("consumer", n) for n in range(1, consumers + 1)]
        self._stop = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def members(self) -> list[Member]:
        return [*self.pollers, *self.consumers]

    def start(self) -> None:
        for member in self.members:
            self._keep(member)

    def scale_consumers(self, count: int) -> None:
        """Who is too many is asked to leave."""
        while len(self.consumers) < count:
            self.consumers.append(self._member("consumer", len(self.consumers) + 1))
            self._keep(self.consumers[-1])
        for n, consumer in enumerate(self.consumers, 1):
            consumer.up = n <= count
            if not consumer.up:
                consumer.ask_to_stop()

    async def release(self) -> None:
        """Nobody is started again from here on."""
        self._stop.set()
        await asyncio.gather(*self._keepers)

    def kill(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        for member in self.members:
            if member.process is not None:
                member.process.kill()

    def _member(self, role: str, n: int) -> Member:
        verb = ("run",) if role == "poller" else ("consume", "warehouse")
        return self._make(f"{role}-{n}", verb, role)

    def _keep(self, member: Member) -> None:
        self._keepers.append(asyncio.create_task(member.keep(self._stop), name=member.name))
