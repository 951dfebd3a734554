"""Holds up commits of Postgres: a client may die while its COMMIT is on the way, and never learn what became of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg


class Commits:
    """Made by `held`."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection

    async def one_waits(self) -> bool:
        waiting = await self._connection.fetchval(
            """SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
               WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"""
        )
        return int(waiting) > 0

    async def go_on(self) -> None:
        await self._connection.execute("SELECT pg_advisory_unlock(1)")


@asynccontextmanager
async def held(database: str, table: str, condition: str) -> AsyncIterator[Commits]:
    """Every transaction that writes a row NEW of `table` for which `condition` holds stops inside its COMMIT."""
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(
            f"""
            CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT OR UPDATE ON {table}
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION wait_at_commit();
            """
        )
        await connection.execute("SELECT pg_advisory_lock(1)")
        yield Commits(connection)
    finally:
        await connection.close()
