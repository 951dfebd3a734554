"""How fast a source may be asked, in the SQLite file. The port is in `checkpoints`, what is decided in `slots`."""

import sqlite3

from checkpoints import Demand, Hold, Slots
from checkpoints.slots import NOTHING, Taken, left, take
from ingest.sqlite import NOW_MS, Database


class SqliteRates:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, source: str, holder: str, demand: Demand) -> Slots:
        return await self._database.write(lambda connection: _take(connection, source, holder, demand))

    async def clock(self) -> float:
        return await self._database.read(_now)

    async def hold(self, source: str, hold: Hold) -> None:
        await self._database.write(lambda connection: _put_hold(connection, source, hold))

    async def held(self, source: str) -> Hold | None:
        return await self._database.read(lambda connection: _held(connection, source, _now(connection)))


def _now(connection: sqlite3.Connection) -> float:
    return float(connection.execute(f"SELECT {NOW_MS} / 1000.0").fetchone()[0])


def _take(connection: sqlite3.Connection, source: str, holder: str, demand: Demand) -> Slots:
    now = _now(connection)
    row = connection.execute(
        "SELECT holder, next_slot, taken_at, shared_at FROM rates WHERE source = ?", (source,)
    ).fetchone()
    kept, slots = take(Taken(*row) if row else NOTHING, now, holder, demand, _held(connection, source, now))
    connection.execute(
        """INSERT INTO rates (source, holder, next_slot, taken_at, shared_at) VALUES (?, ?, ?, ?, ?)
           ON CONFLICT (source) DO UPDATE SET holder = excluded.holder, next_slot = excluded.next_slot,
               taken_at = excluded.taken_at, shared_at = excluded.shared_at""",
        (source, *kept),
    )
    return slots


def _put_hold(connection: sqlite3.Connection, source: str, hold: Hold) -> None:
    now = _now(connection)
    before = _held(connection, source, now)
    if before is None or before.seconds < hold.seconds:
        connection.execute(
            """INSERT INTO rates (source, held_at, held_until, held_because) VALUES (?, ?, ?, ?)
               ON CONFLICT (source) DO UPDATE SET held_at = excluded.held_at, held_until = excluded.held_until,
                   held_because = excluded.held_because""",
            (source, now, now + hold.seconds, hold.reason),
        )


def _held(connection: sqlite3.Connection, source: str, now: float) -> Hold | None:
    row = connection.execute(
        "SELECT held_at, held_until, held_because FROM rates WHERE source = ?", (source,)
    ).fetchone()
    return None if row is None else left(row[0], row[1], row[2], now)
