"""Sealed tokens in Postgres. The port is in `checkpoints`."""

from checkpoints import Sealed
from ingest.postgres import Postgres


class PostgresTokens:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def load(self, name: str) -> Sealed | None:
        async with self._postgres.transaction() as connection:
            row = await connection.fetchrow("SELECT version, sealed FROM ingest.tokens WHERE name = $1", name)
        return None if row is None else Sealed(row["version"], row["sealed"])

    async def replace(self, name: str, version: int, content: bytes) -> bool:
        first = """INSERT INTO ingest.tokens (name, version, sealed) VALUES ($1, $2 + 1, $3)
                   ON CONFLICT (name) DO NOTHING RETURNING true"""
        later = """UPDATE ingest.tokens SET version = version + 1, sealed = $3, updated_at = clock_timestamp()
                   WHERE name = $1 AND version = $2 RETURNING true"""
        async with self._postgres.transaction() as connection:
            saved = await connection.fetchval(first if version == 0 else later, name, version, content)
        return saved is not None
