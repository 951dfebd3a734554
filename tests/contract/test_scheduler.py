"""The loop that looks for ticks: it sees what people change, bears an outage, and is not led astray by a clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest_asyncio
from prometheus_client import REGISTRY

from checkpoints.jobs import NewJob, Overlap, Schedule, Schedules, Tick
from ingest.errors import StoreUnavailable
from ingest.jobs.cron import Cron
from ingest.jobs.firing import Plan, Policy
from ingest.jobs.scheduler import CONTESTED, Scheduler
from ingest.jobs.ticks import Interval
from migrations.runner import migrate
from tests.contract.states import State, eventually, open_state
from tests.contract.test_jobs import rows
from tests.contract.tickers import PLANS
from tests.harness import postgres as postgres_server
from tests.harness.clock import Clock, python
from tests.harness.names import unique
from tests.harness.processes import Child

HOUR = 3600
JOB = NewJob("sync", "a")
OFTEN = Plan("a/often", "every 50ms", Interval(0.05, "a/often"), JOB, Policy(overlap=Overlap.ALLOW), at_once=True)
YEARLY = Plan("a/yearly", "0 0 29 2 *", Cron("0 0 29 2 *"), JOB)


@pytest_asyncio.fixture
async def state(sqlite_path: Path) -> AsyncIterator[State]:
    async with open_state(f"sqlite:///{sqlite_path}") as state:
        yield state


@asynccontextmanager
async def running(
    schedules: Schedules, plans: Sequence[Plan], owns: Sequence[str] = ("",), patience: float = CONTESTED
) -> AsyncIterator[list[str]]:
    """Yields why nothing was scheduled, each time that it was said; at last that all is well."""
    stop, said = asyncio.Event(), list[str]()

    def blocked(why: str | None) -> None:
        if why is not None or (said and said[-1] != "well"):
            said.append(why or "well")

    loop = asyncio.create_task(Scheduler(schedules, plans, owns, "host:1:a", blocked, patience).run(stop))
    try:
        yield said
    finally:
        stop.set()
        await loop


def grows(state: State, id: str) -> Callable[[], Awaitable[Sequence[Tick] | None]]:
    """The ledger of a schedule, when it has three more rows than the first time that it was asked for."""
    before: list[int] = []

    async def ask() -> Sequence[Tick] | None:
        found = await state.schedules.ticks(id, [], 10_000)
        before.append(len(found))
        return found if len(found) >= before[0] + 3 else None

    return ask


async def test_a_new_interval_begins_at_once_and_goes_on_and_a_date_far_away_is_waited_for(state: State) -> None:
    async with running(state.schedules, [OFTEN, YEARLY]) as said:
        found = await eventually(grows(state, OFTEN.id))
    assert said == []
    assert [tick.outcome.value for tick in found[-3:]] == ["enqueued"] * 3
    assert list(await state.schedules.ticks(YEARLY.id, [], 1)) == []
    labels = {"schedule": OFTEN.id, "outcome": "enqueued"}
    assert (REGISTRY.get_sample_value("ingest_schedule_ticks_total", labels) or 0) >= 3
    late = REGISTRY.get_sample_value("ingest_schedule_tick_lateness_seconds_count", {"schedule": OFTEN.id})
    assert late is not None and late >= 2


async def test_a_process_that_knows_some_of_the_schedules_leaves_the_others_alone(state: State) -> None:
    async with running(state.schedules, [OFTEN, YEARLY]):
        await eventually(grows(state, OFTEN.id))
    async with running(state.schedules, [OFTEN], owns=()):
        await eventually(grows(state, OFTEN.id))
    assert [one.paused for one in await state.schedules.load([])] == [False, False]


async def test_what_a_person_pauses_edits_or_resumes_is_seen(state: State) -> None:
    async with running(state.schedules, [OFTEN]):
        await eventually(grows(state, OFTEN.id))
        await state.schedules.pause(OFTEN.id, "for now")
        paused = await state.schedules.ticks(OFTEN.id, [], 1)
        await eventually(grows_in_time(state, 0.2))
        assert await state.schedules.ticks(OFTEN.id, [], 1) == paused
        await state.schedules.resume(OFTEN.id, catch_up=False)
        found = await eventually(grows(state, OFTEN.id))
        assert [tick.outcome.value for tick in found].count("skipped_paused") == 1
    edited = Plan(OFTEN.id, "every 60ms", Interval(0.06, OFTEN.id), JOB, OFTEN.policy, at_once=True)
    before = await state.schedules.ticks(OFTEN.id, [], 1)
    async with running(state.schedules, [edited]):
        await eventually(grows(state, OFTEN.id))
    [known] = await state.schedules.load([OFTEN.id])
    ledger = [tick for tick in await state.schedules.ticks(OFTEN.id, [], 10_000) if tick.tick_at > before[0].tick_at]
    assert sum(tick.covers for tick in ledger) <= edited.timing.count(before[0].tick_at, known.cursor_at)
    async with running(state.schedules, [], ["b/"]):
        assert not (await state.schedules.load([OFTEN.id]))[0].paused
    async with running(state.schedules, [], ["a/"]):
        await eventually(lambda: gone(state))


async def test_what_another_process_declared_otherwise_and_left_is_ours_again(state: State) -> None:
    edited = Plan(OFTEN.id, "every 60ms", Interval(0.06, OFTEN.id), JOB, OFTEN.policy)
    async with running(state.schedules, [OFTEN], patience=0.0):
        await eventually(grows(state, OFTEN.id))
        for others in ([edited.declared], []):
            await state.schedules.declare(others)
            await eventually(grows(state, OFTEN.id))
            [known] = await state.schedules.load([OFTEN.id])
            assert (known.digest, known.paused) == (OFTEN.declared.digest, False)
        await rows(state, f"DELETE FROM ingest.schedules WHERE id = '{OFTEN.id}' RETURNING id")
        await eventually(grows(state, OFTEN.id))


async def gone(state: State) -> bool | None:
    return (await state.schedules.load([OFTEN.id]))[0].paused or None


def grows_in_time(state: State, seconds: float) -> Callable[[], Awaitable[bool | None]]:
    """When the database's clock is so much later than the first time that it was asked."""
    begun: list[float] = []

    async def ask() -> bool | None:
        [known] = await state.schedules.load([OFTEN.id])
        begun.append(known.now)
        return known.now >= begun[0] + seconds or None

    return ask


class Away:
    """The first so many calls of each kind find no database, the write among them though it was done."""

    def __init__(self, schedules: Schedules, times: int) -> None:
        self._schedules, self._times = schedules, times
        self.declare, self.trigger, self.pause = schedules.declare, schedules.trigger, schedules.pause
        self.resume, self.ticks = schedules.resume, schedules.ticks
        self._loads = self._fires = 0

    async def load(self, ids: Sequence[str]) -> Sequence[Schedule]:
        self._loads += 1
        if self._loads <= self._times:
            raise StoreUnavailable("the database is away")
        return await self._schedules.load(ids)

    async def fire(self, firing, decided_by):  # type: ignore[no-untyped-def]
        self._fires += 1
        fired = await self._schedules.fire(firing, decided_by)
        if self._fires <= self._times:
            raise StoreUnavailable("the answer was lost")
        return fired


async def test_an_outage_is_borne_and_nothing_fires_twice(state: State) -> None:
    async with running(Away(state.schedules, 1), [OFTEN]) as said:
        await eventually(grows(state, OFTEN.id))
        await eventually(grows(state, OFTEN.id))
    assert said.count("the database is away") == said.count("the answer was lost") == 1
    assert said[-1] == "well"
    await agrees(state, OFTEN.id)


async def test_it_goes_on_when_postgres_is_back(tmp_path: Path) -> None:
    server = postgres_server.start(tmp_path)
    try:
        url = await server.create_database(unique("scheduler"))
        await migrate(url)
        async with open_state(url) as state, running(state.schedules, [OFTEN]) as said:
            await eventually(grows(state, OFTEN.id))
            server.kill()

            async def noticed() -> bool | None:
                return bool(said) or None

            await eventually(noticed)
            server.restart()
            await eventually(partial(_well, said))
            await eventually(grows(state, OFTEN.id))
        async with open_state(url) as state:
            await agrees(state, OFTEN.id)
    finally:
        server.close()


async def _well(said: Sequence[str]) -> bool | None:
    return said[-1] == "well" or None


async def agrees(state: State, id: str) -> None:
    """Each tick that fired has its job, each job its tick."""
    fired = f"schedule = '{id}' AND outcome = 'enqueued'"
    ticks = await rows(state, f"SELECT tick_at, job FROM ingest.ticks WHERE {fired} ORDER BY tick_at")
    jobs = await rows(state, f"SELECT tick_at, id FROM ingest.jobs WHERE schedule = '{id}' ORDER BY tick_at")
    assert ticks == jobs
    assert len(dict(ticks)) == len(ticks) > 0


async def test_a_clock_that_goes_forward_an_hour_and_back_fires_nothing_twice(state: State, tmp_path: Path) -> None:
    allowed, alone = PLANS[2:]
    clock = Clock(tmp_path / "clock")
    path = state.url.removeprefix("sqlite:///")
    command = python(f"import asyncio; from tests.contract.tickers import steady; asyncio.run(steady({path!r}))")
    child = Child(command, log=tmp_path / "log", env={**clock.environment, "PYTHONUNBUFFERED": "1"})
    try:
        await eventually(grows(state, allowed.id))
        clock.step(HOUR)

        async def jumped() -> Tick | None:
            [newest] = await state.schedules.ticks(allowed.id, [], 1)
            [known] = await state.schedules.load([allowed.id])
            return newest if newest.tick_at > known.now + HOUR / 2 else None

        assert await eventually(jumped)
        await eventually(grows(state, allowed.id))
        ahead = await state.schedules.ticks(allowed.id, [], 10_000)
        assert max(tick.covers for tick in ahead) > (HOUR - 60) / 0.05
        clock.step(0)

        async def warned() -> bool | None:
            return "clock was set back" in child.last_words() or None

        await eventually(warned)
        newest = (await state.schedules.ticks(allowed.id, [], 1))[0].tick_at
        await state.schedules.resume(allowed.id, catch_up=False)
        await eventually(grows(state, allowed.id))
    finally:
        child.kill()
    assert (await state.schedules.ticks(allowed.id, [], 1))[0].tick_at == newest
    for plan in (allowed, alone):
        await agrees(state, plan.id)
