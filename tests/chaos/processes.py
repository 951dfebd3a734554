"""The product's commands, and the victims, as processes of their own.

They are forked from one process that has imported everything and run nothing: that takes 20 ms, where starting Python
and importing takes a second. The kernel kills them when that process ends, which it does with the tests, so that none
stays behind, frozen ones included.
"""

import asyncio
import ctypes
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ingest import cli
from tests.chaos import haste, victim
from tests.harness.processes import tail

DEADLINE = 60.0  # seconds that anything may take
POLL = 0.02  # seconds
KILLED = 10.0  # seconds that the kernel may take
PR_SET_PDEATHSIG = 1  # prctl(2)
HURRY = "CHAOS_HURRY"
"""In the environment of a process: the product's longest waits are shortened (tests/chaos/haste.py)."""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


async def until(ready: Callable[[], Awaitable[bool]], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not await ready():
        assert time.monotonic() < deadline, f"it did not come to pass: {what()}"
        await asyncio.sleep(POLL)


class Process:
    """One of them. It is awaited without holding up the API, which runs here."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.output = folder / f"{name}.out"
        self._process = FORKS.Process(target=_become, args=(command, folder, env, self.output))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    def stands_still(self) -> bool:
        """It was stopped by a signal."""
        return self.exitcode is None and _state(self.pid) == "T"

    async def ended(self) -> int:
        """The exit code; minus the number of the signal that killed it."""

        async def gone() -> bool:
            return self._process.exitcode is not None

        await until(gone, lambda: f"{self.name} ends\n{tail(self.output)}")
        assert self._process.exitcode is not None
        return self._process.exitcode

    async def reaches(self, ready: Callable[[], Awaitable[bool]]) -> None:
        """Waits until `ready` while the process runs; it may not end before."""

        async def ready_or_over() -> bool:
            assert self._process.exitcode is None, f"{self.name} ended too early\n{tail(self.output)}"
            return await ready()

        await until(ready_or_over, lambda: f"{self.name} gets there\n{tail(self.output)}")

    async def frozen(self) -> None:
        async def stopped() -> bool:
            return self.stands_still()

        await self.reaches(stopped)

    def send(self, number: signal.Signals) -> None:
        if self.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join(KILLED)

    def said(self) -> Any:
        """What it printed as JSON: the one object of its only stream or topic."""
        text = self.output.read_text()
        [found] = json.loads(text[text.index("[\n") :])
        return found


def _state(pid: int) -> str:
    """The letter of proc(5); X when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _become(command: Sequence[str], folder: Path, env: Mapping[str, str], output: Path) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(folder)
    os.environ.update(env)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    random.seed()
    sys.argv = [*command]
    if HURRY in env:
        haste.hurry()
    if command[0] != "victim":
        cli.main()
    try:
        sys.exit(asyncio.run(victim.main()))
    except BaseException as exc:
        sys.exit(cli._exit_code(cli._cause(exc)))
