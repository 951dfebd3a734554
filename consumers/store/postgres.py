"""The event store in Postgres: rows by COPY, in the transaction that moves the offsets.

A batch is new as a rule, so it is copied straight into `ingest.events`; when an eventId turns out to have a row, the
transaction is repeated without the rows that exist, and for some batches after it they are looked up first. The offsets
move before the rows do: a consumer that lost its partition waits for the owner's transaction there and then is refused,
before it has written anything.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import asyncpg

from consumers.store import Query, Row, Written, superseded
from consumers.store.copytext import COLUMNS, text
from consumers.store.row import distinct, moment, moments, no_text, payload
from ingest.errors import StoreUnavailable
from ingest.event import Event
from ingest.eventlog import UNKNOWN_TOPIC, Span
from ingest.postgres import Postgres

if TYPE_CHECKING:
    from ingest.postgres import Connection

FILTERED_BATCHES = 32  # batches without a duplicate after which rows are no longer looked up first
CHUNK = 200  # rows sent to COPY at once; the memory of a longer text comes from the system, a page fault every 4 KB
PAGE = 500  # rows fetched at once


class PostgresStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._to_filter = 0  # batches to look up before they are copied

    async def offsets(self, consumer: str, topic: str, topic_id: str = UNKNOWN_TOPIC) -> Mapping[int, int]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                """SELECT partition, next_offset, topic_id FROM ingest.offsets
                   WHERE consumer = $1 AND topic = $2 AND topic_id IN ('', $3)""",
                consumer,
                topic,
                topic_id,
            )
            if any(row["topic_id"] != topic_id for row in rows):
                await connection.execute(
                    """UPDATE ingest.offsets SET topic_id = $3
                       WHERE consumer = $1 AND topic = $2 AND topic_id = ''""",
                    consumer,
                    topic,
                    topic_id,
                )
        return {row["partition"]: row["next_offset"] for row in rows}

    async def other_ids(self, consumer: str, topic: str, topic_id: str) -> Sequence[str]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                """SELECT DISTINCT topic_id FROM ingest.offsets
                   WHERE consumer = $1 AND topic = $2 AND topic_id <> $3 ORDER BY topic_id""",
                consumer,
                topic,
                topic_id,
            )
        return [row["topic_id"] for row in rows]

    async def write(self, consumer: str, events: Sequence[Event], spans: Sequence[Span]) -> Written:
        # Every writer inserts in the order of ids, so two that share some can wait for each other in one direction
        # only; and the index fills page by page.
        rows = sorted(distinct(events), key=attrgetter("id"))
        ways = (self._copy, self._copy_missing, self._insert_missing)
        for insert in ways[1:] if self._to_filter else ways:
            try:
                inserted = await self._transaction(consumer, rows, spans, insert)
            except _RowExists:
                self._to_filter = FILTERED_BATCHES
            else:
                return Written(inserted, len(events) - inserted)
        raise StoreUnavailable("Postgres: others keep inserting the same events")

    async def _transaction(self, consumer: str, rows: Sequence[Event], spans: Sequence[Span], insert: "_Insert") -> int:
        async with self._postgres.transaction() as connection:
            if spans:
                await _move(connection, consumer, sorted(spans))
            try:
                return await insert(connection, rows) if rows else 0
            except asyncpg.UniqueViolationError as exc:
                raise _RowExists from exc

    async def _copy(self, connection: "Connection", rows: Sequence[Event]) -> int:
        lines = _lines(rows, moments(rows))  # a time that is none is found before the COPY begins
        await connection.copy_to_table("events", schema_name="ingest", columns=COLUMNS, source=lines)
        return len(rows)

    async def _copy_missing(self, connection: "Connection", rows: Sequence[Event]) -> int:
        # A table that began empty has no statistics, and the plan was a sequential scan for every batch.
        await connection.execute("SET LOCAL enable_seqscan = off")
        found = await connection.fetch(
            """
            SELECT id FROM unnest($1::text[]) AS batch (id)
            CROSS JOIN LATERAL (SELECT FROM ingest.events WHERE event_id = id LIMIT 1) AS existing
            """,
            _ids(rows),
        )
        self._to_filter = FILTERED_BATCHES if found else max(self._to_filter - 1, 0)
        existing = {row["id"] for row in found}
        missing = [event for event in rows if event.id not in existing]
        return await self._copy(connection, missing) if missing else 0

    async def _insert_missing(self, connection: "Connection", rows: Sequence[Event]) -> int:
        """The slow way that no other writer can disturb."""
        inserted = await connection.fetch(
            """
            INSERT INTO ingest.events
                (event_id, source, stream, key, type, topic, partition, "offset", occurred_at, payload)
            SELECT id, source, stream, key, type, topic, partition, "offset", occurred_at::timestamptz, payload::json
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[], $8::bigint[],
                        $9::text[], $10::text[])
                AS batch (id, source, stream, key, type, topic, partition, "offset", occurred_at, payload)
            ON CONFLICT (event_id) DO NOTHING
            RETURNING 1
            """,
            *_columns(rows),
        )
        return len(inserted)

    async def events(self, query: Query) -> AsyncIterator[Row]:
        """One snapshot: a transaction is open for as long as the caller reads. The cursor is SQL's own, because
        asyncpg's leaves a named statement behind on the server's side of PgBouncer."""
        listing, arguments = _listing(query)
        async with self._postgres.transaction() as connection:
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # people page through it
            await connection.execute(f"DECLARE listing NO SCROLL CURSOR FOR {listing}", *arguments)
            while page := await connection.fetch(f"FETCH {PAGE} FROM listing"):
                for row in page:
                    yield Row(*row)

    async def count(self, query: Query) -> int:
        where, arguments = _where(query)
        async with self._postgres.transaction() as connection:
            return int(await connection.fetchval(f"SELECT count(*) FROM ingest.events {where}", *arguments))


def _utc(column: str) -> str:
    """RFC 3339 in UTC; a fraction only where there is one."""
    return f"replace(to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US'), '.000000', '') || 'Z'"


_ROW = f"""
    event_id, source, stream, key, type, {_utc("occurred_at")}, {_utc("ingested_at")}, topic, partition, "offset",
    payload
"""
_ORDER = 'ingested_at {0}, topic {0}, partition {0}, "offset" {0}, event_id {0}'

_Insert = Callable[["Connection", Sequence[Event]], Awaitable[int]]


class _RowExists(Exception):
    """Some eventId of the batch has a row; the transaction is undone."""


async def _move(connection: "Connection", consumer: str, spans: Sequence[Span]) -> None:
    """Compare-and-set of all spans, locked in their order. Raises Superseded when one stands elsewhere."""
    topics, partitions, starts, ends, ids = zip(*spans, strict=True)
    moved = await connection.fetch(
        """
        INSERT INTO ingest.offsets AS stored (consumer, topic, topic_id, partition, next_offset)
        SELECT $1, topic, topic_id, partition, "end"
        FROM unnest($2::text[], $6::text[], $3::int[], $5::bigint[]) AS span (topic, topic_id, partition, "end")
        ON CONFLICT (consumer, topic, topic_id, partition) DO UPDATE
        SET next_offset = excluded.next_offset, updated_at = clock_timestamp()
        WHERE stored.next_offset = (
            SELECT start FROM unnest($2::text[], $6::text[], $3::int[], $4::bigint[])
                AS span (topic, topic_id, partition, start)
            WHERE span.topic = stored.topic AND span.topic_id = stored.topic_id AND span.partition = stored.partition
        )
        RETURNING topic, partition
        """,
        consumer,
        topics,
        partitions,
        starts,
        ends,
        ids,
    )
    if len(moved) == len(spans):
        return
    refused = next(span for span in spans if (span.topic, span.partition) not in {tuple(row) for row in moved})
    stands = await connection.fetchval(
        """SELECT next_offset FROM ingest.offsets
           WHERE consumer = $1 AND topic = $2 AND topic_id = $3 AND partition = $4""",
        consumer,
        refused.topic,
        refused.topic_id,
        refused.partition,
    )
    raise superseded(consumer, refused, stands)


async def _lines(rows: Sequence[Event], times: Sequence[str | None]) -> AsyncIterator[bytes]:
    """A chunk is made while Postgres works on those before it."""
    for start in range(0, len(rows), CHUNK):
        yield text(rows[start : start + CHUNK], times[start : start + CHUNK])


def _ids(rows: Sequence[Event]) -> list[str]:
    ids = [event.id for event in rows]
    try:
        "".join(ids).encode()
    except UnicodeEncodeError as exc:  # asyncpg would call it an error of the interface: an outage
        raise no_text(exc) from exc
    return ids


def _columns(rows: Sequence[Event]) -> Sequence[Sequence[object]]:
    try:
        values = [
            (
                event.id,
                event.source,
                event.stream,
                event.key,
                event.type,
                event.topic,
                event.partition,
                event.offset,
                None if event.occurred_at is None else moment(event.occurred_at),
                payload(event).decode(),
            )
            for event in rows
        ]
    except UnicodeDecodeError as exc:
        raise no_text(exc) from exc
    return list(zip(*values, strict=True))


def _listing(query: Query) -> tuple[str, list[str | int]]:
    """The order is that of the index on `ingested_at`, so the first rows come without sorting the table; that index
    costs nothing measurable to keep, because all rows of a batch share one value."""
    where, arguments = _where(query)
    rows = f"ingest.events {where}"
    if query.limit is not None:
        arguments.append(query.limit)
        newest = _ORDER.format("DESC")
        rows = f"(SELECT * FROM {rows} ORDER BY {newest} LIMIT ${len(arguments)}::bigint) AS newest"
    return f"SELECT {_ROW} FROM {rows} ORDER BY {_ORDER.format('ASC')}", arguments


def _where(query: Query) -> tuple[str, list[str | int]]:
    given = query.given()
    if not given:
        return "", []
    return "WHERE " + " AND ".join(f"{name} = ${n}" for n, name in enumerate(given, 1)), [*given.values()]
