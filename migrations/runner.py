"""Brings a database to the schema of this code: numbered SQL, forward only, each file once.

Everything that one call applies is one transaction under one lock, with a row per file in `migrations`: it is all there
or nothing is, and processes that migrate at the same moment wait for each other. A file that changed after it was
applied, and a database that is newer than the code, are refused.
"""

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from ingest.errors import ConfigError
from ingest.sqlite import NOW_MS, open_database, path_of

if TYPE_CHECKING:
    from ingest.postgres import Connection

MIGRATION_TIMEOUT = 3600.0  # seconds; building an index may take long, and so may waiting for another process's
ADVISORY_LOCK = 0x696E67657374  # "ingest"; of the transaction, so it works behind PgBouncer too

_FILE = re.compile(r"(?P<number>\d{4})_[a-z0-9_]+\.sql")


class Migration(NamedTuple):
    number: int
    name: str  # 0001_spine
    checksum: str
    sql: str


async def migrate(url: str) -> list[str]:
    """Apply what is pending and return the names of it, in order; an empty list when the database was up to date.

    Raises ConfigError for a changed file or a newer database, StoreUnavailable when the database does not answer.
    """
    if _engine(url) == "sqlite":
        async with open_database(path_of(url)) as database:
            return await database.write(_migrate_sqlite)
    from ingest.postgres import open_postgres  # its driver is not needed for a file

    opened = open_postgres(url, size=1, statement_timeout=MIGRATION_TIMEOUT)
    async with opened as postgres, postgres.transaction() as connection:
        return await _migrate_postgres(connection)


async def pending(url: str) -> list[str]:
    """The names of what `migrate` would apply; changes nothing, and makes no file. Raises as `migrate` does."""
    files = migrations(_engine(url))
    applied: Mapping[int, tuple[str, str]] = {}
    if _engine(url) == "postgresql":
        from ingest.postgres import open_postgres

        async with open_postgres(url, size=1) as postgres, postgres.transaction() as connection:
            applied = await _applied_postgres(connection)
    elif path_of(url).exists():
        async with open_database(path_of(url)) as database:
            applied = await database.read(_applied_sqlite)
    return [migration.name for migration in outstanding(files, applied)]


def migrations(engine: str) -> list[Migration]:
    """The files of one engine (`postgresql` or `sqlite`) in the order of their numbers."""
    folder = resources.files("migrations") / {"postgresql": "postgres"}.get(engine, engine)
    found: dict[int, Migration] = {}
    for file in folder.iterdir():
        match = _FILE.fullmatch(file.name)
        if match is None:
            continue
        text = file.read_text(encoding="utf-8")
        number = int(match["number"])
        if number in found:
            raise ConfigError(f"two migrations have the number {number}: {found[number].name}.sql and {file.name}")
        checksum = hashlib.sha256(text.encode()).hexdigest()
        found[number] = Migration(number, file.name.removesuffix(".sql"), checksum, text)
    return [found[number] for number in sorted(found)]


def outstanding(files: Sequence[Migration], applied: Mapping[int, tuple[str, str]]) -> list[Migration]:
    """What is still to be applied. `applied`: number → (name, checksum), as the database remembers them."""
    known = {migration.number: migration for migration in files}
    for number, (name, checksum) in sorted(applied.items()):
        if number not in known:
            raise ConfigError(f"the database has the migration {name}, which this version does not know: upgrade")
        if known[number].checksum != checksum:
            raise ConfigError(
                f"{known[number].name}.sql was changed after it had been applied (as {name}):"
                " restore the file, and put the change into a new one"
            )
    return [migration for migration in files if migration.number not in applied]


def statements(script: str) -> Iterator[str]:
    """The statements of an SQLite script, each with the comments before it. (`executescript` would commit.)"""
    statement = ""
    for piece in re.split(r"(?<=;)", script):
        statement += piece
        if piece.endswith(";") and sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    if re.sub(r"--[^\n]*", "", statement).strip():
        raise ConfigError(f"a migration ends inside a statement: {statement.strip()[:80]}")


def _engine(url: str) -> str:
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        return "postgresql"
    if scheme == "sqlite":
        return "sqlite"
    raise ConfigError(f"a database's URL begins with postgresql:// or sqlite:///, not with {scheme[:20]!r}")


async def _migrate_postgres(connection: "Connection") -> list[str]:
    await connection.execute(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
    todo = outstanding(migrations("postgresql"), await _applied_postgres(connection))
    if not todo:
        return []
    # IF NOT EXISTS would ask for the right to create schemas even where an administrator has made it already
    if await connection.fetchval("SELECT to_regnamespace('ingest') IS NULL"):
        await connection.execute("CREATE SCHEMA ingest")
    await connection.execute(
        """CREATE TABLE IF NOT EXISTS ingest.migrations (
               number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
               applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
    )
    for migration in todo:
        await connection.execute(migration.sql)
        await connection.execute(
            "INSERT INTO ingest.migrations (number, name, checksum) VALUES ($1, $2, $3)",
            migration.number,
            migration.name,
            migration.checksum,
        )
    return [migration.name for migration in todo]


async def _applied_postgres(connection: "Connection") -> dict[int, tuple[str, str]]:
    if await connection.fetchval("SELECT to_regclass('ingest.migrations') IS NULL"):
        return {}
    rows = await connection.fetch("SELECT number, name, checksum FROM ingest.migrations")
    return {number: (name, checksum) for number, name, checksum in rows}


def _migrate_sqlite(connection: sqlite3.Connection) -> list[str]:
    todo = outstanding(migrations("sqlite"), _applied_sqlite(connection))
    if not todo:
        return []
    connection.execute(
        """CREATE TABLE IF NOT EXISTS migrations (
               number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL)"""
    )
    for migration in todo:
        for statement in statements(migration.sql):
            _execute(connection, migration, statement)
        connection.execute(
            f"INSERT INTO migrations (number, name, checksum, applied_at) VALUES (?, ?, ?, {NOW_MS})",
            (migration.number, migration.name, migration.checksum),
        )
    return [migration.name for migration in todo]


def _execute(connection: sqlite3.Connection, migration: Migration, statement: str) -> None:
    try:
        connection.execute(statement)
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_ERROR:  # a full disk is an outage
            raise
        raise ConfigError(f"{migration.name}.sql failed, and nothing of it was applied: {exc}") from exc


def _applied_sqlite(connection: sqlite3.Connection) -> dict[int, tuple[str, str]]:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations' AND type = 'table'").fetchone():
        return {}
    rows = connection.execute("SELECT number, name, checksum FROM migrations").fetchall()
    return {number: (name, checksum) for number, name, checksum in rows}
