"""Jobs are claimed, by a function of the database (migrations/postgres/0007_jobs.sql): a session keeps its plan."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from checkpoints.jobs import Job, Want
from checkpoints.jobs.postgres_finish import REPORT
from ingest.postgres import Postgres

if TYPE_CHECKING:
    from asyncpg import Record

    from ingest.postgres import Connection

QUEUE = "queue"
"""What was passed over, because another claims from it just now; or a source, or nothing."""


def _seconds(column: str) -> str:
    return f"extract(epoch FROM {column})::float8 AS {column}"


_JOB = f"""id, fence, kind, source, queue, payload, attempts, max_attempts, schedule, {_seconds("run_at")},
    {_seconds("claimed_at")}, {_seconds("tick_at")}, {_seconds("tick_from")}"""


async def claim(
    connection: "Connection", reported: Sequence[Sequence[int]], worker: str, want: Want, by_age: bool, patient: bool
) -> "list[Record]":
    """The report on what ended, with each job; without one, alone. `patient`: wait for who claims from a source."""
    return await connection.fetch(
        f"""WITH {REPORT}
            SELECT lost, died, folds, claimed.* FROM report LEFT JOIN (
                SELECT {_JOB}, priority FROM ingest.claim_jobs($3, $4, $5, $6, $7, $8, $9)) AS claimed ON true
            ORDER BY priority, run_at, id""",
        *reported,
        worker,
        want.number,
        timedelta(seconds=want.ttl),
        list(want.kinds),
        list(want.sources),
        by_age,
        patient,
    )


async def missed(connection: "Connection") -> str:
    found: str = await connection.fetchval("SELECT current_setting('ingest.missed')")
    return found


async def adopt(postgres: Postgres, worker: str, handed_out: Mapping[int, int], ttl: float) -> list[Job]:
    """What an exchange claimed whose answer did not arrive: this worker runs it, and does not know."""
    async with postgres.transaction() as connection:
        rows = await connection.fetch(
            f"""UPDATE ingest.jobs AS j SET lease_until = clock_timestamp() + $4::interval
                WHERE state = 'running' AND worker = $1 AND lease_until > clock_timestamp() AND NOT EXISTS (
                    SELECT FROM unnest($2::bigint[], $3::bigint[]) AS h (id, fence)
                    WHERE h.id = j.id AND h.fence = j.fence)
                RETURNING {_JOB}""",
            worker,
            list(handed_out),
            list(handed_out.values()),
            timedelta(seconds=ttl),
        )
    return [made(row) for row in rows]


def made(row: "Record") -> Job:
    return Job(
        id=row["id"],
        fence=row["fence"],
        kind=row["kind"],
        source=row["source"],
        queue=row["queue"],
        payload=row["payload"].encode(),
        attempt=row["attempts"],
        max_attempts=row["max_attempts"],
        run_at=row["run_at"],
        claimed_at=row["claimed_at"],
        schedule=row["schedule"],
        tick_at=row["tick_at"],
        tick_from=row["tick_from"],
    )
