"""A Postgres server as a queue needs it: dead rows removed, clocks that agree, someone who wakes us."""

import asyncio
import re
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import asyncpg

from ingest.doctor import Finding, act, good, note
from ingest.postgres import CONNECT_TIMEOUT, Postgres, open_postgres
from migrations.runner import migrations

if TYPE_CHECKING:
    from ingest.postgres import Connection

OLD_XMIN = 600.0  # seconds
SKEW, BAD_SKEW = 1.0, 30.0  # seconds
MANY_DEAD, DEAD_RATIO = 10_000, 2.0  # rows, and so many for each live one
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (?P<name>\w+) ON [^;]+")
PROBE = 5.0  # seconds until what was notified must be heard

OLDEST_XMIN = """
    SELECT pid, coalesce(application_name, '') AS name, state,
        extract(epoch FROM clock_timestamp() - xact_start)::float8
    FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    ORDER BY xact_start LIMIT 1"""
DEAD_ROWS = """
    SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables
    WHERE schemaname = 'ingest' AND n_dead_tup > $1 AND n_dead_tup > $2 * n_live_tup ORDER BY n_dead_tup DESC"""
INVALID = """
    SELECT indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    WHERE c.relnamespace = 'ingest'::regnamespace AND NOT i.indisvalid"""
INDEXES = "SELECT indexname FROM pg_indexes WHERE schemaname = 'ingest'"
SLOTS = """
    SELECT slot_name FROM pg_replication_slots
    WHERE NOT active AND coalesce(age(xmin), age(catalog_xmin)) > 1000000"""


async def examine(about: str, url: str) -> list[Finding]:
    async with open_postgres(url, size=2) as postgres:
        async with postgres.transaction() as connection:
            found = [*await _server(about, connection), *await _rows(about, connection)]
        return [*found, await _notify(about, url, postgres)]


def made_by_migrations() -> dict[str, str]:
    """Indexes by name, with the statement that makes each."""
    text = "".join(migration.sql for migration in migrations("postgresql"))
    return {match["name"]: " ".join(match[0].split()) for match in _INDEX.finditer(text)}


async def _server(about: str, connection: "Connection") -> list[Finding]:
    before = time.time()
    now: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    after = time.time()
    version: str = await connection.fetchval("SELECT current_setting('server_version')")
    found = [good(about, f"Postgres {version.split(' ')[0]}"), *skewed(about, now, before, after)]
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        found.append(act(about, "it is a standby, and takes no writes", "name the primary, or all servers"))
    return found


def skewed(about: str, now: float, before: float, after: float) -> Iterator[Finding]:
    """`now`: by the server's clock, asked between two moments of ours."""
    skew = now - after if now > after else before - now if now < before else 0.0
    if skew > SKEW:
        said = f"its clock and that of this machine are {skew:.1f} s apart"
        todo = "jobs go by its clock; for events and logs set both by NTP"
        yield act(about, said, todo) if skew > BAD_SKEW else note(about, said, todo)


async def _rows(about: str, connection: "Connection") -> list[Finding]:
    found = []
    oldest = await connection.fetchrow(OLDEST_XMIN)
    if oldest is not None and oldest[3] > OLD_XMIN:
        pid, name, state, age = oldest
        said = f"process {pid} ({name or 'unnamed'}, {state}) holds a snapshot for {age / 60:.0f} min: no dead row goes"
        found.append(act(about, said, f"end what it does, or SELECT pg_terminate_backend({pid})"))
    for table, live, dead in await connection.fetch(DEAD_ROWS, MANY_DEAD, DEAD_RATIO):
        said = f"{dead:,} dead rows beside {live:,} live ones in ingest.{table}: claims get slow"
        found.append(act(about, said, f"VACUUM ingest.{table}; and see that autovacuum runs"))
    for (index,) in await connection.fetch(INVALID):
        found.append(act(about, f"the index {index} is not valid", f"REINDEX INDEX CONCURRENTLY {index}"))
    there = {name for (name,) in await connection.fetch(INDEXES)}
    for name, statement in made_by_migrations().items():
        if name not in there:
            found.append(act(about, f"the index ingest.{name} is missing: whole tables are read instead", statement))
    for (slot,) in await connection.fetch(SLOTS):
        todo = f"bring its reader back, or SELECT pg_drop_replication_slot('{slot}')"
        found.append(act(about, f"the replication slot {slot} is unused, and keeps dead rows and WAL", todo))
    return found


async def _notify(about: str, url: str, postgres: Postgres) -> Finding:
    """Whether what is said on one connection is heard on another: not so behind a pooler in transaction mode."""
    heard, said = asyncio.Event(), uuid.uuid4().hex
    channel = f"ingest_probe_{said[:8]}"
    try:
        listener = await asyncpg.connect(url, timeout=CONNECT_TIMEOUT, statement_cache_size=0)
        try:
            await listener.add_listener(channel, lambda *_: heard.set())
            async with postgres.transaction() as connection:
                await connection.execute(f"SELECT pg_notify('{channel}', '{said}')")
            await asyncio.wait_for(heard.wait(), PROBE)
        finally:
            listener.terminate()
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        said = "LISTEN does not work here (a pooler in transaction mode?): jobs are polled for, up to a second later"
        return note(about, said)
    return good(about, "LISTEN and NOTIFY work")
