"""Jobs as people see and steer them, in Postgres. The port is in `desk`, what is decided in `rulings`."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg

from checkpoints.jobs import State
from checkpoints.jobs.desk import (
    BATCH,
    TALLIES_KEPT,
    WORKERS_KEPT,
    Attempt,
    Filter,
    Listed,
    Row,
    Ruling,
    Shown,
    SourceRow,
    SourceSummary,
    Summary,
    Swept,
    Upkeep,
    WorkerRow,
)
from checkpoints.jobs.postgres_rows import RING
from checkpoints.jobs.rulings import Live, Standing, cancelled, granted, hastened, requeued
from checkpoints.jobs.selecting import among, columns, condition, made
from ingest.errors import StoreUnavailable
from ingest.postgres import Postgres

if TYPE_CHECKING:
    from ingest.postgres import Connection

RACES = 5  # times that requeueing begins again because an equal job came to be meanwhile
NOW = "extract(epoch FROM clock_timestamp())::float8"


def _moment(column: str) -> str:
    return f"extract(epoch FROM {column})::float8 AS {column}"


class PostgresDesk:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def summary(self) -> Summary:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(SUMMARY)
        return Summary(rows[0][0], [made(SourceSummary, row[1:]) for row in rows if row[1] is not None])

    async def list(self, chosen: Filter, limit: int) -> Listed:
        where, values = condition(chosen, "${}".format)
        async with self._postgres.transaction() as connection:
            now = await connection.fetchval(f"SELECT {NOW}")
            rows = await connection.fetch(
                f"""SELECT {columns(Row, _moment)} FROM ingest.jobs WHERE {where}
                    ORDER BY ingest.jobs.id DESC LIMIT {int(limit)}""",
                *values,
            )
        return Listed(now, [made(Row, row) for row in rows])

    async def find(self, chosen: Filter) -> Sequence[int]:
        where, values = condition(chosen, "${}".format)
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(f"SELECT id FROM ingest.jobs WHERE {where} ORDER BY id", *values)
        return [row[0] for row in rows]

    async def show(self, id: int) -> Shown | None:
        async with self._postgres.transaction() as connection:
            row = await connection.fetchrow(
                f"SELECT {columns(Row, _moment)}, payload, {NOW} FROM ingest.jobs WHERE id = $1", id
            )
            attempts = await connection.fetch(
                f"SELECT {columns(Attempt, _moment)} FROM ingest.attempts WHERE job = $1 ORDER BY fence", id
            )
        if row is None:
            return None
        *fields, payload, now = row
        return Shown(now, made(Row, fields), payload, [made(Attempt, one) for one in attempts])

    async def requeue(self, ids: Sequence[int], by: str, *, spread: float = 0.0, dry: bool = False) -> Sequence[Ruling]:
        for _ in range(RACES):
            try:
                async with self._postgres.transaction() as connection:
                    return await _requeue(connection, ids, by, spread, dry)
            except Exception as exc:
                if not isinstance(exc.__cause__, asyncpg.UniqueViolationError):
                    raise  # an equal job came to be meanwhile: now it is seen
        raise StoreUnavailable("jobs equal to these are enqueued all the time: try again")

    async def cancel(self, ids: Sequence[int], by: str, *, dry: bool = False) -> Sequence[Ruling]:
        async with self._postgres.transaction() as connection:
            found = await _standing(connection, ids)
            rulings = cancelled(ids, found)
            if not dry:
                await _cancel(connection, granted(rulings), by)
        return rulings

    async def run_now(self, ids: Sequence[int], by: str) -> Sequence[Ruling]:
        async with self._postgres.transaction() as connection:
            rulings = hastened(ids, await _standing(connection, ids))
            await connection.execute(
                f"""UPDATE ingest.jobs SET run_at = clock_timestamp(), note = $1
                    WHERE id IN {among(granted(rulings))} AND run_at > clock_timestamp()""",
                f"run at once by {by}",
            )
            await connection.execute(RING)
        return rulings

    async def sweep(self, keep_done: float, keep_ticks: float) -> Swept:
        kept, kept_ticks = timedelta(seconds=keep_done), timedelta(seconds=keep_ticks)
        async with self._postgres.transaction() as connection:
            jobs = [await connection.execute(statement, kept) for statement in (SWEEP_DONE, SWEEP_CANCELLED)]
        async with self._postgres.transaction() as connection:
            ticks = await connection.execute(SWEEP_TICKS, kept_ticks)
        async with self._postgres.transaction() as connection:
            tallies = await connection.execute(SWEEP_TALLIES, timedelta(seconds=TALLIES_KEPT))
            workers = await connection.execute(SWEEP_WORKERS, timedelta(seconds=WORKERS_KEPT))
        return Swept(sum(map(_count, jobs)), _count(ticks), max(_count(tallies), _count(workers)))

    async def sources(self) -> Sequence[SourceRow]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(SOURCES)
        return [made(SourceRow, row) for row in rows]

    async def pause(self, source: str, seconds: float, note: str) -> None:
        async with self._postgres.transaction() as connection:
            await connection.execute(
                """INSERT INTO ingest.sources (name, paused_until, pause_note) VALUES ($1, CASE
                       WHEN $2::float8 = 'infinity' THEN 'infinity'
                       ELSE clock_timestamp() + make_interval(secs => $2) END, $3)
                   ON CONFLICT (name) DO UPDATE SET paused_until = excluded.paused_until,
                       pause_note = excluded.pause_note""",
                source,
                seconds,
                note,
            )

    async def resume(self, source: str) -> bool:
        async with self._postgres.transaction() as connection:
            resumed = await connection.fetchval(
                """UPDATE ingest.sources SET paused_until = NULL, pause_note = NULL
                   WHERE name = $1 AND paused_until > clock_timestamp() RETURNING true""",
                source,
            )
            await connection.execute(RING)
        return resumed is not None

    async def limit(self, source: str, number: int | None) -> None:
        async with self._postgres.transaction() as connection:
            await connection.execute(
                """INSERT INTO ingest.sources (name, limited_to) VALUES ($1, $2)
                   ON CONFLICT (name) DO UPDATE SET limited_to = excluded.limited_to""",
                source,
                number,
            )
            await connection.execute(RING)

    async def upkeep(self) -> Upkeep:
        async with self._postgres.transaction() as connection:
            oldest = await connection.fetchval(OLDEST_SNAPSHOT)
        return Upkeep(None, float(oldest))

    async def workers(self) -> Sequence[WorkerRow]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                f"""SELECT name, host, pid, version, slots, kinds, sources, running, lost, stopping,
                        {_moment("started_at")}, extract(epoch FROM clock_timestamp() - beat_at)::float8
                    FROM ingest.workers ORDER BY ingest.workers.started_at DESC, name"""
            )
        return [made(WorkerRow, row) for row in rows]


async def _standing(connection: "Connection", ids: Sequence[int]) -> list[Standing]:
    """Locked in one order, so that two who do this do not wait for each other."""
    rows = await connection.fetch(
        f"""SELECT j.id, j.state, j.dead_reason, j.dedupe_key, j.schedule, j.overlap, j.fence,
                j.run_at <= clock_timestamp(), coalesce(s.paused_until > clock_timestamp(), false)
            FROM ingest.jobs j LEFT JOIN ingest.sources s ON s.name = j.source
            WHERE j.id IN {among(ids)} ORDER BY j.id FOR UPDATE OF j"""
    )
    return [Standing(id, State(state), *others) for id, state, *others in rows]


async def _requeue(connection: "Connection", ids: Sequence[int], by: str, spread: float, dry: bool) -> Sequence[Ruling]:
    found = await _standing(connection, ids)
    live = await connection.fetch(LIVE, [j.dedupe_key for j in found], [j.schedule for j in found])
    rulings = requeued(ids, found, [Live(id, State(state), *others) for id, state, *others in live])
    if not dry:
        chosen = among(granted(rulings))
        await connection.execute(FORGET.format(chosen))
        await connection.execute(REQUEUE.format(chosen), spread, f"requeued by {by}")
        await connection.execute(RING)
    return rulings


async def _cancel(connection: "Connection", ids: Sequence[int], by: str) -> None:
    chosen, note = among(ids), f"cancelled by {by}"
    await connection.execute(FORGET.format(chosen))
    await connection.execute(
        f"""UPDATE ingest.jobs SET cancel_requested = true, note = $1 WHERE id IN {chosen} AND state = 'running'""",
        note,
    )
    await connection.execute(
        f"""UPDATE ingest.jobs SET state = 'dead', dead_reason = 'cancelled', note = $1,
                finished_at = coalesce(finished_at, clock_timestamp())
            WHERE id IN {chosen} AND state IN ('pending', 'dead')""",
        note,
    )


def _count(status: str) -> int:
    """Rows, as in `DELETE 5`."""
    return int(status.rpartition(" ")[2])


SUMMARY = """
    WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
    live AS (
        SELECT source,
            count(*) FILTER (WHERE state = 'pending' AND run_at <= now) AS ready,
            count(*) FILTER (WHERE state = 'pending' AND run_at > now AND attempts = 0) AS scheduled,
            count(*) FILTER (WHERE state = 'pending' AND run_at > now AND attempts > 0) AS retrying,
            count(*) FILTER (WHERE state = 'running') AS running,
            count(*) FILTER (WHERE state = 'running' AND lease_until < now) AS expired,
            count(*) FILTER (WHERE state = 'dead' AND dead_reason IS DISTINCT FROM 'cancelled') AS dead,
            min(run_at) FILTER (WHERE state = 'pending' AND run_at <= now) AS oldest_ready_at,
            min(run_at) FILTER (WHERE state = 'pending' AND run_at > now) AS next_at
        FROM ingest.jobs, clock WHERE state IN ('pending', 'running', 'dead') GROUP BY source),
    names AS (SELECT name FROM ingest.sources UNION SELECT source FROM live)
    SELECT extract(epoch FROM now)::float8, n.name,
        coalesce(ready, 0), coalesce(scheduled, 0), coalesce(retrying, 0), coalesce(running, 0),
        coalesce(expired, 0), coalesce(dead, 0),
        extract(epoch FROM oldest_ready_at)::float8, extract(epoch FROM next_at)::float8,
        coalesce(h.done, 0)::bigint, coalesce(h.failed, 0)::bigint, coalesce(h.seconds, 0),
        coalesce(s.limited_to, s.max_running),
        CASE WHEN s.paused_until > now THEN extract(epoch FROM s.paused_until)::float8 END,
        CASE WHEN s.paused_until > now THEN s.pause_note END
    FROM clock LEFT JOIN names n ON true
    LEFT JOIN ingest.sources s ON s.name = n.name
    LEFT JOIN live l ON l.source = n.name
    LEFT JOIN LATERAL (
        SELECT sum(done) AS done, sum(failed) AS failed, sum(seconds) AS seconds FROM ingest.tallies t
        WHERE t.source = n.name AND t.minute > now - interval '1 hour') h ON true
    ORDER BY n.name"""

OLDEST_SNAPSHOT = """
    SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
    FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"""

SOURCES = """
    SELECT s.name, max_running, limited_to,
        (SELECT count(*) FROM ingest.jobs j WHERE j.source = s.name AND j.state = 'pending'),
        (SELECT count(*) FROM ingest.jobs j WHERE j.source = s.name AND j.state = 'running'),
        CASE WHEN paused_until > clock_timestamp() THEN extract(epoch FROM paused_until)::float8 END,
        CASE WHEN paused_until > clock_timestamp() THEN pause_note END,
        extract(epoch FROM last_claim_at)::float8
    FROM ingest.sources s ORDER BY s.name"""

LIVE = """
    SELECT id, state, dedupe_key, schedule, overlap, fence FROM ingest.jobs
    WHERE dedupe_key = ANY($1::text[]) AND state IN ('pending', 'running')
    UNION
    SELECT id, state, dedupe_key, schedule, overlap, fence FROM ingest.jobs
    WHERE schedule = ANY($2::text[]) AND state IN ('pending', 'running')"""

FORGET = """
    DELETE FROM ingest.incidents i USING ingest.jobs j
    WHERE j.id IN {} AND i.subject = coalesce(j.schedule, j.id::text)"""
"""The incident is over: a person has looked at it."""

REQUEUE = """
    UPDATE ingest.jobs SET state = 'pending', attempts = 0, rescues = 0, releases = 0, deaths = 0,
        run_at = clock_timestamp() + random() * make_interval(secs => $1), note = $2,
        dead_reason = NULL, finished_at = NULL, cancel_requested = false, progress = NULL
    WHERE id IN {}"""

SWEEP_DONE = f"""
    DELETE FROM ingest.jobs WHERE id IN (
        SELECT id FROM ingest.jobs WHERE state = 'done' AND finished_at < clock_timestamp() - $1::interval
            AND (dedupe_for IS NULL OR finished_at < clock_timestamp() - dedupe_for)
        ORDER BY finished_at LIMIT {BATCH} FOR UPDATE SKIP LOCKED)"""

SWEEP_CANCELLED = f"""
    DELETE FROM ingest.jobs WHERE id IN (
        SELECT id FROM ingest.jobs WHERE state = 'dead' AND dead_reason = 'cancelled'
            AND finished_at < clock_timestamp() - $1::interval LIMIT {BATCH} FOR UPDATE SKIP LOCKED)"""

SWEEP_TICKS = f"""
    DELETE FROM ingest.ticks WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM ingest.ticks WHERE decided_at < clock_timestamp() - $1::interval
        ORDER BY decided_at LIMIT {BATCH} FOR UPDATE SKIP LOCKED))"""

SWEEP_TALLIES = f"""
    DELETE FROM ingest.tallies WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM ingest.tallies WHERE minute < clock_timestamp() - $1::interval
        LIMIT {BATCH} FOR UPDATE SKIP LOCKED))"""

SWEEP_WORKERS = "DELETE FROM ingest.workers WHERE beat_at < clock_timestamp() - $1::interval"
