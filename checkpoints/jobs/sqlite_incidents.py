"""What people are told of, in the SQLite file. The port is in `incidents`."""

import sqlite3
from collections.abc import Sequence

from checkpoints.jobs.incidents import AT_ONCE, Due, Incident, Trouble
from checkpoints.jobs.selecting import made
from checkpoints.jobs.sqlite_rows import array, millis, moment
from ingest.sqlite import Database


class SqliteIncidents:
    """Who finds nothing to change only reads: that takes no lock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def survey(self, kind: str | None = None) -> Sequence[Trouble]:
        if await self._database.read(lambda connection: connection.execute(OVER).fetchone()):
            await self._database.write(lambda connection: connection.execute(END).rowcount)
        rows = await self._database.read(lambda connection: connection.execute(TROUBLE, (kind,)).fetchall())
        return [made(Trouble, row) for row in rows]

    async def begin(self, incidents: Sequence[Incident]) -> None:
        await self._database.write(lambda connection: _begin(connection, incidents))

    async def end(self, subject: str) -> None:
        statement = "DELETE FROM incidents WHERE subject = ? AND job IS NULL"
        await self._database.write(lambda connection: connection.execute(statement, (subject,)).rowcount)

    async def take(self, seconds: float) -> Sequence[Due]:
        if not await self._database.read(_due):
            return []
        return await self._database.write(lambda connection: _take(connection, seconds))

    async def told(self, subjects: Sequence[str]) -> None:
        await self._database.write(lambda connection: _told(connection, subjects))

    async def put_off(self, subjects: Sequence[str], seconds: float) -> None:
        await self._database.write(lambda connection: _put_off(connection, subjects, seconds))


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


def _told(connection: sqlite3.Connection, subjects: Sequence[str]) -> None:
    connection.execute(
        "UPDATE incidents SET told_at = ? WHERE subject IN (SELECT value FROM json_each(?))",
        (moment(connection), array(subjects)),
    )


def _put_off(connection: sqlite3.Connection, subjects: Sequence[str], seconds: float) -> None:
    connection.execute(
        """UPDATE incidents SET next_try_at = ?
           WHERE subject IN (SELECT value FROM json_each(?)) AND told_at IS NULL""",
        (moment(connection) + millis(seconds), array(subjects)),
    )


DEAD = """
    d.state = 'dead' AND d.dead_reason IS NOT 'cancelled' AND NOT EXISTS (
        SELECT 1 FROM jobs n WHERE n.schedule = d.schedule AND n.id > d.id AND n.state = 'done')"""

_OVER = f"""
    FROM incidents WHERE job IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM jobs d WHERE {DEAD} AND coalesce(d.schedule, CAST(d.id AS TEXT)) = incidents.subject)"""
OVER, END = f"SELECT 1 {_OVER} LIMIT 1", f"DELETE {_OVER}"

TROUBLE = f"""
    SELECT id, kind, source, schedule, attempts, deaths, dead_reason, last_error_class, last_error
    FROM jobs d WHERE {DEAD} AND (?1 IS NULL OR kind = ?1) AND NOT EXISTS (
        SELECT 1 FROM incidents i WHERE i.subject = coalesce(d.schedule, CAST(d.id AS TEXT)))
    ORDER BY id LIMIT {AT_ONCE}"""
