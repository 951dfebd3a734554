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

    def stop(self, mode: Mode) -> None: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
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

    def restart(self, mode: Mode = "fast") -> None:
        """Also after `stop` and `kill`. Returns when it answers again, at the same address."""
        self._server.stop(mode)
        self._server.start()

    def close(self) -> None:
        """Stop it and delete its data."""
        self._server.discard()


def start(directory: Path, *, options: Mapping[str, str] | None = None) -> Postgres:
    """A server that answers; `options` are settings of postgresql.conf. Its log goes to `directory`.

    A server given by its address is used as it is: `options` do not reach it, and it cannot be stopped.
    """
    if address := os.environ.get(ADDRESS):
        return Postgres(address, _Foreign())
    settings = {**DEFAULTS, **(options or {})}
    [port] = free_ports(1)
    password = secrets.token_hex(8)
    server: Server = (
        _Container(port, password, settings) if docker_answers() else _Local(directory, port, password, settings)
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
    def __init__(
        self,
        directory: Path,
        port: int,
        password: str,
        settings: Mapping[str, str],
        files: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self._folder = binaries()
        self._port = port
        self._user = unprivileged()
        self._log = directory / "postgres.log"
        directory.mkdir(parents=True, exist_ok=True)
        # Not below `directory`: pytest's folders are closed to the other user that the server runs as.
        self._home = Path(tempfile.mkdtemp(prefix="ingest-postgres-"))
        self._data = self._home / "data"
        self._initialise(password)
        self._settings = {**settings, **{name: str(self._own(file)) for name, file in files.items()}}
        self._child: Child | None = None

    def _own(self, file: Path) -> Path:
        """A copy that the server may read and nobody else."""
        copy = self._home / file.name
        shutil.copy(file, copy)
        copy.chmod(0o600)
        if self._user is not None:
            shutil.chown(copy, self._user)
        return copy

    def _initialise(self, password: str) -> None:
        secret = self._home / "password"
        secret.write_text(password)
        if self._user is not None:
            shutil.chown(self._home, self._user)
            shutil.chown(secret, self._user)
        command: list[str | Path] = [self._folder / "initdb", "-D", self._data, "-U", "postgres", "--pwfile", secret]
        # `password` is in the clear, over loopback only: SCRAM costs each of thousands of connections 10 ms
        command += ["--auth=password", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"]
        done = subprocess.run(command, user=self._user, cwd=self._home, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotStarted(f"initdb failed:\n{done.stdout}{done.stderr}")

    def start(self) -> None:
        settings = {**self._settings, "unix_socket_directories": str(self._home)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._folder / "postgres"), "-D", str(self._data), "-h", "127.0.0.1", "-p", str(self._port)]
        self._child = Child([*command, *options], log=self._log, user=self._user, cwd=self._home)
        self._child.wait_until(self._answers, timeout=START_TIMEOUT, name="PostgreSQL")

    def _answers(self) -> bool:
        ready = self._folder / "pg_isready"
        return accepts(self._port) and subprocess.run(
            [ready, "-q", "-h", "127.0.0.1", "-p", str(self._port)], check=False
        ).returncode == 0

    def stop(self, mode: Mode) -> None:
        if self._child is not None:
            self._child.stop(with_signal=SIGNALS[mode], grace=STOP_GRACE)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def discard(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self._home, ignore_errors=True)


class _Container:
    def __init__(self, port: int, password: str, settings: Mapping[str, str]) -> None:
        from testcontainers.core.container import DockerContainer  # only where an engine answers

        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._port = port
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

    def discard(self) -> None:
        self._container.stop()


class _Foreign:
    def start(self) -> None:
        self._refuse()

    def stop(self, mode: Mode) -> None:
        self._refuse()

    def kill(self) -> None:
        self._refuse()

    def discard(self) -> None:
        """It was there before us and stays."""

    def _refuse(self) -> None:
        raise RuntimeError(f"the server of {ADDRESS} is not ours to stop; unset it to run this test")
