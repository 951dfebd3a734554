"""When the next job is due that a worker would take, in Postgres."""

from checkpoints.jobs import Want
from checkpoints.jobs.postgres_rows import NOW, RUNNING_OF
from ingest.postgres import Postgres

FULL_FOR = "interval '1 second'"
"""What waits behind a cap may be due at any moment: look again after so long."""


async def due(postgres: Postgres, want: Want) -> float | None:
    async with postgres.transaction() as connection:
        found: float | None = await connection.fetchval(
            f"""WITH shut AS MATERIALIZED (
                    SELECT name FROM ingest.queues AS q WHERE max_running <= {RUNNING_OF.format("queue", "q.name")}),
                source AS MATERIALIZED (
                    SELECT name, paused_until, CASE
                        WHEN coalesce(limited_to, max_running) <= {RUNNING_OF.format("source", "s.name")}
                        THEN clock_timestamp() + {FULL_FOR} END AS full_until
                    FROM ingest.sources AS s WHERE name = ANY($1::text[]) OR $1 = '{{}}'),
                next AS (
                    SELECT greatest(run_at, paused_until, full_until) AS at
                    FROM source CROSS JOIN LATERAL (
                        (SELECT run_at FROM ingest.jobs AS p WHERE p.source = source.name AND p.state = 'pending'
                            AND (p.kind = ANY($2::text[]) OR $2 = '{{}}') AND p.queue NOT IN (SELECT name FROM shut)
                         ORDER BY run_at LIMIT 1)
                        UNION ALL
                        (SELECT greatest(run_at, clock_timestamp() + {FULL_FOR}) FROM ingest.jobs AS p
                         WHERE p.source = source.name AND p.state = 'pending'
                            AND (p.kind = ANY($2::text[]) OR $2 = '{{}}') AND p.queue IN (SELECT name FROM shut)
                         ORDER BY run_at LIMIT 1)) AS p)
                SELECT extract(epoch FROM min(at))::float8 - extract(epoch FROM {NOW})::float8 FROM next""",
            list(want.sources),
            list(want.kinds),
        )
    return None if found is None or found == float("inf") else max(0.0, found)
