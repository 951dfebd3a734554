"""Claims of workers without a sign of life are given back, in one statement that looks again at every row it locks: who
finishes or renews a claim at that moment wins, and nobody's claim is answered twice."""

from datetime import timedelta

from checkpoints.jobs import Rescued
from checkpoints.jobs.postgres_folding import fold
from checkpoints.jobs.rescuing import (
    DOUBLINGS,
    ERROR,
    ERROR_CLASS,
    FIRST_DELAY,
    FLEET,
    FLEET_SHARE,
    LIMIT,
    LONGEST_DELAY,
    REASON,
    dies,
)
from ingest.postgres import Postgres

DIES = dies("fleet.away")


async def rescue(postgres: Postgres, grace: float) -> list[Rescued]:
    async with postgres.transaction() as connection:
        rows = await connection.fetch(
            f"""WITH fleet AS MATERIALIZED (
                    SELECT count(*) FILTER (WHERE expired) >= {FLEET}
                        AND count(*) FILTER (WHERE expired) > count(*) * {FLEET_SHARE} AS away
                    FROM (SELECT isfinite(lease_until) AND lease_until < clock_timestamp() - $1::interval AS expired
                          FROM ingest.jobs WHERE state = 'running') AS running),
                lost AS MATERIALIZED (
                    SELECT id, worker FROM ingest.jobs
                    WHERE state = 'running' AND lease_until < clock_timestamp() - $1::interval
                    ORDER BY lease_until, id LIMIT {LIMIT} FOR UPDATE SKIP LOCKED),
                rescued AS (
                    UPDATE ingest.jobs AS j SET rescues = rescues + 1,
                        state = CASE WHEN {DIES} THEN 'dead' ELSE 'pending' END,
                        dead_reason = CASE WHEN {DIES} THEN {REASON} END,
                        finished_at = CASE WHEN {DIES} THEN clock_timestamp() END,
                        run_at = CASE WHEN {DIES} THEN run_at ELSE clock_timestamp() + make_interval(secs =>
                            least({LONGEST_DELAY}, {FIRST_DELAY} * power(2, least(rescues, {DOUBLINGS})))
                            * (0.5 + random() / 2)) END,
                        lease_until = NULL, worker = NULL, last_error_class = '{ERROR_CLASS}', last_error = {ERROR}
                    FROM lost, fleet WHERE j.id = lost.id AND j.state = 'running'
                    RETURNING j.id, j.fence, j.kind, j.source, lost.worker, j.state = 'dead' AS dead, j.schedule,
                        j.run_at, j.claimed_at, j.last_error),
                written AS (
                    UPDATE ingest.attempts AS a
                    SET ended_at = clock_timestamp(), outcome = 'lost', error_class = '{ERROR_CLASS}',
                        error = r.last_error, retry_at = CASE WHEN NOT r.dead THEN r.run_at END
                    FROM rescued AS r WHERE a.job = r.id AND a.fence = r.fence),
                counted AS (
                    INSERT INTO ingest.tallies AS t (source, minute, worker, failed, seconds)
                    SELECT source, date_trunc('minute', clock_timestamp()), worker, count(*),
                        sum(extract(epoch FROM clock_timestamp() - claimed_at))
                    FROM rescued GROUP BY source, worker ORDER BY source, worker
                    ON CONFLICT (source, minute, worker) DO UPDATE
                        SET failed = t.failed + excluded.failed, seconds = t.seconds + excluded.seconds)
                SELECT id, kind, source, worker, dead, dead AND schedule IS NOT NULL AS folds
                FROM rescued ORDER BY id""",
            timedelta(seconds=grace),
        )
        if folding := [row["id"] for row in rows if row["folds"]]:
            await fold(connection, folding)
    return [Rescued(*list(row)[:5]) for row in rows]
