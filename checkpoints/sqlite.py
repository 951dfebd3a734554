"""Leases, cursors and what was seen, in the SQLite file. The ports are in `checkpoints`.

Every write is one IMMEDIATE transaction, so between looking at a lease and writing under it nobody else can take it.
The clock is read once in it. A holder whose process has ended is succeeded at once.
"""

import builtins
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

import msgspec

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
from ingest.presence import Presence
from ingest.sqlite import NOW_MS, Database

RELEASED = 0  # expires_at of a lease that was given back


class SqliteLeases:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def acquire(self, name: str, holder: str, ttl: float) -> Lease | None:
        presence = self._database.presence
        return await self._database.write(lambda connection: _acquire(connection, presence, name, holder, ttl))

    async def renew(self, lease: Lease, ttl: float) -> None:
        await self._database.write(lambda connection: _renew(connection, lease, ttl))

    async def release(self, lease: Lease) -> None:
        await self._database.write(lambda connection: _release(connection, lease))

    async def holder(self, name: str) -> str | None:
        return (await self._database.read(lambda connection: _holders(connection, [name]))).get(name)


class SqliteCheckpoints:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, stream: StreamId, holder: str, ttl: float) -> Claim | None:
        presence = self._database.presence
        return await self._database.write(lambda connection: _claim(connection, presence, stream, holder, ttl))

    async def save(self, claim: Claim, save: Save) -> None:
        await self._database.write(lambda connection: _save(connection, claim, save))

    async def seen(self, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
        return await self._database.read(lambda connection: _seen(connection, stream, ids))

    async def keys(self, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
        return await self._database.read(lambda connection: _keys(connection, stream, ids))

    async def missing(
        self, stream: StreamId, sweep: int, after: str, limit: int, *, twice: bool = False
    ) -> Sequence[Missing]:
        return await self._database.read(lambda connection: _missing(connection, stream, sweep, after, limit, twice))

    async def cursors(self, stream: StreamId, partitions: Sequence[str]) -> Mapping[str, bytes]:
        return await self._database.read(lambda connection: _cursors(connection, stream, partitions))

    async def keep(self, claim: Claim, event_id: str, payload: bytes, headers: bytes) -> str:
        await self._database.write(lambda connection: _keep(connection, claim, event_id, payload, headers))
        return f"oversized:{event_id}"

    async def list(self) -> Sequence[Checkpoint]:
        return await self._database.read(_list)

    async def history(self, stream: StreamId) -> Sequence[HistoryEntry]:
        return await self._database.read(lambda connection: _history(connection, stream))

    async def forget(self, claim: Claim, note: str = FORGOTTEN) -> None:
        await self._database.write(lambda connection: _forget(connection, claim, note))


def _now(connection: sqlite3.Connection) -> int:
    return int(connection.execute(f"SELECT {NOW_MS}").fetchone()[0])


def _alive_as(holder: str) -> str:
    """The part of `host:pid:uuid` that names the file of its process."""
    return holder.rpartition(":")[2]


def _acquire(connection: sqlite3.Connection, presence: Presence, name: str, holder: str, ttl: float) -> Lease | None:
    presence.show(_alive_as(holder))  # before the row says so: whoever reads the row must find the process
    now = _now(connection)
    fence, clean = 1, True
    row = connection.execute(
        "SELECT holder, fence, renewed_at, expires_at FROM leases WHERE name = ?", (name,)
    ).fetchone()
    if row is not None:
        before, last_fence, renewed_at, expires_at = row
        if expires_at > now and not presence.gone(_alive_as(before)):
            if renewed_at > now:  # the clock was set back: what is left of the lease counts from now
                connection.execute(
                    "UPDATE leases SET renewed_at = ?, expires_at = ? WHERE name = ?",
                    (now, now + expires_at - renewed_at, name),
                )
            return None
        fence, clean = last_fence + 1, expires_at == RELEASED
    connection.execute(
        """INSERT OR REPLACE INTO leases (name, holder, fence, clean, taken_at, renewed_at, expires_at)
           VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (name, holder, fence, clean, now, now, now + round(ttl * 1000)),
    )
    return Lease(name, holder, fence, clean)


def _renew(connection: sqlite3.Connection, lease: Lease, ttl: float) -> None:
    now = _now(connection)
    renewed = connection.execute(
        """UPDATE leases SET renewed_at = ?, expires_at = ?
           WHERE name = ? AND holder = ? AND fence = ? AND expires_at > ?""",
        (now, now + round(ttl * 1000), lease.name, lease.holder, lease.fence, now),
    )
    if renewed.rowcount == 0:
        raise _superseded(connection, lease, "not renewed")


def _release(connection: sqlite3.Connection, lease: Lease) -> None:
    connection.execute(
        "UPDATE leases SET expires_at = ? WHERE name = ? AND holder = ? AND fence = ?",
        (RELEASED, lease.name, lease.holder, lease.fence),
    )


def _holders(connection: sqlite3.Connection, names: Sequence[str]) -> dict[str, str]:
    rows = connection.execute(
        f"""SELECT name, holder FROM leases
            WHERE name IN (SELECT value FROM json_each(?)) AND expires_at > {NOW_MS}""",
        (_array(names),),
    )
    return dict(rows.fetchall())


def _check(connection: sqlite3.Connection, lease: Lease, what: str) -> None:
    """Raises Superseded when the lease has a newer holder. One that only expired is still good."""
    row = connection.execute(
        "SELECT 1 FROM leases WHERE name = ? AND holder = ? AND fence = ?", (lease.name, lease.holder, lease.fence)
    ).fetchone()
    if row is None:
        raise _superseded(connection, lease, what)


def _superseded(connection: sqlite3.Connection, lease: Lease, what: str) -> Superseded:
    row = connection.execute("SELECT holder, fence FROM leases WHERE name = ?", (lease.name,)).fetchone()
    return superseded(lease, what, None if row is None else (row[0], row[1]))


def _claim(
    connection: sqlite3.Connection, presence: Presence, stream: StreamId, holder: str, ttl: float
) -> Claim | None:
    lease = _acquire(connection, presence, stream_lease(stream), holder, ttl)
    if lease is None:
        return None
    row = connection.execute(
        "SELECT cursor, seen, seen_in FROM checkpoints WHERE source = ? AND stream = ? AND partition = ''", stream
    ).fetchone()
    if row is None:
        return Claim(stream, lease, None, 0)
    return Claim(stream, lease, row[0].encode(), row[1], row[2])


def _save(connection: sqlite3.Connection, claim: Claim, save: Save) -> None:
    _check(connection, claim.lease, "the cursor was not saved")
    now = _now(connection)
    (count,) = connection.execute(
        """INSERT INTO checkpoints AS c (source, stream, cursor, fence, seen_in, updated_at) VALUES (?, ?, ?, ?, ?, ?)
           ON CONFLICT (source, stream, partition) DO UPDATE
               SET cursor = excluded.cursor, fence = excluded.fence, updated_at = excluded.updated_at,
                   seen_in = coalesce(excluded.seen_in, c.seen_in)
           RETURNING seen""",
        (*claim.stream, save.cursor.decode(), claim.lease.fence, save.seen_in, now),
    ).fetchone()
    _save_partitions(connection, claim, save, now)
    changed = -_forget_all(connection, claim.stream) if save.forget_seen else 0
    changed += _remember(connection, claim.stream, save)
    _note_sweep(connection, claim.stream, save)
    if save.forget_below is not None:
        changed -= _forget_below(connection, claim.stream, save.partition, save.forget_below)
    if save.seen_limit is not None and count + changed > save.seen_limit:
        changed -= _trim(connection, claim.stream, count + changed - save.seen_limit)
    if changed:
        connection.execute(
            "UPDATE checkpoints SET seen = seen + ? WHERE source = ? AND stream = ? AND partition = ''",
            (changed, *claim.stream),
        )
    if save.history is not None:
        _add_history(connection, claim, save.cursor.decode(), save.history, now)


def _save_partitions(connection: sqlite3.Connection, claim: Claim, save: Save, now: int) -> None:
    for partition, cursor in save.partitions.items():
        if cursor is None:
            connection.execute(
                "DELETE FROM checkpoints WHERE source = ? AND stream = ? AND partition = ?", (*claim.stream, partition)
            )
        else:
            connection.execute(
                """INSERT INTO checkpoints (source, stream, partition, cursor, fence, updated_at)
                   VALUES (?, ?, ?, ?, ?, ?)
                   ON CONFLICT (source, stream, partition) DO UPDATE
                       SET cursor = excluded.cursor, fence = excluded.fence, updated_at = excluded.updated_at""",
                (*claim.stream, partition, cursor.decode(), claim.lease.fence, now),
            )
    if save.partitions_limit is not None:
        connection.execute(
            """DELETE FROM checkpoints WHERE source = ?1 AND stream = ?2 AND partition IN (
                   SELECT partition FROM checkpoints
                   WHERE source = ?1 AND stream = ?2 AND partition NOT IN ('', ?5)
                   ORDER BY partition IN (SELECT value FROM json_each(?4)) DESC, updated_at DESC LIMIT -1 OFFSET ?3)""",
            (*claim.stream, save.partitions_limit, _array(save.partitions), RESERVED),
        )


def _forget_below(connection: sqlite3.Connection, stream: StreamId, partition: str, position: int) -> int:
    if partition:  # said once more for the partial index
        return connection.execute(
            """DELETE FROM seen WHERE source = ? AND stream = ? AND partition = ? AND partition <> ''
               AND position < ?""",
            (*stream, partition, position),
        ).rowcount
    return connection.execute(
        "DELETE FROM seen WHERE source = ? AND stream = ? AND position < ?", (*stream, position)
    ).rowcount


def _remember(connection: sqlite3.Connection, stream: StreamId, save: Save) -> int:
    """Returns how many of the ids are new."""
    if not save.seen:
        return 0
    rows = {  # of two with one id, the last
        one.id: (one.version, one.position, one.key, one.dead, save.sweep, *stream, one.id) for one in save.seen
    }
    new = connection.executemany(
        """INSERT INTO seen (version, position, key, dead, sweep, source, stream, id, partition)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (source, stream, id) DO NOTHING""",
        [(*row, save.partition) for row in rows.values()],
    ).rowcount
    if new < len(rows):
        connection.executemany(
            """UPDATE seen SET version = ?, position = ?, key = ?, dead = ?, sweep = coalesce(?, sweep), missed = NULL
               WHERE source = ? AND stream = ? AND id = ?""",
            rows.values(),
        )
    return new


def _note_sweep(connection: sqlite3.Connection, stream: StreamId, save: Save) -> None:
    if save.listed:
        connection.executemany(
            "UPDATE seen SET sweep = ?, missed = NULL WHERE source = ? AND stream = ? AND id = ?",
            [(save.sweep, *stream, one) for one in save.listed],
        )
    if save.missed:
        connection.execute(
            """UPDATE seen SET missed = ?3 WHERE source = ?1 AND stream = ?2 AND NOT dead AND missed IS NULL
               AND (sweep IS NULL OR sweep < ?3)""",
            (*stream, save.sweep),
        )


def _missing(
    connection: sqlite3.Connection, stream: StreamId, sweep: int, after: str, limit: int, twice: bool
) -> builtins.list[Missing]:
    rows = connection.execute(
        """SELECT id, key FROM seen WHERE source = ?1 AND stream = ?2 AND id >= ?3 AND (id > ?3 OR ?3 = '')
           AND NOT dead AND (sweep IS NULL OR sweep < ?4) AND (NOT ?5 OR missed < ?4) ORDER BY id LIMIT ?6""",
        (*stream, after, sweep, twice, limit),
    )
    return [Missing(*row) for row in rows]


def _forget_all(connection: sqlite3.Connection, stream: StreamId) -> int:
    return connection.execute("DELETE FROM seen WHERE source = ? AND stream = ?", stream).rowcount


def _trim(connection: sqlite3.Connection, stream: StreamId, excess: int) -> int:
    """Forget so many ids, those with the lowest positions; only when none is left, ids without one."""
    trimmed = connection.execute(
        """DELETE FROM seen WHERE source = ?1 AND stream = ?2 AND id IN (
               SELECT id FROM seen WHERE source = ?1 AND stream = ?2 AND position IS NOT NULL
               ORDER BY position LIMIT ?3)""",
        (*stream, excess),
    ).rowcount
    if trimmed < excess:
        trimmed += connection.execute(
            """DELETE FROM seen WHERE source = ?1 AND stream = ?2 AND id IN (
                   SELECT id FROM seen WHERE source = ?1 AND stream = ?2 LIMIT ?3)""",
            (*stream, excess - trimmed),
        ).rowcount
    return trimmed


def _add_history(connection: sqlite3.Connection, claim: Claim, cursor: str, note: str, now: int) -> None:
    connection.execute(
        "INSERT INTO checkpoint_history (source, stream, cursor, fence, note, saved_at) VALUES (?, ?, ?, ?, ?, ?)",
        (*claim.stream, cursor, claim.lease.fence, note, now),
    )
    connection.execute(
        """DELETE FROM checkpoint_history WHERE source = ?1 AND stream = ?2 AND id <= (
               SELECT id FROM checkpoint_history WHERE source = ?1 AND stream = ?2
               ORDER BY id DESC LIMIT 1 OFFSET ?3)""",
        (*claim.stream, HISTORY_LIMIT),
    )


def _seen(connection: sqlite3.Connection, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
    rows = connection.execute(
        """SELECT id, version, dead FROM seen
           WHERE source = ? AND stream = ? AND id IN (SELECT value FROM json_each(?))""",
        (*stream, _array(ids)),
    )
    return {name: DEAD + version if dead else version for name, version, dead in rows}


def _cursors(connection: sqlite3.Connection, stream: StreamId, partitions: Sequence[str]) -> Mapping[str, bytes]:
    rows = connection.execute(
        """SELECT partition, cursor FROM checkpoints
           WHERE source = ? AND stream = ? AND partition IN (SELECT value FROM json_each(?))""",
        (*stream, _array(partitions)),
    )
    return {partition: cursor.encode() for partition, cursor in rows}


def _keys(connection: sqlite3.Connection, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
    rows = connection.execute(
        """SELECT id, key FROM seen WHERE source = ? AND stream = ? AND key IS NOT NULL
           AND id IN (SELECT value FROM json_each(?))""",
        (*stream, _array(ids)),
    )
    return dict(rows.fetchall())


def _keep(connection: sqlite3.Connection, claim: Claim, event_id: str, payload: bytes, headers: bytes) -> None:
    _check(connection, claim.lease, f"the record {event_id} was not kept")
    connection.execute(
        """INSERT INTO oversized (event_id, source, stream, headers, payload, kept_at) VALUES (?, ?, ?, ?, ?, ?)
           ON CONFLICT (event_id) DO NOTHING""",
        (event_id, *claim.stream, headers, payload, _now(connection)),
    )


def _list(connection: sqlite3.Connection) -> builtins.list[Checkpoint]:
    rows = connection.execute(
        """SELECT source, stream, cursor, fence, updated_at, (
               SELECT count(*) FROM checkpoints AS p
               WHERE p.source = c.source AND p.stream = c.stream AND p.partition <> '')
           FROM checkpoints AS c WHERE partition = '' ORDER BY source, stream"""
    ).fetchall()
    holders = _holders(connection, [stream_lease(StreamId(source, stream)) for source, stream, *_ in rows])
    return [
        Checkpoint(
            StreamId(source, stream),
            cursor.encode(),
            fence,
            rfc3339(updated_at),
            holders.get(stream_lease(StreamId(source, stream))),
            partitions,
        )
        for source, stream, cursor, fence, updated_at, partitions in rows
    ]


def _history(connection: sqlite3.Connection, stream: StreamId) -> builtins.list[HistoryEntry]:
    rows = connection.execute(
        """SELECT cursor, fence, note, saved_at FROM checkpoint_history WHERE source = ? AND stream = ?
           ORDER BY id DESC""",
        stream,
    ).fetchall()
    return [HistoryEntry(stream, cursor.encode(), fence, note, rfc3339(at)) for cursor, fence, note, at in rows]


def _forget(connection: sqlite3.Connection, claim: Claim, note: str) -> None:
    _check(connection, claim.lease, "the cursor was not forgotten")
    row = connection.execute(
        "SELECT cursor FROM checkpoints WHERE source = ? AND stream = ? AND partition = ''", claim.stream
    ).fetchone()
    connection.execute("DELETE FROM checkpoints WHERE source = ? AND stream = ?", claim.stream)
    _forget_all(connection, claim.stream)
    _add_history(connection, claim, "null" if row is None else row[0], note, _now(connection))


def _array(texts: Iterable[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()
