"""The queue in Postgres, the worker's side. The port is in `checkpoints.jobs`.

Every call is one transaction at READ COMMITTED, so PgBouncer may stand in between; only `wait` has a session of its
own, where there is one to be had. Times are `clock_timestamp()`: `now()` is that of BEGIN, and stands still meanwhile.
"""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from checkpoints.jobs import Beat, Cap, Ended, Enqueued, Exchanged, Held, Job, NewJob, Rescued, Want, Worker
from checkpoints.jobs.postgres_bell import PostgresBell
from checkpoints.jobs.postgres_claim import adopt
from checkpoints.jobs.postgres_due import due
from checkpoints.jobs.postgres_enqueue import enqueue
from checkpoints.jobs.postgres_exchange import exchange
from checkpoints.jobs.postgres_rescue import rescue
from ingest.postgres import Postgres

BY_AGE_EVERY = 8  # claims


class PostgresJobs:
    """Only `wait` needs what `open_jobs` opens and closes."""

    def __init__(self, postgres: Postgres, bell: PostgresBell | None = None) -> None:
        self._postgres = postgres
        self._bell = PostgresBell(postgres) if bell is None else bell
        self._claims = itertools.count(1)
        self._handed_out: dict[str, dict[int, int]] = {}  # worker → job → fence
        self._unsure: set[str] = set()  # workers whose last exchange may have claimed what they were not told of

    async def enqueue(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
        found = await enqueue(self._postgres, jobs)
        self._bell.ring()
        return found

    async def exchange(self, worker: str, ended: Sequence[Ended], want: Want | None) -> Exchanged:
        if want is not None and want.number <= 0:
            want = None
        if want is None and not ended:
            return Exchanged((), (), ())
        handed_out = self._handed_out.setdefault(worker, {})
        adopted: Sequence[Job] = ()
        if want is not None:
            if worker in self._unsure:
                adopted = await adopt(self._postgres, worker, handed_out, want.ttl)
            self._unsure.add(worker)  # for as long as there is no answer
        by_age = want is not None and next(self._claims) % BY_AGE_EVERY == 0
        found = await exchange(self._postgres, worker, ended, None if adopted else want, by_age=by_age)
        if want is not None:
            self._unsure.discard(worker)
        for one in ended:
            handed_out.pop(one.id, None)
        handed_out |= {job.id: job.fence for job in (*adopted, *found.jobs)}
        return found._replace(jobs=[*adopted, *found.jobs])

    async def beat(self, worker: Worker, held: Sequence[Held], ttl: float, *, stopping: bool = False) -> Sequence[Beat]:
        # in the order of their ids, as in `exchange`: two who meet do not block each other
        mine = sorted(held, key=lambda one: one.id)
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                """WITH held AS (
                       SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS u (id, fence, progress)),
                   renewed AS (
                       UPDATE ingest.jobs AS j SET lease_until = clock_timestamp() + $4::interval,
                           progress = coalesce(held.progress::json, j.progress)
                       FROM held WHERE j.id = held.id AND j.fence = held.fence AND j.state = 'running'
                           AND j.lease_until > clock_timestamp()
                       RETURNING j.id, j.cancel_requested),
                   shown AS (
                       INSERT INTO ingest.workers AS w
                           (name, host, pid, version, slots, kinds, sources, running, stopping, lost)
                       SELECT $5, $6, $7, $8, $9, $10::text[], $11::text[], renewed, $12,
                           cardinality($1::bigint[]) - renewed
                       FROM (SELECT count(*)::integer AS renewed FROM renewed) AS number
                       ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, running = excluded.running,
                           stopping = excluded.stopping, lost = w.lost + excluded.lost, beat_at = clock_timestamp())
                   SELECT id, cancel_requested FROM renewed""",
                [one.id for one in mine],
                [one.fence for one in mine],
                [None if one.progress is None else one.progress.decode() for one in mine],
                timedelta(seconds=ttl),
                worker.name,
                worker.host,
                worker.pid,
                worker.version,
                worker.slots,
                list(worker.kinds),
                list(worker.sources),
                stopping,
            )
        return [Beat(*row) for row in rows]

    async def leave(self, worker: str) -> None:
        async with self._postgres.transaction() as connection:
            await connection.execute(
                """WITH gone AS (DELETE FROM ingest.workers WHERE name = $1)
                   UPDATE ingest.jobs SET lease_until = '-infinity' WHERE state = 'running' AND worker = $1""",
                worker,
            )

    async def rescue(self, grace: float) -> Sequence[Rescued]:
        return await rescue(self._postgres, grace)

    async def limit(self, sources: Sequence[Cap], queues: Sequence[Cap]) -> None:
        async with self._postgres.transaction() as connection:
            for table, caps in (("sources", sources), ("queues", queues)):
                named = sorted(dict(caps).items())
                await connection.execute(
                    f"""INSERT INTO ingest.{table} AS c (name, max_running)
                        SELECT * FROM unnest($1::text[], $2::integer[])
                        ON CONFLICT (name) DO UPDATE SET max_running = excluded.max_running
                            WHERE c.max_running IS DISTINCT FROM excluded.max_running""",
                    [name for name, _ in named],
                    [limit for _, limit in named],
                )

    async def hold(self, source: str, seconds: float, reason: str) -> None:
        async with self._postgres.transaction() as connection:
            await connection.execute(
                """INSERT INTO ingest.sources AS s (name, paused_until, pause_note)
                   VALUES ($1, clock_timestamp() + $2::interval, $3)
                   ON CONFLICT (name) DO UPDATE
                       SET paused_until = excluded.paused_until, pause_note = excluded.pause_note
                       WHERE s.paused_until IS NULL OR s.paused_until < excluded.paused_until""",
                source,
                timedelta(seconds=seconds),
                reason,
            )

    async def due(self, want: Want) -> float | None:
        return await due(self._postgres, want)

    async def wait(self, seconds: float) -> None:
        await self._bell.wait(seconds)


@asynccontextmanager
async def open_jobs(postgres: Postgres) -> AsyncIterator[PostgresJobs]:
    async with PostgresBell(postgres) as bell:
        yield PostgresJobs(postgres, bell)
