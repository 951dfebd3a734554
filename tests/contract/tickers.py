"""Processes that schedule the same ticks side by side, and often fail: `python -m tests.contract.tickers URL NUMBER`.

Now and then one rolls a firing back whose ticks and jobs were written, or is killed there or right behind the COMMIT;
another takes its place. Prints a letter for each: `r` rolled back, `k` killed. Goes on until its input is closed.
"""

import asyncio
import logging
import os
import random
import select
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from checkpoints.jobs import NewJob, Overlap, Schedules
from checkpoints.jobs.postgres_schedules import PostgresSchedules
from checkpoints.jobs.sqlite_schedules import SqliteSchedules
from ingest.errors import StoreUnavailable
from ingest.jobs.firing import Plan, Policy
from ingest.jobs.scheduler import Scheduler
from ingest.jobs.ticks import Interval
from ingest.postgres import Postgres, open_postgres
from ingest.sqlite import Database, open_database, path_of

if TYPE_CHECKING:
    from ingest.postgres import Connection

T = TypeVar("T")

ROLLED_BACK, KILLED_INSIDE, KILLED_BEHIND = 0.05, 0.02, 0.02  # of all writes
LOOK = 0.02  # seconds between looks for who has ended

PLANS = [
    Plan(f"a/{n}", "every 50ms", Interval(0.05, f"a/{n}"), NewJob("sync", "a"), policy)
    for n, policy in enumerate(
        [Policy("all", 3600.0, 10_000, overlap=Overlap.ALLOW)] * 2 + [Policy(overlap=Overlap.ALLOW), Policy()]
    )
]


def inside() -> None:
    if random.random() < KILLED_INSIDE:
        os.kill(os.getpid(), signal.SIGKILL)
    if random.random() < ROLLED_BACK:
        os.write(1, b"r")
        raise StoreUnavailable("rolled back")


def behind() -> None:
    if random.random() < KILLED_BEHIND:
        os.kill(os.getpid(), signal.SIGKILL)


class FailingDatabase(Database):
    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def failing(connection: sqlite3.Connection) -> T:
            result = work(connection)
            inside()
            return result

        result = await self._database.write(failing)
        behind()
        return result

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._database.read(work)


class FailingPostgres(Postgres):
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    @asynccontextmanager
    async def transaction(self, first: str = "") -> AsyncIterator["Connection"]:
        async with self._postgres.transaction(first) as connection:
            yield connection
            if await connection.fetchval("SELECT pg_current_xact_id_if_assigned()::text") is not None:  # it has written
                inside()
        behind()


@asynccontextmanager
async def failing(url: str) -> AsyncIterator[Schedules]:
    if url.startswith("sqlite"):
        async with open_database(path_of(url)) as database:
            yield SqliteSchedules(FailingDatabase(database))
    else:
        async with open_postgres(url, size=1) as postgres:
            yield PostgresSchedules(FailingPostgres(postgres))


async def tick(url: str, until: int) -> None:
    """`until`: a file descriptor on which nothing comes, until it ends."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(until, stop.set)
    async with failing(url) as schedules:
        await Scheduler(schedules, PLANS, [""], f"host:{os.getpid()}:x").run(stop)


async def steady(path: str) -> None:
    """One that does not fail, until it is killed."""
    async with open_database(Path(path)) as database:
        await Scheduler(SqliteSchedules(database), PLANS[2:], [""], "host:1:steady").run(asyncio.Event())


def born(url: str, until: int) -> int:
    """The process id of a new one."""
    if pid := os.fork():
        return pid
    random.seed()
    asyncio.run(tick(url, until))
    os._exit(0)


def main(url: str, number: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    until, end = os.pipe()
    os.set_inheritable(end, False)
    alive: set[int] = set()
    going = True
    while going or alive:
        while going and len(alive) < number:
            alive.add(born(url, until))
        if going and select.select([0], [], [], LOOK)[0]:
            going = False
            os.write(end, b"x")
        pid, status = os.waitpid(-1, os.WNOHANG if going else 0)
        if pid:
            alive.discard(pid)
            if os.WIFSIGNALED(status):
                os.write(1, b"k")
            elif going or os.waitstatus_to_exitcode(status):
                sys.exit(f"a scheduler ended with {status}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
