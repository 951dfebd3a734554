"""One SQLite file, opened once a process: one thread writes, one reads, and waiting for another process is ours.

Every transaction that writes begins IMMEDIATE (a deferred one that upgrades fails at once with SQLITE_BUSY_SNAPSHOT,
whatever the timeout) and retries with jitter (SQLite's own busy handler is unfair: measured, two of four writers
starved for 22 s). `synchronous=FULL`: what was committed survives a power cut. One process checkpoints the WAL, told by
an flock.
"""

import asyncio
import fcntl
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from ingest.errors import ConfigError, StoreUnavailable
from ingest.presence import Presence

T = TypeVar("T")

BUSY_DEADLINE = 30.0  # seconds to wait for other writers
BUSY_SLEEP = (0.0005, 0.004)  # seconds, uniform
WAL_LIMIT = 64_000_000  # bytes that the WAL file keeps after a checkpoint
CACHE_KIB = 32_000
NOW_MS = "(CAST(strftime('%s','now') AS INTEGER) * 1000 + CAST(substr(strftime('%f','now'), 4, 3) AS INTEGER))"
"""The database's clock in milliseconds; constant within one statement. SQLite 3.40 has no `subsec`."""


def path_of(url: str) -> Path:
    """The file that `sqlite:///relative.db` or `sqlite:////absolute.db` names. Raises ConfigError for other URLs."""
    path = url.removeprefix("sqlite:///")
    if path in (url, ""):
        raise ConfigError("a SQLite URL is sqlite:///PATH (relative) or sqlite:////PATH (absolute)")
    return Path(path)


class Database:
    """Made by `open_database`. The functions given to `write` and `read` run on its threads and keep no cursors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.presence = Presence(Path(f"{path}.holders"))  # for the writing thread only
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="sqlite-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sqlite-read")
        self._checkpointer: int | None = None  # file descriptor of the flock, held while this process checkpoints

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._write_connection = await loop.run_in_executor(self._writer, self._connect)
            self._read_connection = await loop.run_in_executor(self._reader, self._connect)
        except (sqlite3.Error, OSError) as exc:
            raise ConfigError(f"cannot open the SQLite file {self.path}: {exc}") from exc

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._reader, self._read_connection.close)
        await loop.run_in_executor(self._writer, self._write_connection.close)
        self._reader.shutdown()
        self._writer.shutdown()
        self.presence.close()
        if self._checkpointer is not None:
            os.close(self._checkpointer)
            self._checkpointer = None

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one IMMEDIATE transaction; committed when this returns, rolled back when it raises.

        Raises StoreUnavailable when the file stays locked or the disk is full, ConfigError when a table is missing.
        A cancelled caller does not undo what the thread has begun.
        """
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._in_transaction, work)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one read transaction: a consistent snapshot."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._in_snapshot, work)

    async def version(self) -> int:
        """Changes whenever anyone, in any process, commits to the file. Cheap, and takes no lock."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._data_version)

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=0.0, check_same_thread=False)
        checkpoint_pages = 1000 if self._may_checkpoint() else 0
        for pragma in (  # any of them may find the file locked: many processes open it anew at once
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"journal_size_limit={WAL_LIMIT}",
            f"cache_size=-{CACHE_KIB}",
            f"wal_autocheckpoint={checkpoint_pages}",
        ):
            _patiently(connection, f"PRAGMA {pragma}")
        return connection

    def _may_checkpoint(self) -> bool:
        if self._checkpointer is None:
            lock = os.open(f"{self.path}-checkpoint.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._checkpointer = lock
        return True

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._write_connection
        with _translated(self.path):
            if self._checkpointer is None and self._may_checkpoint():  # the process that did it has ended
                connection.execute("PRAGMA wal_autocheckpoint=1000")
            _patiently(connection, "BEGIN IMMEDIATE")
            try:
                result = work(connection)
                _patiently(connection, "COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result

    def _in_snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._read_connection
        with _translated(self.path):
            _patiently(connection, "BEGIN")
            try:
                return work(connection)
            finally:
                connection.execute("ROLLBACK")

    def _data_version(self) -> int:
        with _translated(self.path):
            return int(self._read_connection.execute("PRAGMA data_version").fetchone()[0])


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    deadline = time.monotonic() + BUSY_DEADLINE
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(*BUSY_SLEEP))
        else:
            return


class _translated:
    """Drivers' errors become ours; a constraint that fails is the caller's to understand."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if not isinstance(exc, sqlite3.OperationalError):
            return
        if "no such table" in str(exc) or "no such column" in str(exc):
            raise ConfigError(f"{self._path} lacks a table ({exc}): run `ingest migrate`") from exc
        raise StoreUnavailable(f"SQLite file {self._path}: {exc}") from exc


@asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[Database]:
    """Raises ConfigError when the file cannot be opened or made."""
    database = Database(path)
    await database.open()
    try:
        yield database
    finally:
        await database.close()
