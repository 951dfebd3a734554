"""One transaction of a worker with the queue: what ended is written down, and jobs are claimed.

Caps hold because whoever claims locks the source's row, and those of the queues that have a cap, in one statement, and
counts what runs in the next, whose snapshot is younger than the locks. Rows that another holds are passed over; only
who finds nothing else waits for the lock of a source, and holds none of another meanwhile. Which rows were locked
travels from one statement to the next in settings of the transaction, so that the first goes out with BEGIN.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from asyncpg import LockNotAvailableError

from checkpoints.jobs import Ended, Exchanged, Job, Outcome, Want
from checkpoints.jobs.ending import CHANGES, OUTCOME, STATE, errors
from checkpoints.jobs.postgres_folding import fold
from ingest.errors import StoreUnavailable
from ingest.postgres import Postgres, literal

if TYPE_CHECKING:
    from asyncpg import Record

CHANNEL = "ingest_jobs"
RING = f"SELECT pg_notify('{CHANNEL}', '')"
"""Who waits for jobs looks again. Always the same text: many in one transaction are one."""
TRIES = 5  # for a source that others are claiming from just now
LOCK_WAIT = "2s"
PAUSE = (0.005, 0.020)  # seconds, uniform: for a queue that others are claiming from; nobody waits for its lock

SOURCE, QUEUE = "source", "queue"
"""What was not looked at, because another claims from it just now."""
NOW = "(SELECT clock_timestamp())"  # once a statement, and an index can look for it; not `now()`, which is BEGIN's
RUNNING_OF = "(SELECT count(*) FROM ingest.jobs AS r WHERE r.state = 'running' AND r.{0} = {1})"
GUARDED = "('queue_one', 'cancel_previous')"
"""Policies of overlap by which one job of a schedule runs at a time; others of it may be pending."""


async def exchange(
    postgres: Postgres, worker: str, ended: Sequence[Ended], want: Want | None, *, by_age: bool
) -> Exchanged:
    """`by_age`: the earliest jobs of a source, whatever their priority."""
    found = await _once(postgres, worker, ended, want, by_age)
    for _ in range(TRIES):
        if found.jobs or not found.missed or want is None:
            break
        if found.missed == QUEUE:
            await asyncio.sleep(random.uniform(*PAUSE))
        try:
            found = found.then(await _once(postgres, worker, (), want, by_age, patient=True))
        except StoreUnavailable as exc:
            if isinstance(exc.__cause__, LockNotAvailableError):  # in vain; what ended is written down
                break
            raise
    return Exchanged(found.lost, found.died, found.jobs)


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
    return [_job(row) for row in rows]


class _Found:
    def __init__(self, lost: Sequence[int], died: Sequence[int], jobs: Sequence[Job], missed: str) -> None:
        self.lost, self.died, self.jobs, self.missed = lost, died, jobs, missed

    def then(self, later: "_Found") -> "_Found":
        return _Found(self.lost, self.died, later.jobs, later.missed)


async def _once(
    postgres: Postgres, worker: str, ended: Sequence[Ended], want: Want | None, by_age: bool, *, patient: bool = False
) -> _Found:
    first = []
    if ended:
        first.append(_finishing(worker, ended))
        if any(one.outcome is Outcome.RELEASED and one.delay <= 0 for one in ended):
            first.append(RING)
    if want is not None:
        first += [f"SET LOCAL lock_timeout = '{LOCK_WAIT}'", _locking(want, patient)] if patient else [_locking(want)]
    async with postgres.transaction("; ".join(first)) as connection:
        jobs: list[Job] = []
        missed = ""
        if want is None:
            row = await connection.fetchrow(f"WITH {_REPORT} SELECT lost, died, folds FROM report", *_pairs(ended))
            assert row is not None
        else:
            rows = await connection.fetch(
                _claiming(want, by_age), *_pairs(ended), worker, timedelta(seconds=want.ttl), want.number
            )
            row, missed = rows[0], rows[0]["missed"]
            jobs = [_job(one) for one in rows if one["id"] is not None]
        if row["folds"]:
            await fold(connection, row["died"])
    return _Found(row["lost"], row["died"], jobs, missed)


def _pairs(ended: Sequence[Ended]) -> tuple[list[int], list[int]]:
    return [one.id for one in ended], [one.fence for one in ended]


def _finishing(worker: str, ended: Sequence[Ended]) -> str:
    """A row that is no longer ours is not touched. The counts are a row of this worker's own: nobody waits for it."""
    rows = ", ".join(map(_said, sorted(ended, key=lambda one: one.id)))  # sorted: two who meet do not block each other
    return f"""
        WITH said (id, fence, outcome, delay, error_class, error, last_error, reason, progress) AS (VALUES {rows}),
        ended AS (
            UPDATE ingest.jobs AS j
            SET {CHANGES},
                run_at = CASE WHEN {STATE} = 'pending'
                    THEN clock_timestamp() + make_interval(secs => said.delay) ELSE j.run_at END,
                finished_at = CASE WHEN {STATE} <> 'pending' THEN clock_timestamp() END
            FROM said WHERE j.id = said.id AND j.fence = said.fence AND j.state = 'running'
            RETURNING j.id, j.fence, j.source, j.state, j.dead_reason, j.run_at, j.claimed_at, said.outcome,
                said.error_class, said.error),
        written AS (
            UPDATE ingest.attempts AS a
            SET ended_at = clock_timestamp(), outcome = {OUTCOME}, error_class = e.error_class, error = e.error,
                retry_at = CASE WHEN e.state = 'pending' THEN e.run_at END
            FROM ended AS e WHERE a.job = e.id AND a.fence = e.fence)
        INSERT INTO ingest.tallies AS t (source, minute, worker, done, failed, seconds)
        SELECT source, date_trunc('minute', {NOW}), {literal(worker)}, count(*) FILTER (WHERE state = 'done'),
            count(*) FILTER (WHERE outcome IN ('retry', 'dead')),
            sum(extract(epoch FROM clock_timestamp() - claimed_at))
        FROM ended WHERE outcome IN ('done', 'retry', 'dead') GROUP BY source ORDER BY source
        ON CONFLICT (source, minute, worker) DO UPDATE
            SET done = t.done + excluded.done, failed = t.failed + excluded.failed,
                seconds = t.seconds + excluded.seconds"""


def _said(one: Ended) -> str:
    error, last_error = errors(one)
    texts = (one.error_class, error, last_error, one.reason)
    progress = None if one.progress is None else one.progress.decode()
    return (
        f"({one.id}::bigint, {one.fence}::bigint, '{one.outcome}', {max(0.0, one.delay)!r}::float8,"
        f" {', '.join(f'{literal(text)}::text' for text in texts)}, {literal(progress)}::json)"
    )


def _taking(want: Want) -> str:
    """What narrows the jobs `p` down to those that the worker takes."""
    kinds = f" AND p.kind IN ({', '.join(map(literal, want.kinds))})" if want.kinds else ""
    return f"p.state = 'pending' AND p.run_at <= {NOW}{kinds}"


def _locking(want: Want, patient: bool = False) -> str:
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


def _seconds(column: str) -> str:
    return f"extract(epoch FROM {column})::float8 AS {column}"


_JOB = f"""j.id, fence, kind, source, queue, payload, attempts, max_attempts, schedule, {_seconds("run_at")},
    {_seconds("claimed_at")}, {_seconds("tick_at")}, {_seconds("tick_from")}"""

_REPORT = """
    report AS MATERIALIZED (
        -- what was ended by an earlier try whose answer did not arrive is as good as done now; `lost` is its rescuer's
        SELECT coalesce(array_agg(id) FILTER (WHERE outcome IS NULL OR outcome = 'lost'), '{}') AS lost,
            coalesce(array_agg(id) FILTER (WHERE outcome IN ('dead', 'cancelled')), '{}') AS died,
            coalesce(bool_or(CASE WHEN outcome IN ('dead', 'cancelled') THEN (
                SELECT schedule IS NOT NULL FROM ingest.jobs AS j WHERE j.id = said.id) END), false) AS folds
        FROM (SELECT id, (SELECT outcome FROM ingest.attempts AS a WHERE a.job = u.id AND a.fence = u.fence) AS outcome
              FROM unnest($1::bigint[], $2::bigint[]) AS u (id, fence)) AS said)"""


def _claiming(want: Want, by_age: bool) -> str:
    """$3 worker, $4 how long, $5 how many. Of several sources each gives one job, then each another."""
    order = "run_at, id" if by_age else "priority, run_at, id"
    return f"""
        WITH {_REPORT},
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


def _job(row: "Record") -> Job:
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
