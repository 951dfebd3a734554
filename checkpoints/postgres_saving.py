"""Saves a page of a stream in Postgres: its cursor, what was seen and what a sweep notes, in one transaction or not at
all, and only under the newest fence of the lease.
"""

from typing import TYPE_CHECKING

from checkpoints import HISTORY_LIMIT, RESERVED, Claim, Save, StreamId
from checkpoints.postgres_fencing import HELD, owner, superseded_by
from ingest.postgres import Postgres, literal

if TYPE_CHECKING:
    from ingest.postgres import Connection

AT_ONCE = 100  # ids that are saved with a cursor in one round trip; more of them pay for their own


async def save_page(postgres: Postgres, claim: Claim, save: Save) -> None:
    if _is_plain(save) and await postgres.write_at_once(_saving(claim, save)):
        return
    async with postgres.transaction() as connection:
        count = await _save_cursor(connection, claim, save)
        await _save_partitions(connection, claim, save)
        changed = -await forget_all(connection, claim.stream) if save.forget_seen else 0
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
            await add_history(connection, claim, save.cursor.decode(), save.history)


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
        *owner(claim.lease),
        *claim.stream,
        save.cursor.decode(),
        save.seen_in,
    )
    if count is None:
        raise await superseded_by(connection, claim.lease, "the cursor was not saved")
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


async def forget_all(connection: "Connection", stream: StreamId) -> int:
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


async def add_history(connection: "Connection", claim: Claim, cursor: str, note: str) -> None:
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
