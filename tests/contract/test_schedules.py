"""Whoever decides a tick decides it alone, its job comes to be with it, and what does not fire has a reason."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from checkpoints.jobs import (
    NEVER,
    NOT_CONFIGURED,
    Fire,
    Fired,
    Firing,
    NewJob,
    Outcome,
    Overlap,
    Schedule,
    Schedules,
    ScheduleSpec,
    Skip,
    TickOutcome,
)
from checkpoints.jobs.desk import clean
from checkpoints.jobs.postgres_rows import CHANNEL
from checkpoints.jobs.sqlite_schedules import SqliteSchedules
from ingest.errors import ConfigError
from ingest.jobs.firing import Plan, Policy, decide
from ingest.jobs.ticks import Interval
from ingest.sqlite import Database, open_database
from tests.contract.states import PATIENCE, State, open_state
from tests.contract.test_jobs import claim, end, one_row, rows
from tests.harness.names import unique
from tests.harness.pgbouncer import PgBouncer
from tests.harness.postgres import Postgres

T = TypeVar("T")

ID, BY = "billing/charges", "host:1:a"
DIGEST = "first"
JOB = NewJob("sync", "billing", b'{"stream":"charges"}', "sync", max_attempts=5)
HOUR, DAY = 3600.0, 86_400.0
FAR = 7 * 86_400.0


@pytest_asyncio.fixture(scope="module")
async def shared_url(postgres: Postgres, migrated_template: str, pgbouncer: PgBouncer) -> AsyncIterator[str]:
    name = unique("schedules")
    yield pgbouncer.through(await postgres.create_database(name, template=migrated_template))
    await postgres.drop_database(name)


@pytest_asyncio.fixture
async def emptied_url(shared_url: str) -> AsyncIterator[str]:
    yield shared_url
    server = await asyncpg.connect(shared_url, statement_cache_size=0)
    await server.execute("; ".join(f"DELETE FROM ingest.{table}" for table in ("schedules", "jobs", "sources")))
    await server.close()


@pytest.fixture(params=["sqlite", "emptied_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[State]:
    async with open_state(url) as state:
        yield state


@pytest.fixture
def schedules(state: State) -> Schedules:
    return state.schedules


def spec(id: str = ID, digest: str = DIGEST, *, at_once: bool = False) -> ScheduleSpec:
    return ScheduleSpec(id, f"spec of {digest}", digest, at_once)


async def known(schedules: Schedules, id: str = ID) -> Schedule:
    [found] = await schedules.load([id])
    return found


async def firing(schedules: Schedules, *ticks: float, overlap: Overlap = Overlap.SKIP, **more: Any) -> Firing:
    """Of a schedule as it is now, with ticks so many seconds from its cursor."""
    found = await known(schedules)
    fires = [Fire(found.cursor_at + at, found.cursor_at, found.cursor_at + at) for at in ticks]
    made = Firing(
        id=ID, digest=found.digest, cursor_at=found.cursor_at, cursor_to=found.cursor_at + max(ticks, default=1.0),
        fires=fires, skips=(), job=JOB, overlap=overlap,
    )  # fmt: skip
    return msgspec.structs.replace(made, **more)


async def ledger(schedules: Schedules, *outcomes: TickOutcome) -> list[tuple[str, int, int | None, str | None]]:
    """Oldest first."""
    found = await schedules.ticks(ID, outcomes, 100)
    return [(tick.outcome.value, tick.covers, tick.job, tick.note) for tick in reversed(found)]


async def jobs_of(state: State, columns: str = "state") -> list[tuple[Any, ...]]:
    return await rows(state, f"SELECT {columns} FROM ingest.jobs WHERE schedule = '{ID}' ORDER BY id")


async def due_now(state: State) -> None:
    """As if all that waits had waited long enough."""
    past = "1" if state.url.startswith("sqlite") else "'2020-01-01'"
    await rows(state, f"UPDATE ingest.jobs SET run_at = {past} WHERE state = 'pending' RETURNING id")


async def test_a_new_schedule_begins_now_or_with_its_latest_tick(schedules: Schedules) -> None:
    specs = [spec("b/cron"), spec("a/every", at_once=True)]
    assert sorted(await schedules.declare(specs)) == ["a/every", "b/cron"]
    every, cron = await schedules.load([])
    assert (every.id, every.cursor_at, every.paused, every.running) == ("a/every", NEVER, False, None)
    assert cron.now - HOUR < cron.cursor_at <= cron.now
    assert (cron.spec, cron.digest, cron.resumed_at) == ("spec of first", DIGEST, None)
    assert list(await schedules.declare(specs)) == []
    assert [one.cursor_at for one in await schedules.load([])] == [every.cursor_at, cron.cursor_at]
    assert [one.id for one in await schedules.load(["b/cron", "no/such"])] == ["b/cron"]


async def test_a_firing_makes_ticks_and_jobs_and_moves_the_cursor(state: State, schedules: Schedules) -> None:
    await schedules.declare([spec()])
    before = (await known(schedules)).cursor_at
    made = await firing(schedules, 10.0, skips=[Skip(before + 9, TickOutcome.COALESCED, 3, "10 stands for it")])
    fired = await schedules.fire(made, BY)
    [(tick, job)] = fired.enqueued
    assert (tick, fired.skipped) == (before + 10, 3)
    assert await ledger(schedules) == [("coalesced", 3, None, "10 stands for it"), ("enqueued", 1, job, None)]
    assert (await known(schedules)).cursor_at == before + 10
    assert (await known(schedules)).running == job
    await due_now(state)
    [found] = await claim(state.jobs)
    assert (found.id, found.kind, found.source, found.queue) == (job, "sync", "billing", "sync")
    assert (found.payload, found.max_attempts) == (JOB.payload, 5)
    assert (found.schedule, found.tick_at, found.tick_from) == (ID, before + 10, before)
    newest = await schedules.ticks(ID, [TickOutcome.ENQUEUED], 1)
    assert (newest[0].tick_at, newest[0].decided_by) == (before + 10, BY)


async def test_a_firing_that_comes_second_is_refused(state: State, schedules: Schedules) -> None:
    await schedules.declare([spec()])
    made = await firing(schedules, 10.0)
    later = await firing(schedules, 10.0, 20.0)
    assert len((await schedules.fire(made, BY)).enqueued) == 1
    assert await schedules.fire(made, "host:2:b") == Fired((), 0)
    assert await schedules.fire(later, "host:2:b") == Fired((), 0)
    assert (len(await ledger(schedules)), len(await jobs_of(state))) == (1, 1)


class Late(Database):
    """What happens `meanwhile` happens between its look and its transaction."""

    def __init__(self, database: Database, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._database, self._meanwhile = database, meanwhile

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        found = await self._database.read(work)
        await self._meanwhile()
        return found

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._database.write(work)


@pytest.mark.parametrize("meanwhile", ["decided", "paused"])
async def test_in_the_file_a_firing_is_looked_at_again_where_it_is_written(sqlite_path: Path, meanwhile: str) -> None:
    async with open_state(f"sqlite:///{sqlite_path}") as state, open_database(sqlite_path) as database:
        await state.schedules.declare([spec()])
        made, longer = await firing(state.schedules, 10.0), await firing(state.schedules, 20.0)

        async def happens() -> None:
            await (state.schedules.fire(longer, BY) if meanwhile == "decided" else state.schedules.pause(ID, "by hand"))

        assert await SqliteSchedules(Late(database, happens)).fire(made, "host:2:b") == Fired((), 0)
        assert len(await jobs_of(state)) == (meanwhile == "decided")


async def test_of_twenty_who_fire_at_once_one_does(state: State, schedules: Schedules) -> None:
    await schedules.declare([spec()])
    made = await firing(schedules, 10.0, 20.0, overlap=Overlap.ALLOW)
    async with open_state(state.url) as other:
        found = await asyncio.gather(*((schedules, other.schedules)[n % 2].fire(made, BY) for n in range(20)))
    assert sorted(len(one.enqueued) for one in found) == [0] * 19 + [2]
    assert (len(await ledger(schedules)), len(await jobs_of(state))) == (2, 2)


async def test_a_tick_that_was_decided_once_is_so_for_good(state: State, schedules: Schedules) -> None:
    """The clock went back, and a person resumed the schedule: its ticks come again."""
    await schedules.declare([spec()])
    made = await firing(schedules, FAR)
    assert len((await schedules.fire(made, BY)).enqueued) == 1
    assert await schedules.resume(ID, catch_up=False)
    ahead = await known(schedules)
    assert ahead.cursor_at <= ahead.now
    again = msgspec.structs.replace(made, cursor_at=ahead.cursor_at)
    assert await schedules.fire(again, BY) == Fired([], 0)
    assert (len(await ledger(schedules)), len(await jobs_of(state))) == (1, 1)


async def test_an_edited_schedule_begins_now_and_those_who_know_the_old_one_are_refused(schedules: Schedules) -> None:
    await schedules.declare([spec(at_once=True)])
    old = await firing(schedules, 10.0)
    await schedules.declare([spec(digest="second", at_once=True)])
    found = await known(schedules)
    assert (found.digest, found.spec) == ("second", "spec of second")
    assert found.now - HOUR < found.cursor_at <= found.now
    assert await schedules.fire(old, BY) == Fired((), 0)
    assert await schedules.fire(await firing(schedules, 10.0, digest=DIGEST), BY) == Fired((), 0)
    assert len((await schedules.fire(await firing(schedules, 10.0), BY)).enqueued) == 1


async def test_one_that_is_not_configured_any_more_is_paused_and_begins_anew_when_it_comes_back(
    schedules: Schedules,
) -> None:
    await schedules.declare([spec(), spec("billing/refunds"), spec("crm/contacts")])
    cursor = (await known(schedules)).cursor_at
    made = await firing(schedules, 10.0)
    await schedules.declare([spec("billing/refunds")], "billing/")
    gone, crm = await known(schedules), await known(schedules, "crm/contacts")
    assert (gone.paused, gone.note, crm.paused) == (True, NOT_CONFIGURED, False)
    assert await schedules.fire(made, BY) == Fired((), 0)
    assert list(await schedules.declare([spec(), spec("billing/refunds")], "billing/")) == []
    back = await known(schedules)
    assert (back.paused, back.note) == (False, None)
    assert back.cursor_at > cursor
    assert list(await schedules.declare([spec("other/one")], None)) == ["other/one"]
    assert not any(one.paused for one in await schedules.load([])), "what others configured is theirs"
    await schedules.declare([])
    assert [one.paused for one in await schedules.load([])] == [True] * 4


async def test_a_paused_one_does_not_fire_and_resumed_goes_on_from_now_or_from_then(schedules: Schedules) -> None:
    await schedules.declare([spec()])
    cursor = (await known(schedules)).cursor_at
    made = await firing(schedules, 10.0)
    assert await schedules.pause(ID, "the API is being moved")
    found = await known(schedules)
    assert (found.paused, found.note, found.cursor_at) == (True, "the API is being moved", cursor)
    assert await schedules.fire(made, BY) == Fired((), 0)
    assert await schedules.resume(ID, catch_up=False)
    found = await known(schedules)
    assert (found.paused, found.note, found.cursor_at) == (False, None, cursor)
    assert found.resumed_at is not None and cursor < found.resumed_at <= found.now
    await schedules.pause(ID, None)
    assert await schedules.resume(ID, catch_up=True)
    assert (await known(schedules)).resumed_at is None
    assert not await schedules.pause("no/such", None)
    assert not await schedules.resume("no/such", catch_up=False)


async def test_a_person_s_pause_survives_edits_and_an_absence(schedules: Schedules) -> None:
    await schedules.declare([spec()])
    await schedules.pause(ID, "not before Monday")
    await schedules.declare([])
    assert (await known(schedules)).note == "not before Monday"
    await schedules.declare([spec(digest="second")])
    assert ((await known(schedules)).paused, (await known(schedules)).note) == (True, "not before Monday")


async def test_the_ticks_of_a_pause_get_one_row_when_it_has_ended(state: State, schedules: Schedules) -> None:
    plan = Plan(ID, "every 10ms", Interval(0.01, ID), JOB, Policy(overlap=Overlap.ALLOW))
    await schedules.declare([plan.declared])
    begun = (await known(schedules)).cursor_at
    await schedules.pause(ID, None)
    while (paused := await known(schedules)).now < begun + 0.1:
        assert decide(plan, paused) is None
    await schedules.resume(ID, catch_up=False)
    made = decide(plan, await known(schedules))
    assert made is not None
    await schedules.fire(made, BY)
    resumed = await known(schedules)
    assert resumed.resumed_at is not None
    [(outcome, covers, _, _), *_] = await ledger(schedules)
    assert (outcome, covers) == ("skipped_paused", plan.timing.count(begun, resumed.resumed_at))
    assert sum(tick[1] for tick in await ledger(schedules)) == plan.timing.count(begun, resumed.cursor_at)


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        (Overlap.SKIP, ["enqueued", "skipped_overlap", "skipped_overlap"]),
        (Overlap.QUEUE_ONE, ["enqueued", "skipped_overlap", "skipped_overlap"]),
        (Overlap.CANCEL_PREVIOUS, ["enqueued", "skipped_overlap", "skipped_overlap"]),
        (Overlap.ALLOW, ["enqueued", "enqueued", "enqueued"]),
    ],
)
async def test_ticks_that_come_before_the_job_has_begun(
    state: State, schedules: Schedules, overlap: Overlap, expected: Sequence[str]
) -> None:
    await schedules.declare([spec()])
    fired = await schedules.fire(await firing(schedules, 1.0, 2.0, overlap=overlap), BY)
    later = await schedules.fire(await firing(schedules, 1.0, overlap=overlap), BY)
    assert [tick[0] for tick in await ledger(schedules)] == expected
    assert len(fired.enqueued) + len(later.enqueued) == expected.count("enqueued") == len(await jobs_of(state))
    assert fired.skipped + later.skipped == expected.count("skipped_overlap")
    if overlap is not Overlap.ALLOW:
        [(_, job)] = fired.enqueued
        notes = [tick[3] for tick in await ledger(schedules)]
        assert notes == [None, f"job {job} has not begun", f"job {job} has not begun"]


@pytest.mark.parametrize(
    ("overlap", "running", "waiting"),
    [
        (Overlap.SKIP, "job {} is running, try 1 of 5", "job {} waits for try 2 of 5"),
        (Overlap.QUEUE_ONE, None, None),
        (Overlap.CANCEL_PREVIOUS, None, None),
        (Overlap.ALLOW, None, None),
    ],
)
async def test_a_tick_that_comes_while_a_job_runs_or_waits_for_another_try(
    state: State, schedules: Schedules, overlap: Overlap, running: str | None, waiting: str | None
) -> None:
    await schedules.declare([spec()])
    [(_, first)] = (await schedules.fire(await firing(schedules, 1.0, overlap=overlap), BY)).enqueued
    await due_now(state)
    [claimed] = await claim(state.jobs)
    fired = await schedules.fire(await firing(schedules, 1.0, overlap=overlap), BY)
    assert (await ledger(schedules))[-1][3] == (running and running.format(first))
    cancelled = overlap is Overlap.CANCEL_PREVIOUS
    said = (True, "cancelled: the next tick of its schedule came") if cancelled else (False, None)
    assert await one_row(state, "cancel_requested, note", first) == said
    for _, second in fired.enqueued:
        await rows(state, f"DELETE FROM ingest.jobs WHERE id = {second} RETURNING id")
    await rows(state, f"UPDATE ingest.jobs SET cancel_requested = (1 = 0) WHERE id = {first} RETURNING id")
    await end(state.jobs, claimed, Outcome.RETRY, delay=HOUR)
    fired = await schedules.fire(await firing(schedules, 1.0, overlap=overlap), BY)
    assert (await ledger(schedules))[-1][3] == (waiting and waiting.format(first))
    states = [row[0] for row in await jobs_of(state)]
    assert states == ["dead" if overlap is Overlap.CANCEL_PREVIOUS else "pending"] + ["pending"] * len(fired.enqueued)
    assert len(fired.enqueued) == (overlap is not Overlap.SKIP)


async def test_after_the_job_is_over_the_next_tick_fires(state: State, schedules: Schedules) -> None:
    await schedules.declare([spec()])
    for outcome in (Outcome.DONE, Outcome.DEAD, Outcome.DONE):
        assert len((await schedules.fire(await firing(schedules, 1.0), BY)).enqueued) == 1
        await due_now(state)
        [claimed] = await claim(state.jobs)
        await end(state.jobs, claimed, outcome)
    assert [row[0] for row in await jobs_of(state)] == ["done", "dead", "done"]


async def test_jobs_of_another_policy_count_too(state: State, schedules: Schedules) -> None:
    await schedules.declare([spec()])
    await schedules.fire(await firing(schedules, 1.0, overlap=Overlap.ALLOW), BY)
    assert (await schedules.fire(await firing(schedules, 1.0, overlap=Overlap.SKIP), BY)).enqueued == []
    assert (await schedules.fire(await firing(schedules, 1.0, overlap=Overlap.QUEUE_ONE), BY)).enqueued == []
    assert len(await jobs_of(state)) == 1


async def test_a_person_may_start_one_now_paused_or_not_but_not_against_the_policy(
    state: State, schedules: Schedules
) -> None:
    await schedules.declare([spec()])
    await schedules.pause(ID, None)
    first = await schedules.trigger(ID, JOB, BY, Overlap.SKIP)
    assert await schedules.trigger(ID, JOB, BY, Overlap.SKIP) is None
    [found] = await claim(state.jobs)
    assert (found.id, found.schedule, found.tick_at) == (first, ID, None)
    assert await one_row(state, "note", found.id) == (f"triggered by {BY}",)
    assert await ledger(schedules) == []
    second = await schedules.trigger(ID, JOB, BY, Overlap.QUEUE_ONE)
    assert second is not None
    assert await schedules.trigger(ID, JOB, BY, Overlap.QUEUE_ONE) is None
    with pytest.raises(ConfigError, match="no schedule `no/such`"):
        await schedules.trigger("no/such", JOB, BY, Overlap.SKIP)


async def test_ticks_are_cleaned_away_when_they_are_old_and_their_jobs_stay(state: State, schedules: Schedules) -> None:
    await schedules.declare([spec()])
    await schedules.fire(await firing(schedules, *map(float, range(1, 6)), overlap=Overlap.ALLOW), BY)
    assert (await clean(state.desk, DAY, HOUR)).ticks == 0
    old = "1" if state.url.startswith("sqlite") else "'2020-01-01'"
    await rows(state, f"UPDATE ingest.ticks SET decided_at = {old} WHERE outcome = 'enqueued' RETURNING 1")
    assert (await clean(state.desk, DAY, HOUR)).ticks == 5
    assert (len(await ledger(schedules)), len(await jobs_of(state))) == (0, 5)


async def test_a_job_that_may_run_wakes_who_waits_on_postgres(postgres_url: str) -> None:
    rung = asyncio.Event()
    listener = await asyncpg.connect(postgres_url)
    try:
        await listener.add_listener(CHANNEL, lambda *_: rung.set())
        async with open_state(postgres_url) as state:
            await state.schedules.declare([spec()])
            await state.schedules.fire(await firing(state.schedules, FAR), BY)  # later
            await state.schedules.trigger(ID, JOB, BY, Overlap.ALLOW)
        async with asyncio.timeout(PATIENCE):
            await rung.wait()
    finally:
        await listener.close()
