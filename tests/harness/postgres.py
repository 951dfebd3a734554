"""A PostgreSQL server for tests: an address in INGEST_TEST_POSTGRES_URL, else a container, else a local process.

It runs with PostgreSQL's own durable defaults (fsync, synchronous_commit), so that a crash test means something.
The process can be killed and restarted on the same port with its data.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.harness.processes import Child, NotStarted, accepts, docker_answers, free_ports, wait_until

ADDRESS = "INGEST_TEST_POSTGRES_URL"
IMAGE = "postgres:17-alpine"
START_TIMEOUT = 60.0  # seconds, crash recovery included
STOP_GRACE = 20.0  # seconds before a stop becomes a kill
DEFAULTS = {"max_connections": "200", "shared_buffers": "64MB"}

Mode = Literal["smart", "fast", "immediate"]
# PostgreSQL documentation, "Shutting Down the Server"
SIGNALS: dict[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class Server(Protocol):
    """How one kind of server is stopped and started again; its address stays the same."""

    @property
    def port(self) -> int: ...
    def stop(self, mode: Mode) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def start(self) -> None: ...
    def standby(self, directory: Path) -> "Server": ...
    def promote(self) -> None: ...
    def discard(self) -> None: ...


class Postgres:
    """Made by `start`. `url` is a superuser's, on the database `postgres`."""

    def __init__(self, url: str, server: Server) -> None:
        self.url = url
        self._server = server

    async def create_database(self, name: str, *, template: str = "template1") -> str:
        """The address of a new database, a copy of `template` (to which nobody may be connected)."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        finally:
            await connection.close()
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    async def drop_database(self, name: str) -> None:
        """Whoever is still connected to it is cut off."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        finally:
            await connection.close()

    def stop(self, mode: Mode = "fast") -> None:
        """`fast` cuts clients off and writes a checkpoint; `immediate` leaves crash recovery to the next start."""
        self._server.stop(mode)

    def kill(self) -> None:
        """SIGKILL of the postmaster: what a machine that loses power does to it."""
        self._server.kill()

    def pause(self) -> None:
        """SIGSTOP of the postmaster and all its backends: connections stay open and nothing answers."""
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

    def restart(self, mode: Mode = "fast") -> None:
        """Also after `stop` and `kill`. Returns when it answers again, at the same address."""
        self._server.stop(mode)
        self._server.start()

    def revive(self) -> None:
        """Start it where it is not running."""
        if not accepts(self.port):
            self.restart()

    def standby(self, directory: Path) -> "Postgres":
        """A copy of this server on this machine, that follows it by asynchronous streaming and answers queries."""
        server = self._server.standby(directory)
        server.start()
        parts = urlsplit(self.url)
        return Postgres(urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{server.port}")), server)

    def promote(self) -> None:
        """Of a standby: it takes writes when this returns, and has what had reached it."""
        self._server.promote()

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 5432

    def close(self) -> None:
        """Stop it and delete its data."""
        self._server.discard()


def start(directory: Path, *, options: Mapping[str, str] | None = None, local: bool = False) -> Postgres:
    """A server that answers; `options` are settings of postgresql.conf. Its log goes to `directory`.

    A server given by its address is used as it is: `options` do not reach it, and it cannot be stopped. `local`: a
    process whatever else there is, for what only a process can do: be copied, be frozen, find its disk full.
    """
    if not local and (address := os.environ.get(ADDRESS)):
        return Postgres(address, _Foreign())
    settings = {**DEFAULTS, **(options or {})}
    [port] = free_ports(1)
    password = secrets.token_hex(8)
    server: Server = (
        _Container(port, password, settings)
        if not local and docker_answers()
        else _Local(directory, port, password, settings)
    )
    server.start()
    return Postgres(f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres", server)


def start_guarded(directory: Path, files: Mapping[str, Path]) -> Postgres:
    """A local server with TLS; `files`: settings of postgresql.conf that name a file, such as ssl_key_file."""
    [port] = free_ports(1)
    password = secrets.token_hex(8)
    server = _Local(directory, port, password, {**DEFAULTS, "ssl": "on"}, files)
    server.start()
    return Postgres(f"postgresql://postgres:{password}@localhost:{port}/postgres", server)


def binaries() -> Path:
    """The folder of `initdb` and `postgres`; raises NotStarted when PostgreSQL is not installed."""
    folders = [Path(found).resolve().parent for name in ("postgres", "initdb") if (found := shutil.which(name))]
    # 9 sorts behind 10 as text, but no server that old is worth finding
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if shutil.which("pg_config"):
        folders.append(Path(subprocess.check_output(["pg_config", "--bindir"], text=True).strip()))
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NotStarted(f"no PostgreSQL server found: install the package `postgresql`, or set {ADDRESS}")


def unprivileged() -> str | None:
    """The user to run as when we are root, whom PostgreSQL and PgBouncer refuse."""
    if os.geteuid() != 0:
        return None
    return next((entry.pw_name for entry in pwd.getpwall() if entry.pw_name == "postgres"), "nobody")


class _Local:
    """`files`: settings that name a file. `primary`: the server to copy and to follow; None: a new one."""

    def __init__(
        self,
        directory: Path,
        port: int,
        password: str,
        settings: Mapping[str, str],
        files: Mapping[str, Path] = MappingProxyType({}),
        primary: "_Local | None" = None,
    ) -> None:
        self._folder = binaries()
        self.port = port
        self._password = password
        self._user = unprivileged()
        self._log = directory / "postgres.log"
        directory.mkdir(parents=True, exist_ok=True)
        # Not below `directory`: pytest's folders are closed to the other user that the server runs as.
        self._home = Path(tempfile.mkdtemp(prefix="ingest-postgres-"))
        self._data = self._home / "data"
        if self._user is not None:
            shutil.chown(self._home, self._user)
        self._settings = {**settings, **{name: str(self._own(file)) for name, file in files.items()}}
        if primary is None:
            self._initialise()
        else:
            self._copy(primary)
        self._child: Child | None = None

    def _own(self, file: Path) -> Path:
        """A copy that the server may read and nobody else."""
        copy = self._home / file.name
        shutil.copy(file, copy)
        copy.chmod(0o600)
        if self._user is not None:
            shutil.chown(copy, self._user)
        return copy

    def _copy(self, primary: "_Local") -> None:
        """PostgreSQL documentation, "pg_basebackup": `-R` makes it a standby that follows."""
        source = f"postgresql://postgres:{self._password}@127.0.0.1:{primary.port}/postgres"
        command: list[str | Path] = [self._folder / "pg_basebackup", "-D", self._data, "-d", source]
        self._run([*command, "-R", "-X", "stream", "-c", "fast", "--no-sync"])

    def _initialise(self) -> None:
        secret = self._home / "password"
        secret.write_text(self._password)
        if self._user is not None:
            shutil.chown(secret, self._user)
        command: list[str | Path] = [self._folder / "initdb", "-D", self._data, "-U", "postgres", "--pwfile", secret]
        # `password` is in the clear, over loopback only: SCRAM costs each of thousands of connections 10 ms
        command += ["--auth=password", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"]
        self._run(command)

    def _run(self, command: list[str | Path]) -> None:
        done = subprocess.run(command, user=self._user, cwd=self._home, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotStarted(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")

    def standby(self, directory: Path) -> "_Local":
        [port] = free_ports(1)
        return _Local(directory, port, self._password, self._settings, primary=self)

    def promote(self) -> None:
        self._run([self._folder / "pg_ctl", "promote", "-w", "-D", self._data])

    def start(self) -> None:
        settings = {**self._settings, "unix_socket_directories": str(self._home)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._folder / "postgres"), "-D", str(self._data), "-h", "127.0.0.1", "-p", str(self.port)]
        self._child = Child([*command, *options], log=self._log, user=self._user, cwd=self._home)
        self._child.wait_until(self._answers, timeout=START_TIMEOUT, name="PostgreSQL")

    def _answers(self) -> bool:
        ready = self._folder / "pg_isready"
        return accepts(self.port) and subprocess.run(
            [ready, "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        ).returncode == 0

    def stop(self, mode: Mode) -> None:
        if self._child is not None:
            self._child.stop(with_signal=SIGNALS[mode], grace=STOP_GRACE)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def pause(self) -> None:
        self._send_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._send_all(signal.SIGCONT)

    def _send_all(self, number: signal.Signals) -> None:
        """The postmaster first: it would start another backend. Backends are its children, in sessions of their own."""
        if self._child is None or self._child.returncode is not None:
            return
        self._child.send(number)
        for pid in Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def discard(self) -> None:
        self.resume()
        self.stop("immediate")
        shutil.rmtree(self._home, ignore_errors=True)


class _Container:
    def __init__(self, port: int, password: str, settings: Mapping[str, str]) -> None:
        from testcontainers.core.container import DockerContainer  # only where an engine answers

        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.port = port
        self._container = (
            DockerContainer(IMAGE)
            .with_env("POSTGRES_PASSWORD", password)
            .with_bind_ports(5432, port)
            .with_command(["postgres", *options])
        )
        self._created = False

    def start(self) -> None:
        if self._created:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._created = True
        wait_until(self._answers, timeout=START_TIMEOUT, what=lambda: "the PostgreSQL container does not answer")

    def _answers(self) -> bool:
        # Over TCP: while the image initialises, its temporary server listens on a socket file only.
        return bool(self._container.exec(["pg_isready", "-q", "-h", "127.0.0.1"]).exit_code == 0)

    def stop(self, mode: Mode) -> None:
        if mode != "fast":
            self._container.get_wrapped_container().kill(SIGNALS[mode].name)
            self._container.get_wrapped_container().wait()
        else:
            self._container.get_wrapped_container().stop(timeout=int(STOP_GRACE))

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def standby(self, directory: Path) -> Server:
        raise RuntimeError("a standby is made of a local server: ask `start` for one")

    def promote(self) -> None:
        raise RuntimeError("a container is no standby")

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def discard(self) -> None:
        self._container.stop()


class _Foreign:
    port = 0

    def standby(self, directory: Path) -> Server:
        raise RuntimeError(f"the server of {ADDRESS} is not ours to copy; unset it to run this test")

    def promote(self) -> None:
        self._refuse()

    def start(self) -> None:
        self._refuse()

    def stop(self, mode: Mode) -> None:
        self._refuse()

    def kill(self) -> None:
        self._refuse()

    def pause(self) -> None:
        self._refuse()

    def resume(self) -> None:
        self._refuse()

    def discard(self) -> None:
        """It was there before us and stays."""

    def _refuse(self) -> None:
        raise RuntimeError(f"the server of {ADDRESS} is not ours to stop; unset it to run this test")
