"""Workers die, freeze and crowd; every job is done all the same, by one worker at a time."""

import asyncio
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from checkpoints.jobs import Cap, NewJob, Rescued
from ingest.sqlite import path_of
from tests.contract.job_hands import EXIT_CODE, POISON, Doom, hand
from tests.contract.states import LONG, SHORT, State, eventually, open_state

PROCESSES, CLAIMERS = 8, 2  # of each
CAP = 3


@pytest.fixture(params=["sqlite", "jobs_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[State]:
    async with open_state(url) as state:
        yield state


@pytest.fixture
def ttl(url: str) -> float:
    """How long claims last: on SQLite a process is missed when it is gone, whatever its claims say."""
    return LONG if url.startswith("sqlite") else SHORT


async def rows(state: State, statement: str) -> Sequence[tuple[Any, ...]]:
    if state.url.startswith("sqlite"):
        connection = sqlite3.connect(path_of(state.url))
        with connection:
            found = connection.execute(statement.replace("ingest.", "")).fetchall()
        connection.close()
        return found
    server = await asyncpg.connect(state.url, statement_cache_size=0)
    found = [tuple(row) for row in await server.fetch(statement)]
    await server.close()
    return found


async def outcomes(state: State) -> Counter[str]:
    return Counter(outcome for (outcome,) in await rows(state, "SELECT outcome FROM ingest.attempts"))


async def rescued(state: State, number: int) -> list[Rescued]:
    """So many, as soon as their workers are missed."""
    found: list[Rescued] = []

    async def enough() -> list[Rescued] | None:
        found.extend(await state.jobs.rescue(0.0))
        return found if len(found) >= number else None

    await eventually(enough)
    past = "1" if state.url.startswith("sqlite") else "'2020-01-01'"
    await rows(state, f"UPDATE ingest.jobs SET run_at = {past} WHERE state = 'pending' RETURNING id")
    return found


@pytest.mark.parametrize("where", ["after the claim", "inside", "behind"])
async def test_a_worker_may_be_killed_at_any_point_and_every_job_is_done(state: State, ttl: float, where: str) -> None:
    """Between its claim and what it says next; before the COMMIT of that; right behind it."""
    await state.jobs.enqueue([NewJob("sync", "shop") for _ in range(6)])
    async with hand(state.url, "host:9:killed", Doom(where, 2)) as worker:
        _, held = await worker.ask("exchange", 3, ttl)
        assert len(held) == 3
        if where == "after the claim":
            worker.signal(signal.SIGKILL)
        else:
            with pytest.raises(EOFError):
                await worker.ask("exchange", 3, ttl)
        assert await worker.exit_code() == -signal.SIGKILL
    lost = await rescued(state, 3)
    assert len(lost) == 3
    assert ({one.id for one in lost} == set(held)) is (where != "behind")
    async with hand(state.url, "host:9:heir") as worker:
        done = await worker.ask("drain", 1, 6, LONG)
    assert done == (3 if where == "behind" else 6)
    assert await outcomes(state) == {"lost": 3, "done": 6}


async def test_a_worker_that_was_frozen_is_told_that_its_jobs_are_anothers(state: State) -> None:
    await state.jobs.enqueue([NewJob("sync", "shop") for _ in range(2)])
    async with hand(state.url, "host:9:frozen") as zombie, hand(state.url, "host:9:heir") as heir:
        _, held = await zombie.ask("exchange", 2, SHORT)
        zombie.signal(signal.SIGSTOP)
        assert {one.id for one in await rescued(state, 2)} == set(held)
        assert await heir.ask("exchange", 2, LONG) == ([], held)
        zombie.signal(signal.SIGCONT)
        lost, _ = await zombie.ask("exchange", 0, LONG)
        assert lost == held
        assert await rows(state, "SELECT DISTINCT state, fence, worker FROM ingest.jobs") == [
            ("running", 2, "host:9:heir")
        ]
        assert await heir.ask("exchange", 0, LONG) == ([], [])
    assert await outcomes(state) == {"lost": 2, "done": 2}


async def test_a_job_that_ends_its_process_every_time_is_dead_in_the_end(state: State, ttl: float) -> None:
    [(id, _)] = await state.jobs.enqueue([NewJob(POISON, "shop", max_attempts=3)])
    for attempt in range(1, 4):
        async with hand(state.url, f"host:9:victim-{attempt}") as worker:
            with pytest.raises(EOFError):
                await worker.ask("exchange", 1, ttl)
            assert await worker.exit_code() == EXIT_CODE
        assert [(one.id, one.dead) for one in await rescued(state, 1)] == [(id, attempt == 3)]
    assert await rows(state, "SELECT state, dead_reason, attempts FROM ingest.jobs") == [("dead", "exhausted", 3)]


async def test_in_a_crowd_of_processes_every_job_is_done_once_none_starves_and_no_cap_is_exceeded(state: State) -> None:
    """Sixteen claimers in eight processes, each taking one job at a time."""
    number = 800 if state.url.startswith("sqlite") else 200
    jobs = [NewJob("sync", source) for _ in range(number // 4) for source in ("capped", "free", "free", "free")]
    await state.jobs.limit([Cap("capped", CAP)], [])
    await state.jobs.enqueue(jobs)
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(hand(state.url, f"host:{n}:{n}")) for n in range(PROCESSES)]
        await asyncio.gather(*(one.ask("exchange", 0, LONG) for one in crowd))  # all are there before one begins
        done = await asyncio.gather(*(one.ask("drain", CLAIMERS, 1, LONG) for one in crowd))
    assert sum(done) == len(jobs)
    assert await outcomes(state) == {"done": len(jobs)}
    assert max(done) < 5 * min(done), done
    assert await most_at_once(state) <= CAP


async def most_at_once(state: State) -> int:
    """How many jobs of the source with a cap ran at the same time, by what is written of their attempts."""
    found = await rows(
        state,
        """SELECT a.started_at, a.ended_at FROM ingest.attempts AS a JOIN ingest.jobs AS j ON j.id = a.job
           WHERE j.source = 'capped'""",
    )
    changes: list[tuple[datetime | int, int]] = []
    for started, ended in found:
        changes += [(ended, -1), (started, 1)]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most
