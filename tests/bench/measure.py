"""Measures one process: wall clock, CPU time and peak memory, from its start to its end.

CPU is user and system time of the process and of its children that ended. The peak is read from /proc while the process
runs: the kernel's own account (ru_maxrss) begins with what the parent had before the exec.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SAMPLE_EVERY = 0.05  # seconds between two looks at the memory
TAIL = 3_000  # characters of output that an error shows
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}  # else a program whose bytecode is not there compiles itself at every start
GUARD = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []  # no process outlives a killed bench


class Failed(Exception):
    """A measured process ended with an error or did not do its work; the message holds what it printed last."""


class Usage(NamedTuple):
    wall: float  # seconds
    cpu: float  # seconds
    peak: float  # MB of resident memory
    output: str


class Process:
    """Runs from the moment it is made. `wait` gives what it used."""

    def __init__(self, command: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path) -> None:
        self._command = command
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed by `wait`
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            [*GUARD, *command], stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
            env={**os.environ, **BYTECODE, **env}, cwd=cwd, start_new_session=True,
        )  # fmt: skip
        self._peak = 0.0

    def look(self) -> None:
        """Note the memory that it has used so far."""
        with suppress(OSError):
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            if found := re.search(r"VmHWM:\s+(\d+) kB", status):
                self._peak = max(self._peak, int(found[1]) / 1000)

    def terminate(self) -> None:
        os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()

    def ended(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    async def wait(self, timeout: float, *, killed: bool = False) -> Usage:
        """Raises Failed when it ends with an error, or not within `timeout` seconds. `killed`: by us, no error."""
        end = asyncio.Event()
        fd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(fd, end.set)
        deadline = time.monotonic() + timeout
        try:
            while not end.is_set() and time.monotonic() < deadline:
                self.look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(end.wait(), SAMPLE_EVERY)
        finally:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
            if not end.is_set():
                self._process.kill()
        _, status, used = os.wait4(self._process.pid, 0)  # noqa: ASYNC222  it has ended
        wall = time.perf_counter() - self.started
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        self._output.close()
        expected = -signal.SIGKILL if killed else 0
        if not end.is_set() or self._process.returncode != expected:
            what = f"ended with {self._process.returncode}" if end.is_set() else f"took more than {timeout:.0f} s"
            raise Failed(f"{' '.join(map(str, self._command))} {what}:\n{output[-TAIL:]}")
        return Usage(wall, used.ru_utime + used.ru_stime, self._peak, output)


async def run(
    command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 600
) -> Usage:
    return await Process(command, env=env or {}, cwd=cwd).wait(timeout)
