"""One SQLite file, opened once a process: one thread writes, one reads, and waiting for another process is ours.

Every transaction that writes begins IMMEDIATE (a deferred one that upgrades fails at once with SQLITE_BUSY_SNAPSHOT,
whatever the timeout) and retries with jitter (SQLite's own busy handler is unfair: measured, two of four writers
starved for 22 s). `synchronous=FULL`: what was committed survives a power cut. One process checkpoints the WAL, told by
an flock; the others do so only where it has grown long, as that process may stand still or never write.

A file that was deleted or replaced under us is never written to again: nobody would find there what we commit.
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

import structlog

from ingest.errors import ConfigError, IngestError, StoreUnavailable
from ingest.presence import Presence

log = structlog.get_logger()
T = TypeVar("T")

BUSY_DEADLINE = 30.0  # seconds to wait for other writers
BUSY_SLEEP = (0.0005, 0.004)  # seconds, uniform
WAL_LIMIT = 64_000_000  # bytes that the WAL file keeps after a checkpoint
WAL_PAGES = 1_000  # after so many the process that checkpoints does it
WAL_LOOK_EVERY = 10.0  # seconds between attempts to cut a WAL that is longer than WAL_LIMIT
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
        self._file: os.stat_result | None = None  # as it was opened
        self._wal_look_at = 0.0  # time.monotonic()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._write_connection = await loop.run_in_executor(self._writer, self._connect)
            self._read_connection = await loop.run_in_executor(self._reader, self._connect)
        except sqlite3.Error as exc:
            meaning = translated(self.path, exc)
            kind = StoreUnavailable if isinstance(meaning, StoreUnavailable) else ConfigError
            raise kind(f"cannot open the SQLite file {self.path}: {meaning or exc}") from exc
        except OSError as exc:
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

        Raises StoreUnavailable when the file stays locked or the disk is full, ConfigError when a table is missing, or
        the file is damaged, may not be written or is no longer at its path.
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
        pages = WAL_PAGES if self._may_checkpoint() else WAL_LIMIT // 4096
        for pragma in (  # any of them may find the file locked: many processes open it anew at once
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"journal_size_limit={WAL_LIMIT}",
            f"cache_size=-{CACHE_KIB}",
            f"wal_autocheckpoint={pages}",
        ):
            _patiently(connection, f"PRAGMA {pragma}")
        self._file = os.stat(self.path)
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
            self._ensure_in_place()
            if self._checkpointer is None and self._may_checkpoint():  # the process that did it has ended
                connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
            _patiently(connection, "BEGIN IMMEDIATE")
            try:
                result = work(connection)
                _patiently(connection, "COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self._cut_wal(connection)
            return result

    def _ensure_in_place(self) -> None:
        try:
            if self._file is not None and os.path.samestat(self._file, os.stat(self.path)):
                return
        except OSError:
            pass
        raise ConfigError(
            f"the SQLite file {self.path} was deleted or replaced while it was in use: nothing more is written to it."
            " Put it back, or start again with the one that is there"
        )

    def _cut_wal(self, connection: sqlite3.Connection) -> None:
        """Readers keep a checkpoint from beginning the WAL anew, and so does a stream of short ones: when it is too
        long, look for a moment without any, and cut it. Nobody waits."""
        now = time.monotonic()
        if now < self._wal_look_at:
            return
        wal = Path(f"{self.path}-wal")
        size = wal_bytes(self.path)
        if size <= WAL_LIMIT:
            return
        self._wal_look_at = now + WAL_LOOK_EVERY
        [busy, *_] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            log.warning("the WAL grows: someone reads the file all the time", file=str(wal), bytes=size)

    def _in_snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._read_connection
        with _translated(self.path):
            self._ensure_in_place()
            _patiently(connection, "BEGIN")
            try:
                return work(connection)
            finally:
                connection.execute("ROLLBACK")

    def _data_version(self) -> int:
        with _translated(self.path):
            return int(self._read_connection.execute("PRAGMA data_version").fetchone()[0])


def wal_bytes(path: Path) -> int:
    """Of the WAL beside a database file; 0 where there is none."""
    try:
        return Path(f"{path}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    deadline = time.monotonic() + BUSY_DEADLINE
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            _count_busy()
            time.sleep(random.uniform(*BUSY_SLEEP))
        else:
            return


def _count_busy() -> None:
    from ingest import metrics  # most processes never wait, and do without

    metrics.sqlite_busy.inc()


def translated(path: Path, exc: BaseException) -> IngestError | None:
    """What an error of SQLite means; None for a constraint that fails, which is the caller's to understand."""
    if isinstance(exc, sqlite3.IntegrityError) or not isinstance(exc, sqlite3.DatabaseError):
        return None
    code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ConfigError(
            f"the SQLite file {path} is damaged ({exc}): stop what uses it, keep it with its -wal file, and restore a"
            f" backup, or save what can be read by `sqlite3 {path} .recover | sqlite3 new.db`"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return ConfigError(
            f"the SQLite file {path} cannot be written ({exc}): we need the right to write the file and its folder"
        )
    if not isinstance(exc, sqlite3.OperationalError):
        return None
    if "no such table" in str(exc) or "no such column" in str(exc):
        return ConfigError(f"{path} lacks a table ({exc}): run `ingest migrate`")
    return StoreUnavailable(f"SQLite file {path}: {exc}")


class _translated:
    """Drivers' errors become ours."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if exc is not None and (meaning := translated(self._path, exc)) is not None:
            raise meaning from exc


@asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[Database]:
    """Raises ConfigError when the file cannot be opened or made."""
    database = Database(path)
    await database.open()
    try:
        yield database
    finally:
        await database.close()
