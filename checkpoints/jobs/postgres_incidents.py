"""What people are told of, in Postgres. The port is in `incidents`."""

from collections.abc import Sequence

from checkpoints.jobs.incidents import AT_ONCE, Due, Incident, Trouble
from checkpoints.jobs.selecting import made
from ingest.postgres import Postgres


class PostgresIncidents:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def survey(self, kind: str | None = None) -> Sequence[Trouble]:
        async with self._postgres.transaction() as connection:
            await connection.execute(END)
            rows = await connection.fetch(TROUBLE, kind)
        return [made(Trouble, row) for row in rows]

    async def begin(self, incidents: Sequence[Incident]) -> None:
        async with self._postgres.transaction() as connection:
            await connection.executemany(
                """INSERT INTO ingest.incidents (subject, event, message, job) VALUES ($1, $2, $3, $4)
                   ON CONFLICT (subject) DO NOTHING""",
                sorted(incidents),
            )

    async def end(self, subject: str) -> None:
        async with self._postgres.transaction() as connection:
            await connection.execute("DELETE FROM ingest.incidents WHERE subject = $1 AND job IS NULL", subject)

    async def take(self, seconds: float) -> Sequence[Due]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                f"""UPDATE ingest.incidents SET tries = tries + 1,
                        next_try_at = clock_timestamp() + make_interval(secs => $1)
                    WHERE subject IN (
                        SELECT subject FROM ingest.incidents WHERE told_at IS NULL AND next_try_at <= clock_timestamp()
                        ORDER BY opened_at LIMIT {AT_ONCE} FOR UPDATE SKIP LOCKED)
                    RETURNING subject, event, message, tries""",
                seconds,
            )
        return [Due(*row) for row in rows]

    async def told(self, subjects: Sequence[str]) -> None:
        async with self._postgres.transaction() as connection:
            await connection.execute(
                "UPDATE ingest.incidents SET told_at = clock_timestamp() WHERE subject = ANY($1::text[])", subjects
            )

    async def put_off(self, subjects: Sequence[str], seconds: float) -> None:
        async with self._postgres.transaction() as connection:
            await connection.execute(
                """UPDATE ingest.incidents SET next_try_at = clock_timestamp() + make_interval(secs => $2)
                   WHERE subject = ANY($1::text[]) AND told_at IS NULL""",
                subjects,
                seconds,
            )


DEAD = """
    d.state = 'dead' AND d.dead_reason IS DISTINCT FROM 'cancelled' AND NOT EXISTS (
        SELECT 1 FROM ingest.jobs n WHERE n.schedule = d.schedule AND n.id > d.id AND n.state = 'done')"""

END = f"""
    DELETE FROM ingest.incidents i WHERE i.job IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM ingest.jobs d WHERE {DEAD} AND coalesce(d.schedule, d.id::text) = i.subject)"""

TROUBLE = f"""
    SELECT id, kind, source, schedule, attempts, deaths, dead_reason, last_error_class, last_error
    FROM ingest.jobs d WHERE {DEAD} AND ($1::text IS NULL OR kind = $1) AND NOT EXISTS (
        SELECT 1 FROM ingest.incidents i WHERE i.subject = coalesce(d.schedule, d.id::text))
    ORDER BY id LIMIT {AT_ONCE}"""
