"""The event store in one SQLite file: rows and offsets in one transaction of its only writer.

A row that exists is left alone, and nothing else is forgiven: OR IGNORE would swallow a payload that is no JSON too.
"""

import sqlite3
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from consumers.store import Query, Row, Written, superseded
from consumers.store.row import distinct, moments, no_text, payload
from ingest.errors import BadRecord
from ingest.event import Event, rfc3339
from ingest.eventlog import UNKNOWN_TOPIC, Span
from ingest.sqlite import Database

PAGE = 500  # rows read at once

_Values = tuple[str, str, str, str, str, str | None, int, str, int, int, str]


class SqliteStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def offsets(self, consumer: str, topic: str, topic_id: str = UNKNOWN_TOPIC) -> Mapping[int, int]:
        def read(connection: sqlite3.Connection) -> dict[int, int]:
            statement = "SELECT partition, next_offset FROM offsets WHERE consumer = ? AND topic = ? AND topic_id = ?"
            return dict(connection.execute(statement, (consumer, topic, topic_id)))

        def adopt(connection: sqlite3.Connection) -> dict[int, int]:
            statement = "UPDATE offsets SET topic_id = ? WHERE consumer = ? AND topic = ? AND topic_id = ?"
            connection.execute(statement, (topic_id, consumer, topic, UNKNOWN_TOPIC))
            return read(connection)

        if topic_id != UNKNOWN_TOPIC and UNKNOWN_TOPIC in await self.other_ids(consumer, topic, topic_id):
            return await self._database.write(adopt)
        return await self._database.read(read)

    async def other_ids(self, consumer: str, topic: str, topic_id: str) -> Sequence[str]:
        statement = """SELECT DISTINCT topic_id FROM offsets
                       WHERE consumer = ? AND topic = ? AND topic_id <> ? ORDER BY topic_id"""
        rows = await self._database.read(lambda c: c.execute(statement, (consumer, topic, topic_id)).fetchall())
        return [found for (found,) in rows]

    async def write(self, consumer: str, events: Sequence[Event], spans: Sequence[Span]) -> Written:
        now = time.time_ns() // 1_000_000
        rows = _rows(distinct(events), now)

        def work(connection: sqlite3.Connection) -> int:
            for span in spans:
                _move(connection, consumer, span, now)
            return _insert(connection, rows)

        inserted = await self._database.write(work)
        return Written(inserted, len(events) - inserted)

    async def events(self, query: Query) -> AsyncIterator[Row]:
        """Up to the row that was the last when the listing began. A new row's rowid is the highest."""
        first, last = await self._database.read(lambda connection: _bounds(connection, query))
        while page := await self._page(query, first, last):
            for rowid, event_id, source, stream, key, kind, occurred_at, ingested_at, *rest in page:
                yield Row(event_id, source, stream, key, kind, occurred_at, rfc3339(ingested_at), *rest)
                first = rowid + 1

    async def _page(self, query: Query, first: int, last: int) -> list[tuple[Any, ...]]:
        where, arguments = _where(query, "rowid BETWEEN ? AND ?")
        statement = f"""
            SELECT rowid, event_id, source, stream, key, type, occurred_at, ingested_at, topic, partition, "offset",
                   payload
            FROM events {where} ORDER BY rowid LIMIT {PAGE}
            """
        values = [*arguments, first, last]
        return await self._database.read(lambda connection: connection.execute(statement, values).fetchall())

    async def count(self, query: Query) -> int:
        where, arguments = _where(query)
        statement = f"SELECT count(*) FROM events {where}"
        return await self._database.read(lambda connection: int(connection.execute(statement, arguments).fetchone()[0]))


def _move(connection: sqlite3.Connection, consumer: str, span: Span, now: int) -> None:
    moved = connection.execute(
        """
        INSERT INTO offsets (consumer, topic, topic_id, partition, next_offset, updated_at) VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT (consumer, topic, topic_id, partition) DO UPDATE
        SET next_offset = excluded.next_offset, updated_at = excluded.updated_at WHERE next_offset = ?
        """,
        (consumer, span.topic, span.topic_id, span.partition, span.end, now, span.start),
    ).rowcount
    if not moved:
        statement = """SELECT next_offset FROM offsets
                       WHERE consumer = ? AND topic = ? AND topic_id = ? AND partition = ?"""
        [stands] = connection.execute(statement, (consumer, span.topic, span.topic_id, span.partition)).fetchone()
        raise superseded(consumer, span, stands)


def _insert(connection: sqlite3.Connection, rows: Sequence[_Values]) -> int:
    try:
        return connection.executemany(
            """
            INSERT INTO events
                (event_id, source, stream, key, type, occurred_at, ingested_at, topic, partition, "offset", payload)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (event_id) DO NOTHING
            """,
            rows,
        ).rowcount
    except sqlite3.IntegrityError as exc:
        raise BadRecord(f"SQLite: {exc}", stage="write", code=exc.sqlite_errorname) from exc


def _rows(events: Sequence[Event], now: int) -> list[_Values]:
    """Raises BadRecord for what Postgres would refuse too: a NUL, a text or payload that is not UTF-8, no time."""
    times = moments(events)
    try:
        bodies = [payload(event).decode() for event in events]
        texts = "".join([f"{e.id}{e.source}{e.stream}{e.key}{e.type}{e.topic}" for e in events])
        texts.encode()
    except UnicodeError as exc:
        raise no_text(exc) from exc
    if "\0" in texts or "\0" in "".join(bodies):  # json_valid looks no further than the first
        raise BadRecord("id, key, type or payload holds a NUL", stage="write", code="nul")
    return [
        (e.id, e.source, e.stream, e.key, e.type, time, now, e.topic, e.partition, e.offset, body)
        for e, time, body in zip(events, times, bodies, strict=True)
    ]


def _bounds(connection: sqlite3.Connection, query: Query) -> tuple[int, int]:
    """The rowids of the first and the last row to list; the first is past the last when there is none."""
    [last] = connection.execute("SELECT coalesce(max(rowid), 0) FROM events").fetchone()
    if query.limit is None:
        return 1, last
    where, arguments = _where(query)
    newest = f"SELECT rowid AS place FROM events {where} ORDER BY rowid DESC LIMIT ?"
    statement = f"SELECT coalesce(min(place), ?) FROM ({newest})"
    [first] = connection.execute(statement, (last + 1, *arguments, query.limit)).fetchone()
    return first, last


def _where(query: Query, *more: str) -> tuple[str, list[str]]:
    given = query.given()
    conditions = [*(f"{name} = ?" for name in given), *more]
    return f"WHERE {' AND '.join(conditions)}" if conditions else "", [*given.values()]
