"""A database is brought to the schema of the code once, whole, and by one process at a time."""

import asyncio
import sqlite3
from pathlib import Path

import asyncpg
import pytest

from ingest.errors import ConfigError
from ingest.sqlite import path_of
from migrations.runner import migrate, migrations, pending, statements
from tests.contract.test_store import opened

TABLES = ["events", "offsets", "leases", "checkpoints", "checkpoint_history", "seen", "oversized", "tokens", "rates"]


@pytest.fixture(params=["sqlite", "postgres", "pgbouncer"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{sqlite_path}"
    url: str = request.getfixturevalue("bare_postgres_url")
    return url if request.param == "postgres" else str(request.getfixturevalue("pgbouncer").through(url))


async def run(url: str, statement: str) -> None:
    """One statement, where SCHEMA. stands before the name of a table."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(path_of(url))
        with connection:
            connection.execute(statement.replace("SCHEMA.", ""))
        connection.close()
    else:
        server = await asyncpg.connect(url)
        await server.execute(statement.replace("SCHEMA.", "ingest."))
        await server.close()


async def columns(url: str) -> dict[str, list[str]]:
    """Table → its columns, sorted."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(path_of(url))
        rows = connection.execute(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        ).fetchall()
        connection.close()
    else:
        server = await asyncpg.connect(url)
        rows = await server.fetch(
            "SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_schema = 'ingest'"
        )
        await server.close()
    found: dict[str, list[str]] = {}
    for table, column in rows:
        found.setdefault(table, []).append(column)
    return {table: sorted(names) for table, names in found.items()}


async def test_what_is_pending_is_applied_in_order_and_once(url: str) -> None:
    names = await pending(url)
    assert names[0] == "0001_spine" and names == sorted(names)
    assert await migrate(url) == names
    assert await pending(url) == []
    assert await migrate(url) == []
    assert set(TABLES) <= set(await columns(url))


async def test_asking_what_is_pending_makes_no_file(sqlite_path: Path) -> None:
    assert await pending(f"sqlite:///{sqlite_path}")
    assert list(sqlite_path.parent.iterdir()) == []


async def test_of_many_who_migrate_at_once_one_applies(url: str) -> None:
    answers = await asyncio.gather(*(migrate(url) for _ in range(6)))
    assert len([answer for answer in answers if answer]) == 1
    assert await pending(url) == []


async def test_a_file_that_was_changed_after_it_had_been_applied_is_refused_by_its_name(url: str) -> None:
    await migrate(url)
    await run(url, "UPDATE SCHEMA.migrations SET checksum = 'of before' WHERE number = 1")
    for ask in (migrate, pending):
        with pytest.raises(ConfigError, match=r"0001_spine\.sql was changed after it had been applied"):
            await ask(url)


async def test_a_database_newer_than_the_code_is_refused(url: str) -> None:
    await migrate(url)
    await run(
        url,
        """INSERT INTO SCHEMA.migrations (number, name, checksum, applied_at)
           SELECT 9999, '9999_later', '', applied_at FROM SCHEMA.migrations WHERE number = 1""",
    )
    for ask in (migrate, pending):
        with pytest.raises(ConfigError, match="9999_later, which this version does not know"):
            await ask(url)


async def test_a_migration_that_fails_half_way_leaves_nothing(url: str) -> None:
    if not url.startswith("sqlite"):
        await run(url, "CREATE SCHEMA ingest")
    await run(url, "CREATE TABLE SCHEMA.oversized (in_the_way integer)")
    with pytest.raises(ConfigError, match="oversized"):
        await migrate(url)
    assert list(await columns(url)) == ["oversized"]
    await run(url, "DROP TABLE SCHEMA.oversized")
    assert "0001_spine" in await migrate(url)


async def test_offsets_of_before_topics_had_ids_are_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        of_0_1 = {engine: migrations(engine)[:1] for engine in ("postgresql", "sqlite")}
        patch.setattr("migrations.runner.migrations", of_0_1.__getitem__)
        await migrate(url)
    await run(
        url,
        """INSERT INTO SCHEMA.offsets (consumer, topic, partition, next_offset, updated_at)
           SELECT 'warehouse', 'billing', number, 41 + number, applied_at FROM SCHEMA.migrations""",
    )
    assert await migrate(url)
    async with opened(url) as store:
        assert await store.offsets("warehouse", "billing", "abc") == {1: 42}


async def test_a_schema_that_an_administrator_made_is_used(bare_postgres_url: str) -> None:
    await run(bare_postgres_url, "CREATE SCHEMA ingest")
    assert "0001_spine" in await migrate(bare_postgres_url)


async def test_both_engines_have_the_same_tables_with_the_same_columns(
    sqlite_path: Path, bare_postgres_url: str
) -> None:
    await migrate(f"sqlite:///{sqlite_path}")
    await migrate(bare_postgres_url)
    sqlite, postgres = await columns(f"sqlite:///{sqlite_path}"), await columns(bare_postgres_url)
    assert {table: sqlite.get(table) for table in postgres} == postgres


def test_both_engines_number_and_name_their_migrations_alike() -> None:
    names = [migration.name for migration in migrations("postgresql")]
    assert names == [migration.name for migration in migrations("sqlite")]
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_a_script_is_split_where_its_statements_end() -> None:
    script = """-- a; comment
        CREATE TABLE a (b TEXT DEFAULT ';');
        CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM a; DELETE FROM a WHERE b = 'x;'; END;
        /* the; end */ SELECT 1; -- done"""
    first, second, third = statements(script)
    assert first.startswith("-- a; comment") and first.endswith("(b TEXT DEFAULT ';');")
    assert second.startswith("CREATE TRIGGER") and second.endswith("END;")
    assert third.endswith("SELECT 1;")


def test_a_script_that_ends_inside_a_statement_is_refused() -> None:
    with pytest.raises(ConfigError, match="ends inside a statement"):
        list(statements("SELECT 1; SELECT 'never closed;"))


@pytest.mark.parametrize("url", ["mysql://host/db", "ingest.db", "sqlite://ingest.db", "sqlite:///"])
async def test_an_address_of_no_known_engine_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        await migrate(url)


async def test_an_address_that_is_refused_is_not_shown_with_its_password() -> None:
    with pytest.raises(ConfigError) as refused:
        await migrate("mysql://user:hunter2@host/db")
    assert "hunter2" not in str(refused.value)


async def test_a_relative_address_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await migrate("sqlite:///data/ingest.db")
    assert (tmp_path / "data" / "ingest.db").exists()
