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
    HISTORY_LIMIT,
    RESERVED,
    Checkpoint,
    Claim,
    HistoryEntry,
    Lease,
    Missing,
    Save,
    StreamId,
    stream_lease,
    superseded,
)
from ingest.errors import Superseded
from ingest.event import rfc3339
from ingest.postgres import Postgres, literal

if TYPE_CHECKING:
    from ingest.postgres import Connection

AT_ONCE = 100  # ids that are saved with a cursor in one round trip; more of them pay for their own
HELD = "SELECT fence FROM ingest.leases WHERE name = $1 AND holder = $2 AND fence = $3 FOR NO KEY UPDATE"
"""A row: the lease has no newer holder, and gets none before this transaction ends."""


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
                *_owner(lease),
                timedelta(seconds=ttl),
            )
            if renewed is None:
                raise await _superseded(connection, lease, "not renewed")

    async def release(self, lease: Lease) -> None:
        async with self._postgres.transaction() as connection:
            await connection.execute(
                "UPDATE ingest.leases SET expires_at = '-infinity' WHERE name = $1 AND holder = $2 AND fence = $3",
                *_owner(lease),
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
        if _is_plain(save) and await self._postgres.write_at_once(_saving(claim, save)):
            return
        async with self._postgres.transaction() as connection:
            count = await _save_cursor(connection, claim, save)
            await _save_partitions(connection, claim, save)
            changed = -await _forget_all(connection, claim.stream) if save.forget_seen else 0
            changed += await _remember(connection, claim.stream, save)
            await _note_sweep(connection, claim.stream, save)
            if save.forget_below is not None:
                changed -= await _forget_below(connection, claim.stream, save.partition, save.forget_below)
            if save.seen_limit is not None and count + changed > save.seen_limit:
                changed -= await _trim(connection, claim.stream, count + changed - save.seen_limit)
            if changed:
                await connection.execute(
                    """UPDATE ingest.checkpoints SET seen = seen + $3
                       WHERE source = $1 AND stream = $2 AND partition = ''""",
                    *claim.stream,
                    changed,
                )
            if save.history is not None:
                await _add_history(connection, claim, save.cursor.decode(), save.history)

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
                *_owner(claim.lease),
                event_id,
                *claim.stream,
                headers,
                payload,
            )
            if held is None:
                raise await _superseded(connection, claim.lease, f"the record {event_id} was not kept")
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
            if await connection.fetchval(HELD, *_owner(claim.lease)) is None:
                raise await _superseded(connection, claim.lease, "the cursor was not forgotten")
            cursor = await connection.fetchval(
                """WITH gone AS (
                       DELETE FROM ingest.checkpoints WHERE source = $1 AND stream = $2 RETURNING partition, cursor)
                   SELECT cursor FROM gone WHERE partition = ''""",
                *claim.stream,
            )
            await _forget_all(connection, claim.stream)
            await _add_history(connection, claim, cursor or "null", note)


def _owner(lease: Lease) -> tuple[str, str, int]:
    return lease.name, lease.holder, lease.fence


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


async def _superseded(connection: "Connection", lease: Lease, what: str) -> Superseded:
    row = await connection.fetchrow("SELECT holder, fence FROM ingest.leases WHERE name = $1", lease.name)
    return superseded(lease, what, None if row is None else (row["holder"], row["fence"]))


def _is_plain(save: Save) -> bool:
    """What nearly every page is: a few ids to remember, none of them among those to forget, no sweep and no end."""
    below = save.forget_below
    return (
        not save.forget_seen
        and save.history is None
        and save.sweep is None
        and not save.missed
        and save.partitions_limit is None
        and len(save.seen) <= (AT_ONCE if save.seen_limit is None else min(AT_ONCE, save.seen_limit))
        and (below is None or all(one.position is None or one.position >= below for one in save.seen))
    )


def _saving(claim: Claim, save: Save) -> str:
    """A plain save as one statement. It writes nothing, not even one row, when the lease has a newer holder, and when
    there may be ids to trim: what to do then, `save` finds out."""
    name, holder, fence = literal(claim.lease.name), literal(claim.lease.holder), literal(claim.lease.fence)
    source, stream = map(literal, claim.stream)
    rows = {one.id: one for one in save.seen}.values()  # of two with one id, the last
    steps = [
        f"""held AS MATERIALIZED (
            SELECT fence FROM ingest.leases WHERE name = {name} AND holder = {holder} AND fence = {fence}
            FOR NO KEY UPDATE)"""
    ]
    if save.seen_limit is not None:
        steps.append(f"""fits AS (
            SELECT fence FROM held WHERE NOT EXISTS (
                SELECT FROM ingest.checkpoints WHERE source = {source} AND stream = {stream} AND partition = ''
                    AND seen > {save.seen_limit - len(rows)}))""")
    else:
        steps.append("fits AS (SELECT fence FROM held)")
    change = "0"
    if rows:
        values = ", ".join(f"({', '.join(map(literal, one))})" for one in rows)
        steps.append(f"""remembered AS (
            INSERT INTO ingest.seen AS s (source, stream, partition, id, version, position, key, dead)
            SELECT {source}, {stream}, {literal(save.partition)}, u.id, u.version, u.position::bigint, u.key, u.dead
            FROM fits, (VALUES {values}) AS u (id, version, position, key, dead)
            ON CONFLICT (source, stream, id) DO UPDATE
                SET version = excluded.version, position = excluded.position, key = excluded.key,
                    dead = excluded.dead, missed = NULL
                WHERE (s.version, s.position, s.key, s.dead) IS DISTINCT FROM
                    (excluded.version, excluded.position, excluded.key, excluded.dead) OR s.missed IS NOT NULL
            RETURNING xmax = 0 AS new)""")
        change += " + (SELECT count(*) FILTER (WHERE new) FROM remembered)"
    if save.forget_below is not None:
        kept = f" AND id NOT IN ({', '.join(literal(r.id) for r in rows)})" if rows else ""
        steps.append(f"""forgotten AS (
            DELETE FROM ingest.seen WHERE source = {source} AND stream = {stream}{_within(save.partition)}
                AND position < {save.forget_below}{kept} AND EXISTS (SELECT FROM fits)
            RETURNING 1)""")
        change += " - (SELECT count(*) FROM forgotten)"
    moved = {partition: cursor for partition, cursor in save.partitions.items() if cursor is not None}
    if moved:
        values = ", ".join(f"({literal(one)}, {literal(cursor.decode())}::json)" for one, cursor in moved.items())
        steps.append(f"""moved AS (
            INSERT INTO ingest.checkpoints AS p (source, stream, partition, cursor, fence)
            SELECT {source}, {stream}, u.partition, u.cursor, fence
            FROM fits, (VALUES {values}) AS u (partition, cursor)
            ON CONFLICT (source, stream, partition) DO UPDATE
                SET cursor = excluded.cursor, fence = excluded.fence, updated_at = clock_timestamp())""")
    if ended := [partition for partition in save.partitions if partition not in moved]:
        steps.append(f"""ended AS (
            DELETE FROM ingest.checkpoints WHERE source = {source} AND stream = {stream}
                AND partition IN ({", ".join(map(literal, ended))}) AND EXISTS (SELECT FROM fits))""")
    return f"""
        WITH {", ".join(steps)}
        INSERT INTO ingest.checkpoints AS c (source, stream, cursor, fence, seen_in, seen)
        SELECT {source}, {stream}, {literal(save.cursor.decode())}::json, fence, {literal(save.seen_in)}, {change}
        FROM fits
        ON CONFLICT (source, stream, partition) DO UPDATE
            SET cursor = excluded.cursor, fence = excluded.fence, updated_at = clock_timestamp(),
                seen_in = coalesce(excluded.seen_in, c.seen_in), seen = c.seen + excluded.seen"""


def _within(partition: str) -> str:
    """Said twice for the partial index."""
    return f" AND partition = {literal(partition)} AND partition <> ''" if partition else ""


async def _save_cursor(connection: "Connection", claim: Claim, save: Save) -> int:
    """Returns how many ids are remembered. Raises Superseded."""
    count: int | None = await connection.fetchval(
        f"""WITH held AS MATERIALIZED ({HELD})
            INSERT INTO ingest.checkpoints AS c (source, stream, cursor, fence, seen_in)
            SELECT $4, $5, $6::json, fence, $7 FROM held
            ON CONFLICT (source, stream, partition) DO UPDATE
                SET cursor = excluded.cursor, fence = excluded.fence, updated_at = clock_timestamp(),
                    seen_in = coalesce(excluded.seen_in, c.seen_in)
            RETURNING seen""",
        *_owner(claim.lease),
        *claim.stream,
        save.cursor.decode(),
        save.seen_in,
    )
    if count is None:
        raise await _superseded(connection, claim.lease, "the cursor was not saved")
    return count


async def _save_partitions(connection: "Connection", claim: Claim, save: Save) -> None:
    moved = {partition: cursor for partition, cursor in save.partitions.items() if cursor is not None}
    if moved:
        await connection.execute(
            """INSERT INTO ingest.checkpoints (source, stream, partition, cursor, fence)
               SELECT $1, $2, partition, cursor::json, $3 FROM unnest($4::text[], $5::text[]) AS u (partition, cursor)
               ON CONFLICT (source, stream, partition) DO UPDATE
                   SET cursor = excluded.cursor, fence = excluded.fence, updated_at = clock_timestamp()""",
            *claim.stream,
            claim.lease.fence,
            list(moved),
            [cursor.decode() for cursor in moved.values()],
        )
    if ended := [partition for partition in save.partitions if partition not in moved]:
        await connection.execute(
            "DELETE FROM ingest.checkpoints WHERE source = $1 AND stream = $2 AND partition = ANY($3::text[])",
            *claim.stream,
            ended,
        )
    if save.partitions_limit is not None:
        await connection.execute(
            """DELETE FROM ingest.checkpoints WHERE source = $1 AND stream = $2 AND partition = ANY(ARRAY(
                   SELECT partition FROM ingest.checkpoints
                   WHERE source = $1 AND stream = $2 AND partition NOT IN ('', $5)
                   ORDER BY partition = ANY($4::text[]) DESC, updated_at DESC OFFSET $3))""",
            *claim.stream,
            save.partitions_limit,
            list(save.partitions),
            RESERVED,
        )


async def _remember(connection: "Connection", stream: StreamId, save: Save) -> int:
    """Returns how many of the ids are new."""
    if not save.seen:
        return 0
    rows = {
        one.id: one for one in save.seen
    }.values()  # of two with one id, the last: ON CONFLICT cannot meet one twice
    new: int = await connection.fetchval(
        """WITH remembered AS (
               INSERT INTO ingest.seen AS s (source, stream, partition, id, version, position, key, dead, sweep)
               SELECT $1, $2, $9, id, version, position, key, dead, $8
               FROM unnest($3::text[], $4::text[], $5::bigint[], $6::text[], $7::boolean[])
                   AS u (id, version, position, key, dead)
               ON CONFLICT (source, stream, id) DO UPDATE
                   SET version = excluded.version, position = excluded.position, key = excluded.key,
                       dead = excluded.dead, sweep = coalesce(excluded.sweep, s.sweep), missed = NULL
                   WHERE (s.version, s.position, s.key, s.dead, s.sweep) IS DISTINCT FROM
                       (excluded.version, excluded.position, excluded.key, excluded.dead, excluded.sweep)
               RETURNING xmax = 0 AS new)  -- xmax: of a row that was there, the lock of this update
           SELECT count(*) FILTER (WHERE new) FROM remembered""",
        *stream,
        [one.id for one in rows],
        [one.version for one in rows],
        [one.position for one in rows],
        [one.key for one in rows],
        [one.dead for one in rows],
        save.sweep,
        save.partition,
    )
    return new


async def _note_sweep(connection: "Connection", stream: StreamId, save: Save) -> None:
    if save.listed:
        await connection.execute(
            """UPDATE ingest.seen SET sweep = $4, missed = NULL
               WHERE source = $1 AND stream = $2 AND id = ANY($3::text[])""",
            *stream,
            save.listed,
            save.sweep,
        )
    if save.missed:
        await connection.execute(
            """UPDATE ingest.seen SET missed = $3 WHERE source = $1 AND stream = $2 AND NOT dead AND missed IS NULL
               AND (sweep IS NULL OR sweep < $3)""",
            *stream,
            save.sweep,
        )


async def _forget_all(connection: "Connection", stream: StreamId) -> int:
    return _count(await connection.execute("DELETE FROM ingest.seen WHERE source = $1 AND stream = $2", *stream))


async def _forget_below(connection: "Connection", stream: StreamId, partition: str, position: int) -> int:
    within = _within(partition)
    status = await connection.execute(
        f"DELETE FROM ingest.seen WHERE source = $1 AND stream = $2 AND position < $3{within}", *stream, position
    )
    return _count(status)


async def _trim(connection: "Connection", stream: StreamId, excess: int) -> int:
    """Forget so many ids, those with the lowest positions; only when none is left, ids without one."""
    # the index gives the order; without statistics the planner would rather sort all the ids of the stream
    await connection.execute("SET LOCAL enable_sort = off")
    status = await connection.execute(
        """DELETE FROM ingest.seen WHERE ctid = ANY(ARRAY(
               SELECT ctid FROM ingest.seen WHERE source = $1 AND stream = $2 AND position IS NOT NULL
               ORDER BY position LIMIT $3))""",
        *stream,
        excess,
    )
    trimmed = _count(status)
    if trimmed < excess:
        status = await connection.execute(
            """DELETE FROM ingest.seen WHERE ctid = ANY(ARRAY(
                   SELECT ctid FROM ingest.seen WHERE source = $1 AND stream = $2 LIMIT $3))""",
            *stream,
            excess - trimmed,
        )
        trimmed += _count(status)
    return trimmed


async def _add_history(connection: "Connection", claim: Claim, cursor: str, note: str) -> None:
    # the subquery does not see the new row, so one fewer of the others is kept
    await connection.execute(
        """WITH added AS (
               INSERT INTO ingest.checkpoint_history (source, stream, cursor, fence, note)
               VALUES ($1, $2, $3::json, $4, $5))
           DELETE FROM ingest.checkpoint_history WHERE source = $1 AND stream = $2 AND id <= (
               SELECT id FROM ingest.checkpoint_history WHERE source = $1 AND stream = $2
               ORDER BY id DESC LIMIT 1 OFFSET $6)""",
        *claim.stream,
        cursor,
        claim.lease.fence,
        note,
        HISTORY_LIMIT - 1,
    )


def _count(status: str) -> int:
    """The number in a command's status: `DELETE 5`."""
    return int(status.rpartition(" ")[2])
