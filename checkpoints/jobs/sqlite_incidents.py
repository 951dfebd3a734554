"""What people are told of, in the SQLite file. The port is in `incidents`."""

import sqlite3
from collections.abc import Sequence

from checkpoints.jobs.incidents import Due, Incident, Trouble
from checkpoints.jobs.selecting import made
from checkpoints.jobs.sqlite_rows import millis, moment
from ingest.sqlite import Database

AT_ONCE = 100  # incidents that are looked for, begun or told at a time


class SqliteIncidents:
    """Who finds nothing to change only reads: that takes no lock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def survey(self) -> Sequence[Trouble]:
        if await self._database.read(lambda connection: connection.execute(OVER).fetchone()):
            await self._database.write(lambda connection: connection.execute(END).rowcount)
        rows = await self._database.read(lambda connection: connection.execute(TROUBLE).fetchall())
        return [made(Trouble, row) for row in rows]

    async def begin(self, incidents: Sequence[Incident]) -> None:
        await self._database.write(lambda connection: _begin(connection, incidents))

    async def end(self, subject: str) -> None:
        await self._run("DELETE FROM incidents WHERE subject = ? AND job IS NULL", subject)

    async def take(self, seconds: float) -> Sequence[Due]:
        if not await self._database.read(_due):
            return []
        return await self._database.write(lambda connection: _take(connection, seconds))

    async def told(self, subject: str) -> None:
        await self._database.write(
            lambda connection: (
                connection.execute(
                    "UPDATE incidents SET told_at = ? WHERE subject = ?", (moment(connection), subject)
                ).rowcount
            )
        )

    async def put_off(self, subject: str, seconds: float) -> None:
        await self._database.write(
            lambda connection: (
                connection.execute(
                    "UPDATE incidents SET next_try_at = ? WHERE subject = ? AND told_at IS NULL",
                    (moment(connection) + millis(seconds), subject),
                ).rowcount
            )
        )

    async def _run(self, statement: str, *values: str) -> None:
        await self._database.write(lambda connection: connection.execute(statement, values).rowcount)


def _begin(connection: sqlite3.Connection, incidents: Sequence[Incident]) -> None:
    now = moment(connection)
    connection.executemany(
        """INSERT INTO incidents (subject, event, message, job, opened_at, next_try_at) VALUES (?, ?, ?, ?, ?, ?)
           ON CONFLICT (subject) DO NOTHING""",
        [(*incident, now, now) for incident in incidents],
    )


def _due(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute(
        f"""SELECT subject FROM incidents WHERE told_at IS NULL AND next_try_at <= ?
            ORDER BY opened_at LIMIT {AT_ONCE}""",
        (moment(connection),),
    )
    return [subject for (subject,) in rows.fetchall()]


def _take(connection: sqlite3.Connection, seconds: float) -> list[Due]:
    until, found = moment(connection) + millis(seconds), []
    for subject in _due(connection):
        found += connection.execute(
            """UPDATE incidents SET tries = tries + 1, next_try_at = ? WHERE subject = ?
               RETURNING subject, event, message, tries""",
            (until, subject),
        ).fetchall()
    return [Due(*row) for row in found]


DEAD = """
    d.state = 'dead' AND d.dead_reason IS NOT 'cancelled' AND NOT EXISTS (
        SELECT 1 FROM jobs n WHERE n.schedule = d.schedule AND n.id > d.id AND n.state = 'done')"""

_OVER = f"""
    FROM incidents WHERE job IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM jobs d WHERE {DEAD} AND coalesce(d.schedule, CAST(d.id AS TEXT)) = incidents.subject)"""
OVER, END = f"SELECT 1 {_OVER} LIMIT 1", f"DELETE {_OVER}"

TROUBLE = f"""
    SELECT id, kind, source, schedule, attempts, deaths, dead_reason, last_error_class, last_error
    FROM jobs d WHERE {DEAD} AND NOT EXISTS (
        SELECT 1 FROM incidents i WHERE i.subject = coalesce(d.schedule, CAST(d.id AS TEXT)))
    ORDER BY id LIMIT {AT_ONCE}"""
