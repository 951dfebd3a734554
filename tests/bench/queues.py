"""The queue beside Huey and Procrastinate, and what a look at it costs with much behind it."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoints.jobs.desk import JobDesk as Desk
from checkpoints.jobs.postgres_desk import PostgresDesk
from checkpoints.jobs.sqlite_desk import SqliteDesk
from ingest.postgres import open_postgres
from ingest.sqlite import NOW_MS, Database, open_database
from migrations.runner import migrate
from tests.bench import contenders as c
from tests.bench import peers
from tests.bench.measure import Failed
from tests.bench.servers import query

if TYPE_CHECKING:
    from tests.bench.groups import Bench

OURS, THEIRS_SQLITE, THEIRS_POSTGRES = 20_000, 2_000, 1_000  # jobs: each takes seconds
SLOTS = 50
DONE = 500_000  # jobs behind a summary
LIVE = 2_000  # beside them
SOURCES = 20
LOOKS = 5

DONE_JOBS = """
    INSERT INTO {jobs}
        (kind, source, queue, payload, state, run_at, attempts, max_attempts, fence, created_at, finished_at)
    SELECT 'sync', 'source-' || (n % {sources}), 'sync', '{{}}',
        CASE WHEN n <= {done} THEN 'done' ELSE 'pending' END, {now}, 1, 5, 1, {now},
        CASE WHEN n <= {done} THEN {now} END
    FROM {numbers}"""


async def jobs(bench: "Bench") -> None:
    """Claim and finish, of jobs that do nothing; enqueuing is not measured."""
    number = min(bench.records, OURS)

    async def ours_postgres() -> None:
        async with bench.servers.database() as database:
            with bench.workplace() as directory:
                bench.results.add(c.QUEUE_POSTGRES, number, await peers.our_jobs(database, number, SLOTS, directory))

    async def ours_sqlite() -> None:
        with bench.workplace() as directory:
            url = f"sqlite:///{directory}/jobs.db"
            bench.results.add(c.QUEUE_SQLITE, number, await peers.our_jobs(url, number, SLOTS, directory))

    async def procrastinate() -> None:
        few = min(bench.records, THEIRS_POSTGRES)
        async with bench.servers.database(template="template1") as database:
            with bench.workplace() as directory:
                bench.results.add(c.PROCRASTINATE, few, await peers.procrastinate(database, few, directory))

    async def huey() -> None:
        few = min(bench.records, THEIRS_SQLITE)
        with bench.workplace() as directory:
            bench.results.add(c.HUEY, few, await peers.huey(few, directory))

    for _ in range(bench.runs):
        await bench.attempt(c.PROCRASTINATE, procrastinate)
        await bench.attempt(c.QUEUE_POSTGRES, ours_postgres)
        await bench.attempt(c.HUEY, huey)
        await bench.attempt(c.QUEUE_SQLITE, ours_sqlite)
    await _summaries(bench)


async def _summaries(bench: "Bench") -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.servers.database())
        await query(url, _done_jobs("ingest.jobs", "clock_timestamp()", f"generate_series(1, {DONE + LIVE}) AS n"))
        await query(url, "INSERT INTO ingest.sources (name) SELECT DISTINCT source FROM ingest.jobs")
        postgres = await stack.enter_async_context(open_postgres(url))
        await _look(bench, c.SUMMARY_POSTGRES, PostgresDesk(postgres))
        path = stack.enter_context(bench.workplace()) / "jobs.db"
        await _look(bench, c.SUMMARY_SQLITE, SqliteDesk(await stack.enter_async_context(_filled(path))))


def _done_jobs(table: str, now: str, numbers: str) -> str:
    return DONE_JOBS.format(jobs=table, now=now, numbers=numbers, done=DONE, sources=SOURCES)


@asynccontextmanager
async def _filled(path: Path) -> AsyncIterator[Database]:
    await migrate(f"sqlite:///{path}")
    numbers = f"""(
        WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {DONE + LIVE}) SELECT n FROM s)"""
    async with open_database(path) as database:
        await database.write(lambda connection: connection.execute(_done_jobs("jobs", NOW_MS, numbers)).rowcount)
        known = "INSERT INTO sources (name) SELECT DISTINCT source FROM jobs"
        await database.write(lambda connection: connection.execute(known).rowcount)
        yield database


async def _look(bench: "Bench", name: str, desk: Desk) -> None:
    for _ in range(LOOKS):
        began = time.perf_counter()
        summary = await desk.summary()
        bench.results.numbers[name].append((time.perf_counter() - began) * 1000)
        ready = sum(source.ready for source in summary.sources)
        if ready != LIVE:
            raise Failed(f"the summary says {ready} jobs are ready, and {LIVE} are")
    bench.say(f"{name}: {', '.join(f'{ms:.0f}' for ms in bench.results.numbers[name])} ms")
