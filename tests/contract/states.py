"""The state store on every backend, opened by its address, for the contract tests of leases and checkpoints."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from checkpoints import Checkpoints, Leases, Rates, Tokens
from checkpoints.jobs import Jobs, Schedules
from checkpoints.jobs.desk import JobDesk
from checkpoints.jobs.incidents import Incidents
from checkpoints.jobs.postgres import open_jobs
from checkpoints.jobs.postgres_desk import PostgresDesk
from checkpoints.jobs.postgres_incidents import PostgresIncidents
from checkpoints.jobs.postgres_schedules import PostgresSchedules
from checkpoints.jobs.sqlite import SqliteJobs
from checkpoints.jobs.sqlite_desk import SqliteDesk
from checkpoints.jobs.sqlite_incidents import SqliteIncidents
from checkpoints.jobs.sqlite_schedules import SqliteSchedules
from checkpoints.postgres import PostgresCheckpoints, PostgresLeases
from checkpoints.postgres_rates import PostgresRates
from checkpoints.postgres_tokens import PostgresTokens
from checkpoints.sqlite import SqliteCheckpoints, SqliteLeases
from checkpoints.sqlite_rates import SqliteRates
from checkpoints.sqlite_tokens import SqliteTokens
from ingest.postgres import open_postgres
from ingest.sqlite import open_database, path_of
from migrations.runner import migrate

T = TypeVar("T")

LONG = 600.0  # seconds: a lease that does not end during a test
SHORT = 0.05  # seconds: a lease that a test waits for
PATIENCE = 30.0  # seconds that `eventually` waits
POLL = 0.01  # seconds


class State(NamedTuple):
    url: str
    leases: Leases
    checkpoints: Checkpoints
    tokens: Tokens
    rates: Rates
    jobs: Jobs
    desk: JobDesk
    schedules: Schedules
    incidents: Incidents


@asynccontextmanager
async def open_state(url: str) -> AsyncIterator[State]:
    if url.startswith("sqlite"):
        await migrate(url)
        async with open_database(path_of(url)) as database:
            parts = SqliteLeases(database), SqliteCheckpoints(database), SqliteTokens(database), SqliteRates(database)
            more = SqliteDesk(database), SqliteSchedules(database), SqliteIncidents(database)
            yield State(url, *parts, SqliteJobs(database), *more)
    else:
        async with open_postgres(url) as server, open_jobs(server) as jobs:
            leases, checkpoints = PostgresLeases(server), PostgresCheckpoints(server)
            tokens, rates, desk = PostgresTokens(server), PostgresRates(server), PostgresDesk(server)
            schedules, incidents = PostgresSchedules(server), PostgresIncidents(server)
            yield State(url, leases, checkpoints, tokens, rates, jobs, desk, schedules, incidents)


async def eventually(ask: Callable[[], Awaitable[T | None]]) -> T:
    """The first answer of `ask` that is not None."""
    deadline = time.monotonic() + PATIENCE
    while (answer := await ask()) is None:
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(POLL)
    return answer
