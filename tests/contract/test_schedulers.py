"""Eight processes schedule the same ticks without a leader, and are killed all the time: each tick is decided once."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.contract.states import State, eventually, open_state
from tests.contract.test_jobs import rows
from tests.contract.tickers import PLANS

NUMBER = 8
TICKS, FAILURES = 200, 8  # that are waited for


@pytest.fixture(params=["sqlite", "postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@asynccontextmanager
async def schedulers(url: str) -> AsyncIterator[Counter[str]]:
    """What has happened to them so far: `k` killed, `r` rolled back."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.contract.tickers", url, str(NUMBER)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    happened = Counter[str]()
    stdout = process.stdout

    async def listen() -> None:
        while said := await stdout.read(100):
            happened.update(said.decode())
        happened["ended"] += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(listen())
        try:
            yield happened
        finally:
            process.stdin.close()
            assert await process.wait() == 0


async def test_whatever_happens_to_them_every_tick_is_decided_once_and_has_its_job(url: str) -> None:
    async with open_state(url) as state:
        await state.schedules.declare([plan.declared for plan in PLANS])
        begun = {one.id: one.cursor_at for one in await state.schedules.load([])}
        async with schedulers(url) as happened:

            async def enough() -> bool | None:
                assert not happened["ended"]
                [[decided]] = await rows(state, "SELECT count(*) FROM ingest.ticks")
                return True if decided >= TICKS and happened["k"] >= FAILURES and happened["r"] >= FAILURES else None

            await eventually(enough)
        for plan in PLANS:
            await proves(state, plan.id, begun[plan.id])


async def proves(state: State, id: str, begun: float) -> None:
    """The ledger is the whole, and its jobs are the jobs."""
    [timing] = [plan.timing for plan in PLANS if plan.id == id]
    [known] = await state.schedules.load([id])
    ledger = await state.schedules.ticks(id, [], 1_000_000)
    assert sum(tick.covers for tick in ledger) == timing.count(begun, known.cursor_at) > 0
    jobs = await rows(state, f"SELECT tick_at, id FROM ingest.jobs WHERE schedule = '{id}' ORDER BY tick_at")
    ticks = await rows(
        state,
        f"SELECT tick_at, job FROM ingest.ticks WHERE schedule = '{id}' AND outcome = 'enqueued' ORDER BY tick_at",
    )
    assert ticks == jobs
    assert len({tick for tick, _ in jobs}) == len(jobs)
    assert all((tick.job is not None) == (tick.outcome.value == "enqueued") for tick in ledger)
