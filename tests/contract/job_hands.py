"""Processes that work for a queue, each told through a pipe what to do, so that they can be killed and frozen."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from checkpoints.jobs import Ended, Job, Jobs, Outcome, Want
from checkpoints.jobs.postgres import PostgresJobs
from checkpoints.jobs.postgres_bell import PostgresBell
from checkpoints.jobs.sqlite import SqliteJobs
from ingest.postgres import open_postgres
from ingest.sqlite import open_database, path_of
from tests.chaos.fate import DoomedDatabase, DoomedPostgres, Fate

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])

POISON = "poison"  # a kind of job that ends its process
EXIT_CODE = 3
TIMES_OUT = 60.0  # seconds that an answer may take


class Doom(NamedTuple):
    """The process is killed `inside` the transaction of its n-th exchange, or right `behind` it."""

    where: str
    nth: int


class Hand:
    """Made by `hand`. `ask` runs a method of `_Worker` over there."""

    def __init__(self, url: str, name: str, doom: Doom) -> None:
        self._pipe, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=_serve, args=(url, name, doom, theirs), daemon=True)
        self._process.start()
        theirs.close()

    async def ask(self, verb: str, *arguments: Any) -> Any:
        """Raises EOFError when the process ends before it answers."""
        self._pipe.send((verb, arguments))
        return await asyncio.wait_for(asyncio.to_thread(self._pipe.recv), TIMES_OUT)

    async def exit_code(self) -> int | None:
        await asyncio.to_thread(self._process.join, TIMES_OUT)
        return self._process.exitcode

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


@asynccontextmanager
async def hand(url: str, name: str, doom: Doom = Doom("", 0)) -> AsyncIterator[Hand]:  # noqa: B008  a value
    worker = await asyncio.to_thread(Hand, url, name, doom)
    try:
        yield worker
    finally:
        await asyncio.to_thread(worker.end)


def _serve(url: str, name: str, doom: Doom, pipe: Any) -> None:
    async def serve() -> None:
        fate = Fate(doom.where, doom.nth, signal.SIGKILL)
        async with _doomed(url, fate) as jobs:
            worker = _Worker(jobs, name, fate)
            while True:
                verb, arguments = await asyncio.to_thread(pipe.recv)
                pipe.send(await getattr(worker, verb)(*arguments))

    with suppress(EOFError):  # the test is over
        asyncio.run(serve())


@asynccontextmanager
async def _doomed(url: str, fate: Fate) -> AsyncIterator[Jobs]:
    if url.startswith("sqlite"):
        async with open_database(path_of(url)) as database:
            yield SqliteJobs(DoomedDatabase(database, fate))
    else:
        async with open_postgres(url) as postgres, PostgresBell(postgres) as bell:
            yield PostgresJobs(DoomedPostgres(postgres, fate), bell)


class _Worker:
    def __init__(self, jobs: Jobs, name: str, fate: Fate) -> None:
        self._jobs, self._name, self._fate = jobs, name, fate
        self._held: list[Job] = []

    async def exchange(self, number: int, ttl: float) -> tuple[list[int], list[int]]:
        """Finish what is held and claim so many. What was lost, what is held now."""
        ended = [Ended(one.id, one.fence, Outcome.DONE) for one in self._held]
        self._fate.inside, self._fate.behind = self._fate.comes("inside"), self._fate.comes("behind")
        lost, _, jobs = await self._jobs.exchange(self._name, ended, Want(number, ttl=ttl) if number else None)
        self._held = list(jobs)
        if any(one.kind == POISON for one in self._held):
            os._exit(EXIT_CODE)
        return list(lost), [one.id for one in self._held]

    async def drain(self, claimers: int, number: int, ttl: float) -> int:
        """As so many claimers at once, until nothing is left that is not done; how many this process did."""
        done = [0]
        async with asyncio.TaskGroup() as group:
            for n in range(claimers):
                group.create_task(self._drain(f"{self._name}-{n}", number, ttl, done))
        return done[0]

    async def _drain(self, name: str, number: int, ttl: float, done: list[int]) -> None:
        want = Want(number, ttl=ttl)
        ended: list[Ended] = []
        while True:
            lost, _, jobs = await self._jobs.exchange(name, ended, want)
            assert not lost
            done[0] += len(ended)
            ended = [Ended(one.id, one.fence, Outcome.DONE) for one in jobs]
            if not ended:
                if await self._jobs.due(want) is None:
                    return
                await self._jobs.wait(0.01)
