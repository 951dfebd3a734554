"""How fast a source may be asked, in Postgres. The port is in `checkpoints`, what is decided in `slots`.

Every change locks the row of its source first: whoever comes at the same moment waits, and then sees what is left.
"""

from typing import TYPE_CHECKING, NamedTuple

from checkpoints import Demand, Hold, Slots
from checkpoints.slots import Taken, left, take
from ingest.postgres import Postgres

if TYPE_CHECKING:
    from ingest.postgres import Connection

ROW = ", ".join(
    f"extract(epoch FROM {moment})::float8"
    for moment in ("next_slot", "taken_at", "shared_at", "held_at", "held_until", "clock_timestamp()")
)


class PostgresRates:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def take(self, source: str, holder: str, demand: Demand) -> Slots:
        async with self._postgres.transaction() as connection:
            row = await _locked(connection, source)
            kept, slots = take(row.taken, row.now, holder, demand, row.hold)
            await connection.execute(
                """UPDATE ingest.rates SET holder = $2, next_slot = to_timestamp($3), taken_at = to_timestamp($4),
                       shared_at = to_timestamp($5) WHERE source = $1""",
                source,
                *kept,
            )
        return slots

    async def clock(self) -> float:
        async with self._postgres.transaction() as connection:
            now: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        return now

    async def hold(self, source: str, hold: Hold) -> None:
        async with self._postgres.transaction() as connection:
            row = await _locked(connection, source)
            if row.hold is None or row.hold.seconds < hold.seconds:
                await connection.execute(
                    """UPDATE ingest.rates SET held_at = to_timestamp($2), held_until = to_timestamp($3),
                           held_because = $4 WHERE source = $1""",
                    source,
                    row.now,
                    row.now + hold.seconds,
                    hold.reason,
                )

    async def held(self, source: str) -> Hold | None:
        async with self._postgres.transaction() as connection:
            found = await connection.fetchrow(
                f"SELECT holder, held_because, {ROW} FROM ingest.rates WHERE source = $1", source
            )
        return None if found is None else _row(*found).hold


class _Row(NamedTuple):
    taken: Taken
    hold: Hold | None
    now: float


def _row(
    holder: str,
    because: str,
    next_slot: float,
    taken_at: float,
    shared_at: float,
    held_at: float,
    held_until: float,
    now: float,
) -> _Row:
    return _Row(Taken(holder, next_slot, taken_at, shared_at), left(held_at, held_until, because, now), now)


async def _locked(connection: "Connection", source: str) -> _Row:
    """The row, which nobody else changes before the transaction ends; made where there is none yet."""
    found = await connection.fetchrow(
        f"""INSERT INTO ingest.rates AS r (source) VALUES ($1)
            ON CONFLICT (source) DO UPDATE SET holder = r.holder
            RETURNING holder, held_because, {ROW}""",
        source,
    )
    assert found is not None
    return _row(*found)
