"""Gathers what a history is made of: from the API's own log, through the ports, and from triggers.

Triggers write down every cursor and every offset at the moment at which it is saved, whoever does it. A SQLite file is
copied before it is looked at: whoever opens it after a crash recovers it, and that is for the product to do.
"""

import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import asyncpg
from aiokafka.errors import KafkaError

from checkpoints.sqlite import SqliteLeases
from consumers.store import EventStore, Query
from consumers.store.postgres import PostgresStore
from consumers.store.sqlite import SqliteStore
from ingest import deadletter
from ingest.errors import IngestError
from ingest.eventlog import EventLog, Reader
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.sqlite import SqliteLog
from ingest.postgres import open_postgres
from ingest.sqlite import NOW_MS, open_database
from tests.chaos.history import Fact, History, Logged, Moved, Saved, Stored

SQLITE_TRIGGERS = f"""
CREATE TABLE saved_cursors (
    n INTEGER PRIMARY KEY, fence INTEGER NOT NULL, cursor TEXT NOT NULL, at INTEGER, lease INTEGER);
CREATE TRIGGER cursor_made AFTER INSERT ON checkpoints BEGIN
    INSERT INTO saved_cursors (fence, cursor, at, lease) VALUES (NEW.fence, NEW.cursor, {NOW_MS},
        (SELECT fence FROM leases WHERE name = 'stream:' || NEW.source || '/' || NEW.stream)); END;
CREATE TRIGGER cursor_moved AFTER UPDATE OF cursor ON checkpoints BEGIN
    INSERT INTO saved_cursors (fence, cursor, at, lease) VALUES (NEW.fence, NEW.cursor, {NOW_MS},
        (SELECT fence FROM leases WHERE name = 'stream:' || NEW.source || '/' || NEW.stream)); END;
CREATE TABLE moved_offsets (n INTEGER PRIMARY KEY, partition INTEGER NOT NULL, before INTEGER, after INTEGER NOT NULL);
CREATE TRIGGER offset_made AFTER INSERT ON offsets
    BEGIN INSERT INTO moved_offsets (partition, after) VALUES (NEW.partition, NEW.next_offset); END;
CREATE TRIGGER offset_moved AFTER UPDATE OF next_offset ON offsets BEGIN
    INSERT INTO moved_offsets (partition, before, after) VALUES (NEW.partition, OLD.next_offset, NEW.next_offset); END;
"""
POSTGRES_TRIGGERS = """
CREATE TABLE saved_cursors (
    n bigserial PRIMARY KEY, fence bigint NOT NULL, cursor text NOT NULL, at bigint, lease bigint);
CREATE FUNCTION write_cursor_down() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO public.saved_cursors (fence, cursor, at, lease)
        VALUES (NEW.fence, NEW.cursor, extract(epoch FROM clock_timestamp()) * 1000,
            (SELECT fence FROM ingest.leases WHERE name = 'stream:' || NEW.source || '/' || NEW.stream));
    RETURN NULL; END $$;
CREATE TRIGGER cursor_moved AFTER INSERT OR UPDATE OF cursor ON ingest.checkpoints
    FOR EACH ROW EXECUTE FUNCTION write_cursor_down();
CREATE TABLE moved_offsets (n bigserial PRIMARY KEY, partition integer NOT NULL, before bigint, after bigint NOT NULL);
CREATE FUNCTION write_offset_down() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO public.moved_offsets (partition, before, after)
        VALUES (NEW.partition, CASE TG_OP WHEN 'UPDATE' THEN OLD.next_offset END, NEW.next_offset);
    RETURN NULL; END $$;
CREATE TRIGGER offset_moved AFTER INSERT OR UPDATE OF next_offset ON ingest.offsets
    FOR EACH ROW EXECUTE FUNCTION write_offset_down();
"""

OUTAGES = (
    OSError, TimeoutError, sqlite3.OperationalError, asyncpg.PostgresError, asyncpg.InterfaceError, IngestError,
    KafkaError,
)  # fmt: skip
"""What a look at a server that is away may raise."""


class Place(NamedTuple):
    """Where to look. `database`: of a SQLite file the path, else Postgres' URL; `bootstrap`: of Kafka, else None."""

    database: str
    bootstrap: str | None
    source: str
    stream: str
    consumer: str

    @property
    def topic(self) -> str:
        return f"{self.source}.{self.stream}"


async def watch_cursors(place: Place) -> None:
    """From now on every saved cursor and every moved offset is written down. The database is migrated."""
    if place.bootstrap is None:
        connection = sqlite3.connect(place.database)
        connection.executescript(SQLITE_TRIGGERS)
        connection.close()
    else:
        postgres = await asyncpg.connect(place.database)
        await postgres.execute(POSTGRES_TRIGGERS)
        await postgres.close()


async def saved_cursors(place: Place) -> list[Saved]:
    rows = await query(place, "SELECT fence, cursor, at, lease FROM saved_cursors ORDER BY n")
    return [Saved(fence, cursor.encode(), at, lease) for fence, cursor, at, lease in rows]


async def moved_offsets(place: Place) -> list[Moved]:
    """There is one consumer on one topic."""
    rows = await query(place, "SELECT partition, before, after FROM moved_offsets ORDER BY n")
    return [Moved(*row) for row in rows]


async def stored(place: Place) -> int:
    """How many rows the store has."""
    [(count,)] = await query(place, f"SELECT count(*) FROM {'' if place.bootstrap is None else 'ingest.'}events")
    return int(count)


async def ends(place: Place) -> Sequence[int]:
    """Of the topic, per partition."""
    async with _opened(place) as (_, log, _), log.admin() as admin:
        return (await admin.describe([place.topic]))[place.topic].end_offsets


async def query(place: Place, statement: str) -> Sequence[Sequence[Any]]:
    if place.bootstrap is None:
        connection = sqlite3.connect(f"file:{place.database}?mode=ro", uri=True)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()
    postgres = await asyncpg.connect(place.database)
    try:
        return [tuple(row) for row in await postgres.fetch(statement)]
    finally:
        await postgres.close()


async def gather(place: Place, served: Path) -> History:
    """`served`: the API's log."""
    answers = _answers(served)
    async with _opened(place) as (where, log, store), log.admin() as admin, log.reader() as reader:
        letters = [deadletter.topic_for(place.topic, name) for name in (deadletter.SOURCE, place.consumer)]
        filled = [topic for topic, info in (await admin.describe(letters)).items() if any(info.end_offsets)]
        ends = (await admin.describe([place.topic]))[place.topic].end_offsets
        topic_id = (await admin.topic_ids([place.topic]))[place.topic]
        return History(
            prefix=f"{place.source}:{place.stream}:",
            answers=answers,
            log=await _log(reader, place.topic),
            ends=dict(enumerate(ends)),
            rows=await _rows(store),
            offsets=dict(await store.offsets(place.consumer, place.topic, topic_id)),
            dead=frozenset([_sha256(record.value) for topic in filled async for record in reader.read(topic)]),
            cursors=await saved_cursors(where),
        )


@asynccontextmanager
async def _opened(place: Place) -> AsyncIterator[tuple[Place, EventLog, EventStore]]:
    """And the place that it was opened at: a copy, where it is a file."""
    if place.bootstrap is not None:
        async with open_postgres(place.database) as postgres:
            yield place, KafkaLog(place.bootstrap), PostgresStore(postgres)
        return
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        copy_file(Path(place.database), copy)
        async with open_database(copy) as database:
            log = SqliteLog(database, SqliteLeases(database), "checker:1:a")
            yield place._replace(database=str(copy)), log, SqliteStore(database)


def copy_file(file: Path, to: Path) -> None:
    """As it stands at one moment, while others write it."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as live, closing(sqlite3.connect(to)) as copy:
        live.backup(copy)


def _answers(served: Path) -> list[tuple[str, list[Fact]]]:
    lines = [json.loads(line) for line in served.read_text().splitlines()]
    return [(line["path"], [(id, sha256) for id, sha256 in line["ids"]]) for line in lines if line["complete"]]


async def _log(reader: Reader, topic: str) -> list[Logged]:
    records = []
    async for record in reader.read(topic):
        headers = dict(record.headers)
        records.append(
            Logged(
                headers["ce_id"].decode(),
                (record.key or b"").decode(),
                record.partition,
                record.offset,
                int(headers["ce_ingestfence"]),
                _sha256(record.value),
                record.timestamp,
            )
        )
    return records


async def _rows(store: EventStore) -> list[Stored]:
    return [
        Stored(row.event_id, row.key, row.partition, row.offset, _sha256(row.payload.encode()))
        async for row in store.events(Query())
    ]


def _sha256(value: bytes | None) -> str:
    return hashlib.sha256(value or b"").hexdigest()
