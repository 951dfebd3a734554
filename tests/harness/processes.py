"""Child processes of the tests: on free ports, with their output in a file, gone when the tests are gone.

A child is killed by the kernel when the thread that started it ends, so that no broker outlives a killed test run.
Start children from the main thread.
"""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

POLL = 0.05  # seconds between two looks
PORTS = (15_000, 32_000)  # below Linux's ephemeral range, so that a stopped server finds its port again
KILLED = 10.0  # seconds that the kernel may take to reap a killed process
TAIL = 4_000  # characters of a log that an error message shows


class NotStarted(Exception):
    """A part that the tests need did not come up; the message holds what it printed last."""


_given: set[int] = set()  # by this process: a server that is down comes back to its port


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nothing listens; none is given twice."""
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            candidate = held.enter_context(socket.socket())
            port = random.SystemRandom().randrange(*PORTS)
            if port in _given:
                continue
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
            _given.add(port)
    return ports


def wait_until(ready: Callable[[], bool], *, timeout: float, what: Callable[[], str]) -> None:
    """Look until `ready()`; raises NotStarted with `what()` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise NotStarted(f"{what()} (waited {timeout:.0f} s)")
        time.sleep(POLL)


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def tail(path: Path) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    return text[-TAIL:] or "(no output)"


class Child:
    """One process. `log` gets its output, appended over restarts."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log = log
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        if user is not None:
            guard += ["--reuid", user, "--regid", user_group(user), "--clear-groups"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,  # Ctrl-C is for pytest, which then stops its children in order
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def last_words(self) -> str:
        return tail(self.log)

    def send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def stop(self, *, with_signal: signal.Signals = signal.SIGTERM, grace: float = 30.0) -> None:
        """Ask, wait `grace` seconds, then kill. A stopped process cannot hear, so it is continued first."""
        self.send(signal.SIGCONT)
        self.send(with_signal)
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._process.wait(KILLED)

    def wait_until(self, ready: Callable[[], bool], *, timeout: float, name: str) -> None:
        """As `wait_until`, but a process that ends gives up at once."""

        def ready_or_dead() -> bool:
            if self.returncode is not None:
                raise NotStarted(f"{name} ended with {self.returncode}:\n{self.last_words()}")
            return ready()

        wait_until(ready_or_dead, timeout=timeout, what=lambda: f"{name} does not answer:\n{self.last_words()}")


def user_group(user: str) -> str:
    return str(pwd.getpwnam(user).pw_gid)


def docker_answers() -> bool:
    """Whether a Docker engine is there for testcontainers."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=20).returncode == 0
