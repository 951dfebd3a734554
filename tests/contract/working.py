"""The queue on every backend with workers of the test's own, and what the database says of a job."""

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import asyncpg

from checkpoints.jobs import Enqueued, Job, Jobs, NewJob
from checkpoints.jobs import Worker as Identity
from checkpoints.jobs.postgres import PostgresJobs
from checkpoints.jobs.sqlite import SqliteJobs
from ingest.jobs.handler import Handler
from ingest.jobs.heartbeat import Connect
from ingest.jobs.worker import Times, Worker
from ingest.postgres import open_postgres
from ingest.redaction import Redactor
from ingest.sqlite import open_database, path_of
from migrations.runner import migrate

QUICK = Times(ttl=600.0, poll=0.2, stop_grace=0.05, cancel_grace=0.05, rescue_every=600.0)
PATIENCE = 60.0  # seconds


@asynccontextmanager
async def open_jobs(url: str) -> AsyncIterator[Jobs]:
    if url.startswith("sqlite"):
        async with open_database(path_of(url)) as database:
            yield SqliteJobs(database)
    else:
        async with open_postgres(url, size=2) as server:
            yield PostgresJobs(server)


class Queue(NamedTuple):
    url: str
    jobs: Jobs

    async def enqueue(self, *kinds: str, attempts: int = 5) -> Sequence[Enqueued]:
        return await self.jobs.enqueue([NewJob(kind, "crm", max_attempts=attempts) for kind in kinds])

    def connect(self) -> AbstractAsyncContextManager[Jobs]:
        return open_jobs(self.url)

    def worker(
        self,
        handlers: Mapping[str, Handler],
        *,
        slots: int = 4,
        times: Times = QUICK,
        jobs: Jobs | None = None,
        connect: Connect | None = None,
    ) -> Worker:
        name = f"here:1:{uuid.uuid4().hex[:12]}"
        identity = Identity(name, "here", 1, "0", slots, tuple(handlers))
        return Worker(jobs or self.jobs, connect or self.connect, identity, handlers, Redactor(), times=times)

    async def row(self, id: int) -> dict[str, Any]:
        """The job as the database has it; times are seconds since 1970."""
        [row] = await self.asks(
            "SELECT state, attempts, releases, rescues, fence, worker, progress, last_error_class, last_error,"
            f" dead_reason, {self._seconds('lease_until')} AS lease_until FROM {{jobs}} WHERE id = {id}"
        )
        return row

    async def outcomes(self, id: int) -> list[str]:
        """How its attempts ended, the first one first."""
        return [
            row["outcome"]
            for row in await self.asks(f"SELECT outcome FROM {{attempts}} WHERE job = {id} ORDER BY fence")
        ]

    async def asks(self, statement: str) -> list[dict[str, Any]]:
        """`{jobs}`: the table of that name."""
        if self.url.startswith("sqlite"):
            statement = statement.format(jobs="jobs", attempts="attempts", workers="workers")
            return await asyncio.to_thread(_asked, str(path_of(self.url)), statement)
        tables = {name: f"ingest.{name}" for name in ("jobs", "attempts", "workers")}
        server = await asyncpg.connect(self.url, statement_cache_size=0)
        try:
            return [dict(row) for row in await server.fetch(statement.format(**tables))]
        finally:
            await server.close()

    @asynccontextmanager
    async def nobody_writes(self) -> AsyncIterator[None]:
        """While the body runs; nobody is in the middle of it either."""
        if self.url.startswith("sqlite"):
            connection = sqlite3.connect(path_of(self.url), timeout=PATIENCE, isolation_level=None)
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield
            finally:
                connection.close()
        else:
            server = await asyncpg.connect(self.url, statement_cache_size=0)
            try:
                async with server.transaction():
                    await server.execute("LOCK TABLE ingest.jobs, ingest.workers IN EXCLUSIVE MODE")
                    yield
            finally:
                await server.close()

    def _seconds(self, column: str) -> str:
        return f"{column} / 1000.0" if self.url.startswith("sqlite") else f"extract(epoch FROM {column})::float"


def _asked(path: str, statement: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path, timeout=PATIENCE)
    connection.row_factory = sqlite3.Row
    try:
        with connection:
            return [dict(row) for row in connection.execute(statement).fetchall()]
    finally:
        connection.close()


@asynccontextmanager
async def open_queue(url: str) -> AsyncIterator[Queue]:
    if url.startswith("sqlite"):
        await migrate(url)
    async with open_jobs(url) as jobs:
        yield Queue(url, jobs)


async def until_set(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), PATIENCE)


async def nothing(job: Job, progress: object, stop: asyncio.Event) -> None:
    """A handler that has nothing to do."""
