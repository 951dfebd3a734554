"""The SQLite file when its disk is full, when others hold it, and when it is moved, damaged or closed to us."""

import asyncio
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from checkpoints import Claim, Save, StreamId
from checkpoints.sqlite import SqliteCheckpoints, SqliteLeases
from consumers.store import Query
from consumers.store.sqlite import SqliteStore
from ingest import sqlite as adapter
from ingest.errors import ConfigError, IngestError, LogUnavailable, StoreUnavailable
from ingest.event import Envelope, Message
from ingest.eventlog import Publisher, TopicSpec
from ingest.eventlog.sqlite import SqliteLog
from ingest.sources import SourceRecord
from ingest.sqlite import Database, open_database
from migrations.runner import migrate
from tests.chaos.configuration import CONSUMER
from tests.chaos.pipeline import RECORDS, Pipeline
from tests.contract.test_store import TOPIC, event, span
from tests.harness.faults import ok, slow
from tests.harness.processes import tail

STREAM = StreamId("billing", "invoices")
ROOM = 24_000  # bytes of a file that may be written where the disk is full: enough for what a process prints
WHAT = ["publish", "save", "write", "claim"]


class Parts(NamedTuple):
    database: Database
    publisher: Publisher
    checkpoints: SqliteCheckpoints
    store: SqliteStore
    claim: Claim


@pytest_asyncio.fixture
async def parts(sqlite_path: Path) -> AsyncIterator[Parts]:
    async with opened(sqlite_path) as parts:
        yield parts


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Parts]:
    await migrate(f"sqlite:///{path}")
    async with open_database(path) as database:
        holder = f"here:1:{uuid.uuid4().hex}"
        log = SqliteLog(database, SqliteLeases(database), holder)
        async with log.admin() as admin, log.publisher() as publisher:
            await admin.create([TopicSpec(TOPIC, 1, 1, 1, -1, 1_000_000)])
            checkpoints = SqliteCheckpoints(database)
            claim = await checkpoints.claim(STREAM, holder, 600.0)
            assert claim is not None
            yield Parts(database, publisher, checkpoints, SqliteStore(database), claim)


def message(name: str) -> Message:
    record = SourceRecord(name, None, name, None, None, b'{"text":"%s"}' % (b"x" * 500))
    return Envelope(*STREAM, 1).messages([record])[0]


def work(parts: Parts, what: str) -> Coroutine[Any, Any, object]:
    match what:
        case "publish":
            return parts.publisher.publish(TOPIC, [message(str(n)) for n in range(200)])
        case "save":
            return parts.checkpoints.save(parts.claim, Save(b'{"n":"%s"}' % (b"x" * 100_000)))
        case "write":
            events = [event(str(n), b'"%s"' % (b"x" * 500)) for n in range(200)]
            return parts.store.write(CONSUMER, events, [span(0, 9)])
        case _:
            return parts.checkpoints.claim(StreamId("x" * 50_000, what), "here:1:b", 600.0)


def contents(path: Path) -> list[Any]:
    """Everything that counts, as another process sees it."""
    connection = sqlite3.connect(path)
    try:
        tables = ("log", "checkpoints", "events", "offsets", "leases")
        return [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in tables]
    finally:
        connection.close()


def sound(path: Path) -> bool:
    connection = sqlite3.connect(path)
    try:
        return bool(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)])
    finally:
        connection.close()


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can be written beyond ROOM: the kernel refuses it, as it does on a disk without room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# A full disk


@pytest.mark.parametrize("what", WHAT)
async def test_a_full_disk_moves_nothing_and_damages_nothing(parts: Parts, sqlite_path: Path, what: str) -> None:
    before = contents(sqlite_path)
    with full_disk():
        for _ in range(2):
            with pytest.raises((StoreUnavailable, LogUnavailable), match="SQLite file"):
                await work(parts, what)
    assert contents(sqlite_path) == before
    await work(parts, what)
    assert contents(sqlite_path) != before
    assert sound(sqlite_path)


@pytest.mark.parametrize("servers", ["sqlite"], indirect=True)
async def test_a_poller_and_a_consumer_wait_for_room_on_the_disk_and_go_on(pipeline: Pipeline) -> None:
    pipeline.api.misbehave([ok, ok, *[slow(0.3)] * 6])
    poller, consumer = pipeline.start("run"), pipeline.start("consume", CONSUMER)

    async def under_way() -> bool:
        return len(await pipeline.cursors()) >= 2 and await pipeline.stored() > 0

    async def said() -> bool:
        return "cannot publish yet" in poller.output.read_text()

    async def all_there() -> bool:
        return await pipeline.stored() == RECORDS

    await poller.reaches(under_way)
    limits = [(process, resource.prlimit(process.pid, resource.RLIMIT_FSIZE)) for process in (poller, consumer)]
    for process, (_, hard) in limits:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (ROOM, hard))
    await poller.reaches(said)
    for process, limit in limits:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limit)
    await consumer.reaches(all_there)
    for process in (poller, consumer):
        process.send(signal.SIGTERM)
        assert await process.ended() == 0, tail(process.output)
        assert "Traceback" not in process.output.read_text()
    await pipeline.proves(repeats=0, drained=True)
    assert sound(Path(pipeline.place.database))


# Others who hold it


@pytest.mark.parametrize("what", WHAT)
async def test_a_file_that_stays_locked_is_an_outage_and_nothing_more(
    parts: Parts, sqlite_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(sqlite_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with monkeypatch.context() as patched:
        patched.setattr(adapter, "BUSY_DEADLINE", 0.2)
        with pytest.raises((StoreUnavailable, LogUnavailable), match="locked"):
            await work(parts, what)
    other.execute("ROLLBACK")
    other.close()
    await work(parts, what)


async def test_a_new_process_that_finds_the_file_locked_may_be_tried_again(
    parts: Parts, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opens it alone in the old way keeps even readers out."""
    monkeypatch.setattr(adapter, "BUSY_DEADLINE", 0.2)
    path = sqlite_path.with_name("other.db")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable, match=r"cannot open .*locked"):
        async with open_database(path):
            pass
    other.close()


def wal_size(path: Path) -> int:
    wal = Path(f"{path}-wal")
    return wal.stat().st_size if wal.exists() else 0


async def published(parts: Parts, size: int) -> None:
    for n in range(size // 100_000):
        await parts.publisher.publish(TOPIC, [message(f"{n}-{m}") for m in range(180)])


async def test_the_wal_of_a_long_reader_is_cut_when_he_has_gone(
    parts: Parts, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "WAL_LIMIT", 1_000_000)
    monkeypatch.setattr(adapter, "WAL_LOOK_EVERY", 0.0)
    reader = sqlite3.connect(sqlite_path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM log").fetchone()
    await published(parts, 5_000_000)
    assert wal_size(sqlite_path) > 5_000_000, "he holds it"
    reader.execute("ROLLBACK")
    reader.close()
    await parts.publisher.publish(TOPIC, [message("last")])
    assert wal_size(sqlite_path) < 1_000_000


async def test_the_wal_does_not_grow_while_the_process_that_checkpoints_stands_still(
    parts: Parts, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "WAL_LIMIT", 1_000_000)
    async with opened_second(sqlite_path) as second:
        assert second.database._checkpointer is None
        await published(second, 5_000_000)
        assert wal_size(sqlite_path) < 4_000_000


@asynccontextmanager
async def opened_second(path: Path) -> AsyncIterator[Parts]:
    async with open_database(path) as database:
        log = SqliteLog(database, SqliteLeases(database), "here:1:b")
        async with log.publisher() as publisher:
            claim = await SqliteCheckpoints(database).claim(StreamId("other", "one"), "here:1:b", 600.0)
            assert claim is not None
            yield Parts(database, publisher, SqliteCheckpoints(database), SqliteStore(database), claim)


# Moved, damaged, closed to us


def moved(path: Path) -> Path:
    return path.rename(path.with_name("kept.db"))


def replaced(path: Path) -> bytes:
    """By another database; its bytes."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (n)")
    connection.close()
    return path.read_bytes()


@pytest.mark.parametrize("what", WHAT)
async def test_a_file_that_was_moved_away_is_not_written_until_it_is_back(sqlite_path: Path, what: str) -> None:
    async with opened(sqlite_path) as parts:
        kept = moved(sqlite_path)
        with pytest.raises(ConfigError, match="was deleted or replaced while it was in use"):
            await work(parts, what)
        with pytest.raises(ConfigError, match="was deleted or replaced while it was in use"):
            await parts.store.count(Query())
        os.rename(kept, sqlite_path)
        await work(parts, what)


async def test_a_file_that_was_replaced_is_not_written_nor_the_one_in_its_place(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as parts:
        moved(sqlite_path)
        theirs = replaced(sqlite_path)
        for what in WHAT:
            with pytest.raises(ConfigError, match="was deleted or replaced while it was in use"):
                await work(parts, what)
    assert is_still(sqlite_path, theirs)


def is_still(path: Path, content: bytes) -> bool:
    return path.read_bytes() == content


def damage(path: Path) -> None:
    """Everything but the header."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))


async def test_a_damaged_file_says_what_to_do(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as parts:
        await published(parts, 1_000_000)
    damage(sqlite_path)
    with pytest.raises(ConfigError, match=r"is damaged .*restore a backup"):
        async with open_database(sqlite_path) as database:
            await SqliteStore(database).write(CONSUMER, [event()], [span(0, 1)])


@pytest.fixture
def no_database(sqlite_path: Path) -> Path:
    sqlite_path.write_bytes(b"what is this?" * 1000)
    return sqlite_path


async def test_a_file_that_is_no_database_says_so(no_database: Path) -> None:
    with pytest.raises(ConfigError, match=r"is damaged .*not a database"):
        async with open_database(no_database):
            pass


def said_by_another(do: Callable[[], str]) -> str:
    """What `do` says in a process that is not root, whom no permission stops."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            os.write(writing, do().encode())
        except BaseException as exc:
            os.write(writing, repr(exc).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_file_and_a_folder_that_may_not_be_written_say_so() -> None:
    folder = Path(tempfile.mkdtemp(prefix="ingest-read-only-"))  # pytest's own are closed to others
    path = folder / "ingest.db"

    async def made() -> None:
        async with opened(path):
            pass

    async def attempt() -> None:
        async with open_database(path) as database:
            await SqliteStore(database).write(CONSUMER, [event()], [span(0, 1)])

    def said() -> str:
        try:
            asyncio.run(attempt())
        except IngestError as exc:
            return f"{type(exc).__name__}: {exc}"
        return "it was written"

    try:
        asyncio.run(made())
        for leftover in folder.glob("ingest.db-*"):
            leftover.unlink()
        path.chmod(0o444)
        folder.chmod(0o555)
        assert said_by_another(said).startswith("ConfigError: cannot open the SQLite file")
        for suffix in ("-wal", "-shm", "-checkpoint.lock"):  # as of a process that runs, and is another user's
            Path(f"{path}{suffix}").touch()
            Path(f"{path}{suffix}").chmod(0o666)
        assert "cannot be written" in said_by_another(said)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
