"""Sealed tokens in the SQLite file. The port is in `checkpoints`."""

import sqlite3

from checkpoints import Sealed
from ingest.sqlite import NOW_MS, Database


class SqliteTokens:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, name: str) -> Sealed | None:
        return await self._database.read(lambda connection: _load(connection, name))

    async def replace(self, name: str, version: int, content: bytes) -> bool:
        return await self._database.write(lambda connection: _replace(connection, name, version, content))


def _load(connection: sqlite3.Connection, name: str) -> Sealed | None:
    row = connection.execute("SELECT version, sealed FROM tokens WHERE name = ?", (name,)).fetchone()
    return None if row is None else Sealed(*row)


def _replace(connection: sqlite3.Connection, name: str, version: int, content: bytes) -> bool:
    found = _load(connection, name)
    if (0 if found is None else found.version) != version:
        return False
    connection.execute(
        f"INSERT OR REPLACE INTO tokens (name, version, sealed, updated_at) VALUES (?, ?, ?, {NOW_MS})",
        (name, version + 1, content),
    )
    return True
