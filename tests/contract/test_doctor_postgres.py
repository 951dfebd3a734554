"""What slows down or stops a queue in Postgres is found, with the words that mend it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import asyncpg
import pytest

from ingest.doctor import Level, postgres

Server: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Server]:
    server = await asyncpg.connect(url, statement_cache_size=0)
    try:
        yield server
    finally:
        await server.close()


async def acts(url: str) -> list[tuple[str, str]]:
    """What a person must do, and what was found."""
    return [(one.todo, one.said) for one in await postgres.examine("db", url) if one.level is Level.ACT]


async def test_a_server_that_is_well_wants_nothing(postgres_url: str) -> None:
    found = await postgres.examine("db", postgres_url)
    assert {one.level for one in found} == {Level.GOOD}
    assert found[0].said.startswith("Postgres ") and found[-1].said == "LISTEN and NOTIFY work"


async def test_behind_a_pooler_in_transaction_mode_jobs_are_polled_for(
    pooled_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "PROBE", 0.2)
    found = await postgres.examine("db", pooled_postgres_url)
    assert found[-1].level is Level.NOTE and "a pooler in transaction mode" in found[-1].said


async def test_a_transaction_that_keeps_dead_rows_is_named_with_its_process(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "OLD_XMIN", 0.0)
    async with connected(postgres_url) as server, server.transaction(isolation="repeatable_read"):
        pid = await server.fetchval("SELECT pg_backend_pid()")
        [(todo, said)] = await acts(postgres_url)
    assert f"pg_terminate_backend({pid})" in todo and f"process {pid} (unnamed, idle in transaction)" in said


async def test_an_index_that_was_not_built_to_its_end_is_named(postgres_url: str) -> None:
    async with connected(postgres_url) as server:
        await server.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ingest.jobs_ready'::regclass")
        [(todo, said)] = await acts(postgres_url)
        assert todo == "REINDEX INDEX CONCURRENTLY ingest.jobs_ready" and "is not valid" in said
        await server.execute(todo)
    assert await acts(postgres_url) == []


async def test_an_index_that_somebody_dropped_is_named_with_the_statement_that_makes_it(postgres_url: str) -> None:
    async with connected(postgres_url) as server:
        await server.execute("DROP INDEX ingest.jobs_dedupe")
        [(todo, said)] = await acts(postgres_url)
        assert "ingest.jobs_dedupe is missing" in said
        await server.execute(todo)
    assert await acts(postgres_url) == []


async def test_a_table_of_more_dead_rows_than_live_ones_is_named(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MANY_DEAD", 100)
    async with connected(postgres_url) as server:
        await server.execute("ALTER TABLE ingest.sources SET (autovacuum_enabled = false)")
        await server.execute("INSERT INTO ingest.sources (name) SELECT n::text FROM generate_series(1, 500) n")
        await server.execute("DELETE FROM ingest.sources")
        await server.execute("SELECT pg_stat_force_next_flush()")
        [(todo, said)] = await acts(postgres_url)
        assert todo.startswith("VACUUM ingest.sources") and "500 dead rows beside 0 live ones" in said
        await server.execute("VACUUM ingest.sources")
        await server.execute("SELECT pg_stat_force_next_flush()")
    assert await acts(postgres_url) == []
