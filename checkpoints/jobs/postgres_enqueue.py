"""New jobs in Postgres, none beside an equal one.

A unique index keeps the second of two equal live jobs out, however close they come. That none is added soon after an
equal one was done is looked for before the insert, and again after it: one that was running until then may be done by
the time the index has nothing against the new one.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from checkpoints.jobs import Enqueued, NewJob
from checkpoints.jobs.postgres_rows import CHANNEL
from ingest.postgres import Postgres

if TYPE_CHECKING:
    from ingest.postgres import Connection


async def enqueue(postgres: Postgres, jobs: Sequence[NewJob]) -> list[Enqueued]:
    found: dict[int, Enqueued] = {}
    if jobs:
        async with postgres.transaction() as connection:
            while left := [n for n in range(len(jobs)) if n not in found]:
                found |= await _insert(connection, jobs, left)
                found |= await _equals(connection, jobs, [n for n in left if jobs[n].dedupe_key is not None], found)
                # what was live when it kept ours out, and is neither live nor lately done now, is out of the way
    return [found[n] for n in range(len(jobs))]


async def _insert(connection: "Connection", jobs: Sequence[NewJob], wanted: Sequence[int]) -> dict[int, Enqueued]:
    """Those that came to be, by their number. The sources they are of have a row from here on: claims lock it."""
    new = [jobs[n] for n in wanted]
    rows = await connection.fetch(
        f"""WITH row AS MATERIALIZED (
                SELECT nextval('ingest.jobs_id_seq') AS id, moment.now, u.*
                FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::float8[],
                        $8::integer[], $9::text[], $10::interval[])
                    AS u (n, kind, source, queue, payload, priority, run_at, max_attempts, dedupe_key, dedupe_for),
                    (SELECT clock_timestamp() AS now) AS moment),
            known AS (
                INSERT INTO ingest.sources (name)
                SELECT DISTINCT source FROM row WHERE source NOT IN (SELECT name FROM ingest.sources) ORDER BY source
                ON CONFLICT DO NOTHING),
            added AS (
                INSERT INTO ingest.jobs (id, kind, source, queue, payload, priority, run_at, max_attempts,
                    dedupe_key, dedupe_for)
                OVERRIDING SYSTEM VALUE
                SELECT id, kind, source, queue, payload::json, priority, coalesce(to_timestamp(run_at), now),
                    max_attempts, dedupe_key, dedupe_for
                FROM row WHERE dedupe_for IS NULL OR NOT EXISTS ({_DONE.format("row.dedupe_key", "row.dedupe_for")})
                ORDER BY dedupe_key, id  -- so that two who add the same ones do not block each other
                ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND state IN ('pending', 'running') DO NOTHING
                RETURNING id, run_at)
            SELECT n, id,
                CASE WHEN added.run_at <= now AND added.id = min(added.id) OVER () THEN pg_notify('{CHANNEL}', '') END
            FROM added JOIN row USING (id)""",
        wanted,
        [one.kind for one in new],
        [one.source for one in new],
        [one.queue for one in new],
        [one.payload.decode() for one in new],
        [one.priority for one in new],
        [one.run_at for one in new],
        [one.max_attempts for one in new],
        [one.dedupe_key for one in new],
        [_kept_for(one) for one in new],
    )
    return {row["n"]: Enqueued(row["id"], True) for row in rows}


_DONE = """
    SELECT id FROM ingest.jobs AS d WHERE d.dedupe_key = {0} AND d.dedupe_for IS NOT NULL AND d.state = 'done'
        AND d.finished_at > clock_timestamp() - {1}"""


def _kept_for(job: NewJob) -> timedelta | None:
    return timedelta(seconds=job.dedupe_for) if job.dedupe_key is not None and job.dedupe_for > 0 else None


async def _equals(
    connection: "Connection", jobs: Sequence[NewJob], keyed: Sequence[int], fresh: dict[int, Enqueued]
) -> dict[int, Enqueued]:
    """The equal job of each that was kept out, or should have been: such a one is taken back."""
    asked = [n for n in keyed if n not in fresh or jobs[n].dedupe_for > 0]
    if not asked:
        return {}
    rows = await connection.fetch(
        f"""WITH asked AS MATERIALIZED (
                SELECT * FROM unnest($1::integer[], $2::text[], $3::interval[], $4::bigint[])
                    AS u (n, key, kept, mine)),
            found AS MATERIALIZED (
                SELECT n, mine, (
                    {_DONE.format("key", "kept")} ORDER BY d.finished_at DESC LIMIT 1) AS done, (
                    SELECT id FROM ingest.jobs AS l
                    WHERE l.dedupe_key = key AND l.state IN ('pending', 'running')) AS live
                FROM asked),
            undone AS (DELETE FROM ingest.jobs USING found WHERE jobs.id = mine AND done IS NOT NULL)
            SELECT n, coalesce(done, live) FROM found
            WHERE done IS NOT NULL OR mine IS NULL AND live IS NOT NULL""",
        asked,
        [jobs[n].dedupe_key for n in asked],
        [_kept_for(jobs[n]) for n in asked],
        [fresh[n].id if n in fresh else None for n in asked],
    )
    return {n: Enqueued(id, False) for n, id in rows}
