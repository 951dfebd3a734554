"""Jobs are claimed in two statements: the first locks the rows of sources and queues that have room, the second counts
again and claims."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from checkpoints.jobs import Job, Want
from checkpoints.jobs.postgres_finish import REPORT
from checkpoints.jobs.postgres_rows import GUARDED, NOW, RUNNING_OF
from ingest.postgres import Postgres, literal

if TYPE_CHECKING:
    from asyncpg import Record

SOURCE, QUEUE = "source", "queue"
"""What was not looked at, because another claims from it just now."""


def _taking(want: Want) -> str:
    """What narrows the jobs `p` down to those that the worker takes."""
    kinds = f" AND p.kind IN ({', '.join(map(literal, want.kinds))})" if want.kinds else ""
    return f"p.state = 'pending' AND p.run_at <= {NOW}{kinds}"


def locking(want: Want, patient: bool = False) -> str:
    """`patient`: wait for the lock of one source, rather than pass over those that are locked."""
    number, passing = (1, "") if patient else (want.number, " SKIP LOCKED")
    sources = f" AND s.name IN ({', '.join(map(literal, want.sources))})" if want.sources else ""
    return f"""
        WITH roomy AS MATERIALIZED (
            SELECT name FROM ingest.queues AS q WHERE max_running > {RUNNING_OF.format("queue", "q.name")}),
        free AS MATERIALIZED (
            SELECT name FROM ingest.queues WHERE name IN (SELECT name FROM roomy) FOR NO KEY UPDATE SKIP LOCKED),
        ripe AS MATERIALIZED (
            SELECT name FROM ingest.sources AS s
            WHERE (paused_until IS NULL OR paused_until <= {NOW}){sources}
                AND coalesce(limited_to, max_running, 2147483647) > {RUNNING_OF.format("source", "s.name")}
                AND EXISTS (
                    SELECT FROM ingest.jobs AS p WHERE p.source = s.name AND {_taking(want)} AND p.queue NOT IN (
                        SELECT name FROM ingest.queues
                        WHERE max_running IS NOT NULL AND name NOT IN (SELECT name FROM roomy)))),
        locked AS MATERIALIZED (
            SELECT name FROM ingest.sources WHERE name IN (SELECT name FROM ripe)
            ORDER BY last_claim_at NULLS FIRST, name LIMIT {number} FOR NO KEY UPDATE{passing})
        SELECT set_config('ingest.sources', (SELECT coalesce(json_agg(name), '[]') FROM locked)::text, true),
            set_config('ingest.queues', (SELECT coalesce(json_agg(name), '[]') FROM free)::text, true),
            set_config('ingest.missed', CASE
                WHEN (SELECT count(*) FROM locked) < least((SELECT count(*) FROM ripe), {number}) THEN '{SOURCE}'
                WHEN (SELECT count(*) FROM free) < (SELECT count(*) FROM roomy) THEN '{QUEUE}' ELSE '' END, true)"""


def claiming(want: Want, by_age: bool) -> str:
    """$3 worker, $4 how long, $5 how many. Of several sources each gives one job, then each another."""
    order = "run_at, id" if by_age else "priority, run_at, id"
    return f"""
        WITH {REPORT},
        free AS MATERIALIZED (
            SELECT name, max_running - {RUNNING_OF.format("queue", "name")} AS room
            FROM json_array_elements_text(current_setting('ingest.queues')::json) AS n (name)
            JOIN ingest.queues USING (name) WHERE max_running IS NOT NULL),
        shut AS MATERIALIZED (
            SELECT name FROM ingest.queues
            WHERE max_running IS NOT NULL AND name NOT IN (SELECT name FROM free WHERE room > 0)),
        source AS MATERIALIZED (
            SELECT name, last_claim_at, least($5::integer,
                coalesce(limited_to, max_running, 2147483647) - {RUNNING_OF.format("source", "name")}) AS room
            FROM json_array_elements_text(current_setting('ingest.sources')::json) AS n (name)
            JOIN ingest.sources USING (name)),
        candidate AS (
            SELECT s.name, s.last_claim_at, p.id, p.queue,
                row_number() OVER (PARTITION BY s.name ORDER BY {order}) AS turn,
                row_number() OVER (PARTITION BY p.guard ORDER BY {order}) AS of_schedule
            FROM source AS s CROSS JOIN LATERAL (
                SELECT id, queue, priority, run_at,
                    CASE WHEN overlap IN {GUARDED} THEN schedule ELSE id::text END AS guard
                FROM ingest.jobs AS p
                WHERE p.source = s.name AND {_taking(want)} AND p.queue NOT IN (SELECT name FROM shut)
                    AND (overlap IS NULL OR overlap NOT IN {GUARDED} OR NOT EXISTS (
                        SELECT FROM ingest.jobs AS r WHERE r.source = s.name AND r.state = 'running'
                            AND r.schedule = p.schedule AND r.overlap IN {GUARDED}))
                ORDER BY {order} LIMIT greatest(s.room, 0)) AS p),
        placed AS (
            SELECT *, row_number() OVER (PARTITION BY queue ORDER BY turn, last_claim_at NULLS FIRST, name) AS place
            FROM candidate WHERE of_schedule = 1),
        chosen AS (
            SELECT id FROM placed AS c LEFT JOIN free AS q ON q.name = c.queue
            WHERE q.name IS NULL OR c.place <= q.room
            ORDER BY turn, last_claim_at NULLS FIRST, c.name LIMIT $5),
        claimed AS (
            UPDATE ingest.jobs AS j
            SET state = 'running', attempts = attempts + 1, fence = fence + 1, worker = $3,
                claimed_at = clock_timestamp(), lease_until = clock_timestamp() + $4::interval, cancel_requested = false
            FROM chosen WHERE j.id = chosen.id AND state = 'pending'
            RETURNING {_JOB}, priority, claimed_at AS began),
        history AS (
            INSERT INTO ingest.attempts (job, fence, attempt, worker, started_at)
            SELECT id, fence, attempts, $3, began FROM claimed),
        served AS (
            UPDATE ingest.sources SET last_claim_at = clock_timestamp() WHERE name IN (SELECT source FROM claimed))
        SELECT lost, died, folds, current_setting('ingest.missed') AS missed, claimed.*
        FROM report LEFT JOIN claimed ON true ORDER BY priority, run_at, id"""


def _seconds(column: str) -> str:
    return f"extract(epoch FROM {column})::float8 AS {column}"


_JOB = f"""j.id, fence, kind, source, queue, payload, attempts, max_attempts, schedule, {_seconds("run_at")},
    {_seconds("claimed_at")}, {_seconds("tick_at")}, {_seconds("tick_from")}"""


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
