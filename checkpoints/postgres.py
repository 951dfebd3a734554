"""Leases, cursors and what was seen, in Postgres. The ports are in `checkpoints`.

Every write under a lease locks the lease's row first, in its own transaction: who takes the lease over waits for it,
and reads the cursor afterwards with a new snapshot. No write of an older holder can follow. Every call is one
transaction, so PgBouncer may stand in between; `clock_timestamp()`, because `now()` stands still while one waits.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from checkpoints import (
    DEAD,
    FORGOTTEN,
    Checkpoint,
    Claim,
    HistoryEntry,
    Lease,
    Missing,
    Save,
    StreamId,
    stream_lease,
)
from checkpoints.postgres_fencing import HELD, owner, superseded_by
from checkpoints.postgres_saving import add_history, forget_all, save_page
from ingest.event import rfc3339
from ingest.postgres import Postgres

if TYPE_CHECKING:
    from ingest.postgres import Connection


class PostgresLeases:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def acquire(self, name: str, holder: str, ttl: float) -> Lease | None:
        async with self._postgres.transaction() as connection:
            return await _acquire(connection, name, holder, ttl)

    async def renew(self, lease: Lease, ttl: float) -> None:
        async with self._postgres.transaction() as connection:
            renewed = await connection.fetchval(
                """UPDATE ingest.leases SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + $4
                   WHERE name = $1 AND holder = $2 AND fence = $3 AND expires_at > clock_timestamp()
                   RETURNING true""",
                *owner(lease),
                timedelta(seconds=ttl),
            )
            if renewed is None:
                raise await superseded_by(connection, lease, "not renewed")

    async def release(self, lease: Lease) -> None:
        async with self._postgres.transaction() as connection:
            await connection.execute(
                "UPDATE ingest.leases SET expires_at = '-infinity' WHERE name = $1 AND holder = $2 AND fence = $3",
                *owner(lease),
            )

    async def holder(self, name: str) -> str | None:
        async with self._postgres.transaction() as connection:
            return (await _holders(connection, [name])).get(name)


class PostgresCheckpoints:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def claim(self, stream: StreamId, holder: str, ttl: float) -> Claim | None:
        async with self._postgres.transaction() as connection:
            lease = await _acquire(connection, stream_lease(stream), holder, ttl)
            if lease is None:
                return None
            # a statement of its own: its snapshot is younger than the wait for the lease's row
            row = await connection.fetchrow(
                """SELECT cursor, seen, seen_in FROM ingest.checkpoints
                   WHERE source = $1 AND stream = $2 AND partition = ''""",
                *stream,
            )
            if row is None:
                return Claim(stream, lease, None, 0)
            return Claim(stream, lease, row["cursor"].encode(), row["seen"], row["seen_in"])

    async def save(self, claim: Claim, save: Save) -> None:
        await save_page(self._postgres, claim, save)

    async def seen(self, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
        async with self._postgres.transaction() as connection:
            # one look into the index per id; `id = ANY` reads the whole of a table that has no statistics yet
            rows = await connection.fetch(
                """SELECT found.id, version, dead FROM unnest($3::text[]) AS wanted (id) CROSS JOIN LATERAL (
                       SELECT id, version, dead FROM ingest.seen
                       WHERE source = $1 AND stream = $2 AND id = wanted.id OFFSET 0) AS found""",
                *stream,
                ids,
            )
        return {name: DEAD + version if dead else version for name, version, dead in rows}

    async def keys(self, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(  # as `seen` does it
                """SELECT found.id, key FROM unnest($3::text[]) AS wanted (id) CROSS JOIN LATERAL (
                       SELECT id, key FROM ingest.seen
                       WHERE source = $1 AND stream = $2 AND id = wanted.id AND key IS NOT NULL OFFSET 0) AS found""",
                *stream,
                ids,
            )
        return dict(map(tuple, rows))

    async def missing(
        self, stream: StreamId, sweep: int, after: str, limit: int, *, twice: bool = False
    ) -> Sequence[Missing]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                """SELECT id, key FROM ingest.seen WHERE source = $1 AND stream = $2
                   AND id >= $3 AND (id > $3 OR $3 = '') AND NOT dead
                   AND (sweep IS NULL OR sweep < $4) AND (NOT $5 OR missed < $4)
                   ORDER BY id LIMIT $6""",
                *stream,
                after,
                sweep,
                twice,
                limit,
            )
        return [Missing(*row) for row in rows]

    async def cursors(self, stream: StreamId, partitions: Sequence[str]) -> Mapping[str, bytes]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                """SELECT partition, cursor FROM ingest.checkpoints
                   WHERE source = $1 AND stream = $2 AND partition = ANY($3::text[])""",
                *stream,
                partitions,
            )
        return {partition: cursor.encode() for partition, cursor in rows}

    async def keep(self, claim: Claim, event_id: str, payload: bytes, headers: bytes) -> str:
        async with self._postgres.transaction() as connection:
            held = await connection.fetchval(
                f"""WITH held AS MATERIALIZED ({HELD}), kept AS (
                        INSERT INTO ingest.oversized (event_id, source, stream, headers, payload)
                        SELECT $4, $5, $6, $7, $8 FROM held ON CONFLICT (event_id) DO NOTHING)
                    SELECT fence FROM held""",
                *owner(claim.lease),
                event_id,
                *claim.stream,
                headers,
                payload,
            )
            if held is None:
                raise await superseded_by(connection, claim.lease, f"the record {event_id} was not kept")
        return f"oversized:{event_id}"

    async def list(self) -> Sequence[Checkpoint]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                f"""SELECT source, stream, cursor, fence, {_millis("updated_at")}, (
                        SELECT count(*) FROM ingest.checkpoints AS p
                        WHERE p.source = c.source AND p.stream = c.stream AND p.partition <> '')
                    FROM ingest.checkpoints AS c WHERE partition = ''
                    ORDER BY source COLLATE "C", stream COLLATE "C\""""
            )
            found = [(StreamId(source, stream), *rest) for source, stream, *rest in rows]
            holders = await _holders(connection, [stream_lease(stream) for stream, *_ in found])
        return [
            Checkpoint(stream, cursor.encode(), fence, rfc3339(millis), holders.get(stream_lease(stream)), partitions)
            for stream, cursor, fence, millis, partitions in found
        ]

    async def history(self, stream: StreamId) -> Sequence[HistoryEntry]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                f"""SELECT cursor, fence, note, {_millis("saved_at")} FROM ingest.checkpoint_history
                    WHERE source = $1 AND stream = $2 ORDER BY id DESC""",
                *stream,
            )
        return [HistoryEntry(stream, cursor.encode(), fence, note, rfc3339(at)) for cursor, fence, note, at in rows]

    async def forget(self, claim: Claim, note: str = FORGOTTEN) -> None:
        async with self._postgres.transaction() as connection:
            if await connection.fetchval(HELD, *owner(claim.lease)) is None:
                raise await superseded_by(connection, claim.lease, "the cursor was not forgotten")
            cursor = await connection.fetchval(
                """WITH gone AS (
                       DELETE FROM ingest.checkpoints WHERE source = $1 AND stream = $2 RETURNING partition, cursor)
                   SELECT cursor FROM gone WHERE partition = ''""",
                *claim.stream,
            )
            await forget_all(connection, claim.stream)
            await add_history(connection, claim, cursor or "null", note)


def _millis(column: str) -> str:
    return f"(extract(epoch FROM {column}) * 1000)::bigint"


async def _acquire(connection: "Connection", name: str, holder: str, ttl: float) -> Lease | None:
    # who finds it held only reads: ON CONFLICT alone would lock the row, and wait for the holder's own writes
    row = await connection.fetchrow(
        """INSERT INTO ingest.leases AS l (name, holder, fence, clean, taken_at, renewed_at, expires_at)
           SELECT $1, $2, 1, true, t, t, t + $3 FROM clock_timestamp() AS t
           WHERE NOT EXISTS (SELECT FROM ingest.leases WHERE name = $1 AND expires_at > clock_timestamp())
           ON CONFLICT (name) DO UPDATE
               SET holder = excluded.holder, fence = l.fence + 1, clean = (l.expires_at = '-infinity'),
                   taken_at = clock_timestamp(), renewed_at = clock_timestamp(), expires_at = clock_timestamp() + $3
               WHERE l.expires_at <= clock_timestamp()
           RETURNING fence, clean""",
        name,
        holder,
        timedelta(seconds=ttl),
    )
    return None if row is None else Lease(name, holder, row["fence"], row["clean"])


async def _holders(connection: "Connection", names: Sequence[str]) -> dict[str, str]:
    rows = await connection.fetch(
        "SELECT name, holder FROM ingest.leases WHERE name = ANY($1::text[]) AND expires_at > clock_timestamp()", names
    )
    return {row["name"]: row["holder"] for row in rows}
