"""How offsets moved in Postgres, and what makes moving slow, or impossible.

Reading where a consumer stands is never held up: another one can always find out where to go on.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg

SLOW = """
CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$;
CREATE TRIGGER offset_moves_slowly AFTER INSERT OR UPDATE OF next_offset ON ingest.offsets
    FOR EACH ROW EXECUTE FUNCTION take_time();
"""


class Move(NamedTuple):
    partition: int
    was: int
    next_offset: int


async def slow_down(database: str, seconds: float) -> None:
    """`seconds`: that each move takes from now on."""
    connection = await asyncpg.connect(database)
    await connection.execute(SLOW.format(seconds=seconds))
    await connection.close()


async def moves(database: str) -> Sequence[Move]:
    """In the order in which they were made, as `evidence.watch_cursors` has them written down."""
    connection = await asyncpg.connect(database)
    rows = await connection.fetch("SELECT partition, coalesce(before, 0), after FROM moved_offsets ORDER BY n")
    await connection.close()
    return [Move(*row) for row in rows]


async def steps_back(database: str) -> Sequence[Move]:
    """Moves that do not begin where the one before ended, or lead nowhere."""
    stands: dict[int, int] = {}
    wrong = []
    for move in await moves(database):
        if move.was != stands.get(move.partition, 0) or move.next_offset <= move.was:
            wrong.append(move)
        stands[move.partition] = move.next_offset
    return wrong


async def out_of_order(database: str) -> Sequence[str]:
    """Events that were stored before an event of their partition with a smaller offset."""
    connection = await asyncpg.connect(database)
    rows = await connection.fetch(
        """SELECT event_id FROM (
               SELECT event_id, ingested_at,
                      max(ingested_at) OVER (PARTITION BY partition ORDER BY "offset") AS latest
               FROM ingest.events) AS stored
           WHERE ingested_at < latest"""
    )
    await connection.close()
    return [row["event_id"] for row in rows]


class Lock:
    """Made by `locked`."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection

    async def waiting(self) -> int:
        """How many want to move offsets."""
        return int(
            await self._connection.fetchval(
                """SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
                   WHERE datname = current_database() AND NOT granted AND relation = 'ingest.offsets'::regclass"""
            )
        )


@asynccontextmanager
async def locked(database: str) -> AsyncIterator[Lock]:
    """Nobody can move an offset while the body runs."""
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE ingest.offsets IN SHARE MODE")
            yield Lock(connection)
    finally:
        await connection.close()
