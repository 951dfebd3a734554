"""What a person sees of jobs is how they stand; what is decided about them holds, or is refused with a reason."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from checkpoints.jobs import (
    Cap,
    Ended,
    Held,
    Job,
    Jobs,
    NewJob,
    Outcome,
    State,
    Want,
    Worker,
    postgres_desk,
    sqlite_desk,
)
from checkpoints.jobs.desk import BATCH, FOREVER, Filter, JobDesk, Ruling, SourceSummary, clean
from ingest.sqlite import path_of
from tests.contract import states
from tests.contract.states import LONG, open_state

WORKER = "host:1:a"
ME = "anna@laptop"
BEFORE_NOW = -LONG  # to keep what is older than a moment to come: nothing is
DAY = 86_400.0  # seconds


@pytest.fixture(params=["sqlite", "pooled_postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[states.State]:
    async with open_state(url) as state:
        yield state


@pytest.fixture
def jobs(state: states.State) -> Jobs:
    return state.jobs


@pytest.fixture
def desk(state: states.State) -> JobDesk:
    return state.desk


def job(source: str = "shop", **rest: Any) -> NewJob:
    return NewJob("sync", source, **rest)


async def enqueue(jobs: Jobs, *new: NewJob) -> list[int]:
    return [one.id for one in await jobs.enqueue(new or [job()])]


async def claim(jobs: Jobs, number: int = 1, source: str = "shop") -> list[Job]:
    return list((await jobs.exchange(WORKER, (), Want(number, sources=[source], ttl=LONG))).jobs)


async def end(jobs: Jobs, claimed: Sequence[Job], outcome: Outcome = Outcome.DONE, **rest: Any) -> None:
    exchanged = await jobs.exchange(WORKER, [Ended(one.id, one.fence, outcome, **rest) for one in claimed], None)
    assert not exchanged.lost


async def die(jobs: Jobs, *new: NewJob) -> list[int]:
    """Enqueue jobs that are dead at once."""
    ids = await enqueue(jobs, *new)
    claimed = await claim(jobs, len(ids), new[0].source if new else "shop")
    await end(jobs, claimed, Outcome.DEAD, error_class="SourceRefused", error="401 for ***", reason="permanent")
    return ids


async def change(state: states.State, statement: str) -> None:
    """What no port does; written for both engines."""
    if state.url.startswith("sqlite"):
        connection = sqlite3.connect(path_of(state.url))
        with connection:
            connection.execute(statement.replace("ingest.", ""))
        connection.close()
    else:
        server = await asyncpg.connect(state.url, statement_cache_size=0)
        await server.execute(statement)
        await server.close()


async def of(desk: JobDesk, source: str = "shop") -> SourceSummary:
    [found] = [one for one in (await desk.summary()).sources if one.source == source]
    return found


def said(rulings: Sequence[Ruling]) -> dict[int, tuple[bool, str]]:
    return {id: (done, words) for id, done, words in rulings}


async def test_the_summary_counts_each_state_of_each_source(jobs: Jobs, desk: JobDesk) -> None:
    now = (await desk.summary()).now
    await die(jobs)
    await enqueue(jobs, job(), job(), job())
    first, second, _ = await claim(jobs, 3)
    await end(jobs, [first])
    await end(jobs, [second], Outcome.RETRY, delay=LONG)
    await enqueue(jobs, job(), job(), job(run_at=now + DAY), job("billing"))
    shop, billing = await of(desk), await of(desk, "billing")
    assert (shop.ready, shop.scheduled, shop.retrying, shop.running, shop.expired, shop.dead) == (2, 1, 1, 1, 0, 1)
    assert (shop.done_1h, shop.failed_1h, shop.limit, shop.paused_until) == (1, 2, None, None)
    assert shop.oldest_ready_at is not None and now <= shop.oldest_ready_at <= (await desk.summary()).now
    assert shop.next_at is not None and now < shop.next_at <= now + LONG + DAY
    assert (billing.ready, billing.running, billing.dead, billing.done_1h) == (1, 0, 0, 0)


async def test_jobs_whose_worker_has_gone_are_said_to_be_expired(jobs: Jobs, desk: JobDesk) -> None:
    await enqueue(jobs)
    await claim(jobs)
    await jobs.leave(WORKER)
    assert ((await of(desk)).running, (await of(desk)).expired) == (1, 1)


async def test_nothing_is_said_of_an_empty_queue(desk: JobDesk) -> None:
    assert (await desk.summary()).sources == []
    assert (await desk.list(Filter(), 5)).rows == []
    assert await desk.show(1) is None
    assert await desk.find(Filter((State.DEAD,))) == []
    assert list(await desk.workers()) == []
    assert list(await desk.sources()) == []


async def test_the_summary_looks_at_no_job_that_is_done(state: states.State) -> None:
    if state.url.startswith("sqlite"):
        connection = sqlite3.connect(path_of(state.url))
        values = {"now": 0, "hour_ago": 0, "never": sqlite_desk.NEVER}
        plan = str(connection.execute(f"EXPLAIN QUERY PLAN {sqlite_desk.SUMMARY}", values).fetchall())
        connection.close()
        assert all(index in plan for index in ("jobs_ready", "jobs_running", "jobs_dead"))
        assert "SCAN jobs'" not in plan
    else:
        server = await asyncpg.connect(state.url, statement_cache_size=0)
        async with server.transaction():
            await server.execute("SET LOCAL enable_seqscan = off")
            plan = str(await server.fetch(f"EXPLAIN {postgres_desk.SUMMARY}"))
        await server.close()
        assert "jobs_live" in plan and "Seq Scan on jobs" not in plan


FILTERS: Sequence[tuple[Filter, list[int]]] = [
    (Filter(), [4, 3, 2, 1, 0]),
    (Filter((State.DEAD,)), [1, 0]),
    (Filter((State.PENDING, State.RUNNING)), [4, 3, 2]),
    (Filter(source="billing"), [4]),
    (Filter(kind="backfill"), [3]),
    (Filter(error_class="SourceRefused", source="shop"), [1, 0]),
    (Filter(kind="sync", source="nobody"), []),
]


async def test_a_list_has_what_fits_the_newest_first(jobs: Jobs, desk: JobDesk) -> None:
    ids = await die(jobs, job(), job())
    ids += await enqueue(jobs, job(), NewJob("backfill", "shop"), job("billing"))
    for chosen, expected in FILTERS:
        assert [row.id for row in (await desk.list(chosen, 9)).rows] == [ids[n] for n in expected], chosen
        assert [row.id for row in (await desk.list(chosen, 1)).rows] == [ids[n] for n in expected[:1]], chosen
        assert list(await desk.find(chosen)) == sorted(ids[n] for n in expected), chosen


async def test_a_job_is_shown_with_every_attempt_at_it(jobs: Jobs, desk: JobDesk) -> None:
    [id] = await enqueue(jobs, job(payload=b'{"n":1.10}', priority=3, dedupe_key="k", max_attempts=2))
    await end(jobs, await claim(jobs), Outcome.RETRY, error_class="Timeout", error="no answer")
    await end(jobs, await claim(jobs), Outcome.RETRY, error_class="Timeout", error="again\nand where")
    shown = await desk.show(id)
    assert shown is not None
    row = shown.row
    assert (row.id, row.kind, row.source, row.queue, row.state) == (id, "sync", "shop", "default", State.DEAD)
    assert (row.priority, row.dedupe_key, row.attempts, row.max_attempts, row.fence) == (3, "k", 2, 2, 2)
    assert (row.last_error_class, row.dead_reason, row.worker) == ("Timeout", "exhausted", None)
    assert row.finished_at is not None and row.created_at <= row.finished_at <= shown.now
    assert shown.payload == '{"n":1.10}'
    assert [(one.attempt, one.fence, one.worker, one.outcome, one.error) for one in shown.attempts] == [
        (1, 1, WORKER, "retry", "no answer"), (2, 2, WORKER, "dead", "again\nand where"),
    ]  # fmt: skip
    assert all(one.ended_at is not None and one.started_at <= one.ended_at for one in shown.attempts)


async def test_a_requeued_job_begins_anew_and_its_history_goes_on(jobs: Jobs, desk: JobDesk) -> None:
    [id] = await die(jobs)
    assert said(await desk.requeue([id], ME)) == {id: (True, "requeued")}
    [again] = await claim(jobs)
    assert (again.id, again.attempt, again.fence) == (id, 1, 2)
    shown = await desk.show(id)
    assert shown is not None
    assert shown.row.note == f"requeued by {ME}"
    assert [(one.fence, one.outcome) for one in shown.attempts] == [(1, "dead"), (2, None)]


async def test_many_are_requeued_within_a_span_of_time(jobs: Jobs, desk: JobDesk) -> None:
    ids = await die(jobs, *(job() for _ in range(40)))
    before = (await desk.summary()).now
    rulings = await desk.requeue(await desk.find(Filter((State.DEAD,), source="shop")), ME, spread=LONG)
    listed = await desk.list(Filter(ids=ids), 50)
    times = [row.run_at for row in listed.rows]
    assert len(rulings) == len(times) == 40
    assert before - 0.001 <= min(times) and max(times) <= listed.now + LONG
    assert max(times) - min(times) > LONG / 4
    assert (await of(desk)).scheduled + (await of(desk)).ready == 40


async def test_what_is_not_dead_or_has_an_equal_that_lives_is_not_requeued(jobs: Jobs, desk: JobDesk) -> None:
    older, newer = await die(jobs, job(dedupe_key="a")), await die(jobs, job(dedupe_key="a"))
    [blocked] = await die(jobs, job(dedupe_key="b"))
    [live] = await enqueue(jobs, job(dedupe_key="b"))
    expected = {
        older[0]: (False, f"job {newer[0]} is like it, newer, and requeued"),
        newer[0]: (True, "requeued"),
        blocked: (False, f"job {live} has its dedupe key 'b' and is pending"),
        live: (False, "it is pending; only what is dead is requeued"),
        10**9: (False, "there is no such job"),
    }
    assert said(await desk.requeue(list(expected), ME, dry=True)) == expected
    assert (await of(desk)).dead == 3
    assert said(await desk.requeue(list(expected), ME)) == expected
    assert (await of(desk)).dead == 2


async def test_a_schedule_that_lets_no_two_overlap_has_none_requeued_beside_a_live_one(
    state: states.State, jobs: Jobs, desk: JobDesk
) -> None:
    for source, overlap, claimed, refused in (
        ("a", "'skip'", False, True),
        ("b", "'skip'", True, True),
        ("c", "'queue_one'", False, False),
        ("d", "NULL", False, False),
    ):
        [dead] = await die(jobs, job(source))
        [live] = await enqueue(jobs, job(source))
        if claimed:
            await claim(jobs, source=source)
        await change(
            state, f"UPDATE ingest.jobs SET schedule = '{source}/s', overlap = {overlap} WHERE source = '{source}'"
        )
        words = f"job {live} is of its schedule {source}/s and is {'running' if claimed else 'pending'}"
        assert said(await desk.requeue([dead], ME)) == {dead: (False, words) if refused else (True, "requeued")}


async def test_whoever_enqueues_an_equal_job_at_that_moment_one_of_them_lives(jobs: Jobs, desk: JobDesk) -> None:
    ids = await die(jobs, *(job(dedupe_key=str(n)) for n in range(10)))
    async with asyncio.TaskGroup() as group:
        requeueing = group.create_task(desk.requeue(ids, ME))
        for n in range(10):
            group.create_task(jobs.enqueue([job(dedupe_key=str(n))]))
    live = await desk.list(Filter((State.PENDING,)), 50)
    assert sorted(row.dedupe_key or "" for row in live.rows) == [str(n) for n in range(10)]
    assert {row.id for row in live.rows} >= {ruling.id for ruling in requeueing.result() if ruling.done}


async def test_what_waits_is_cancelled_and_what_runs_is_asked_to_end(jobs: Jobs, desk: JobDesk) -> None:
    await enqueue(jobs)
    await end(jobs, await claim(jobs))
    [dead] = await die(jobs)
    await enqueue(jobs)
    [running] = await claim(jobs)
    [pending] = await enqueue(jobs)
    done = min(await desk.find(Filter()))
    expected = {
        done: (False, "it is done"),
        dead: (True, "cancelled: it stays dead, and needs nobody any more"),
        running.id: (True, "its worker is asked to end it"),
        pending: (True, "cancelled"),
    }
    assert said(await desk.cancel(list(expected), ME, dry=True)) == expected
    assert (await of(desk)).dead == 1
    assert said(await desk.cancel(list(expected), ME)) == expected
    worker = Worker(WORKER, "host", 1, "1.0", slots=4)
    assert list(await jobs.beat(worker, [Held(running.id, running.fence)], LONG)) == [(running.id, True)]
    assert await claim(jobs) == []
    assert (await of(desk)).dead == 0, "a person has seen them"
    assert said(await desk.cancel([dead], ME)) == {dead: (False, "it was cancelled already")}
    assert said(await desk.requeue([pending], ME)) == {pending: (True, "requeued")}


async def test_what_waits_for_its_time_is_run_at_once(jobs: Jobs, desk: JobDesk) -> None:
    await enqueue(jobs)
    await end(jobs, await claim(jobs), Outcome.RETRY, delay=LONG)
    [waits] = await desk.find(Filter())
    [dead] = await die(jobs, job("billing"))
    assert await claim(jobs) == []
    assert said(await desk.run_now([waits, dead, 10**9], ME)) == {
        waits: (True, "due now"),
        dead: (False, "it is dead: `jobs requeue` begins it anew"),
        10**9: (False, "there is no such job"),
    }
    assert [one.id for one in await claim(jobs)] == [waits]


async def test_of_a_paused_source_nothing_is_claimed_until_it_is_resumed(jobs: Jobs, desk: JobDesk) -> None:
    [id] = await enqueue(jobs)
    for seconds in (FOREVER, LONG):
        await desk.pause("shop", seconds, "the vendor is down")
        assert await claim(jobs) == []
        paused = await of(desk)
        assert paused.paused_until is not None and paused.pause_note == "the vendor is down"
        assert (paused.paused_until == FOREVER) is (seconds == FOREVER)
    assert said(await desk.run_now([id], ME)) == {id: (True, "due already, but its source is paused")}
    assert [(row.name, row.pending, row.pause_note) for row in await desk.sources()] == [
        ("shop", 1, "the vendor is down")
    ]
    assert (await desk.resume("shop"), await desk.resume("shop"), await desk.resume("other")) == (True, False, False)
    assert [one.id for one in await claim(jobs)] == [id]


async def test_a_limit_set_by_hand_goes_before_the_configured_one_until_it_is_taken_back(
    jobs: Jobs, desk: JobDesk
) -> None:
    await jobs.limit([Cap("shop", 3)], [])
    await desk.limit("shop", 1)
    await jobs.limit([Cap("shop", 2)], [])
    await enqueue(jobs, *(job() for _ in range(5)))
    assert (await of(desk)).limit == 1
    assert len(await claim(jobs, 5)) == 1
    await desk.limit("shop", None)
    assert (await of(desk)).limit == 2
    assert len(await claim(jobs, 5)) == 1
    [row] = await desk.sources()
    assert (row.max_running, row.limited_to, row.running, row.pending) == (2, None, 2, 3)
    assert row.last_claim_at is not None


async def test_workers_are_there_from_their_first_sign_of_life_until_they_leave(jobs: Jobs, desk: JobDesk) -> None:
    await enqueue(jobs)
    [held] = await claim(jobs)
    worker = Worker(WORKER, "host", 7, "1.0", slots=4, kinds=["sync"], sources=["shop", "billing"])
    await jobs.beat(worker, [Held(held.id, held.fence), Held(10**9, 1)], LONG)
    [found] = await desk.workers()
    assert (found.name, found.host, found.pid, found.version, found.slots) == (WORKER, "host", 7, "1.0", 4)
    assert (list(found.kinds), list(found.sources), found.running, found.lost) == (["sync"], ["shop", "billing"], 1, 1)
    assert 0 <= found.silent < LONG and not found.stopping
    await jobs.beat(worker, [], LONG, stopping=True)
    assert [one.stopping for one in await desk.workers()] == [True]
    await jobs.leave(WORKER)
    assert list(await desk.workers()) == []


async def test_what_slows_the_queue_down_is_told_by_its_engine(
    state: states.State, url: str, desk: JobDesk, request: pytest.FixtureRequest
) -> None:
    if url.startswith("sqlite"):
        await desk.limit("shop", 1)
        size = (await desk.upkeep()).wal_bytes
        assert size is not None and size > 0
        return
    assert (await desk.upkeep()).oldest_snapshot == 0
    server = await asyncpg.connect(request.getfixturevalue("postgres_url"), statement_cache_size=0)
    async with server.transaction(isolation="repeatable_read"):
        await server.execute("SELECT 1")
        oldest = (await desk.upkeep()).oldest_snapshot
        assert oldest is not None and oldest > 0
    await server.close()


async def test_what_is_done_or_cancelled_is_cleaned_away_when_it_is_old_and_what_is_dead_stays(
    jobs: Jobs, desk: JobDesk
) -> None:
    dead, cancelled = await die(jobs, job(), job())
    await desk.cancel([cancelled], ME)
    await enqueue(jobs, *(job() for _ in range(BATCH + 1)))
    await end(jobs, await claim(jobs, BATCH + 1))
    [pending] = await enqueue(jobs)
    assert (await clean(desk, DAY, DAY)).jobs == 0
    first = await desk.sweep(BEFORE_NOW, DAY)
    assert BATCH <= first.jobs <= BATCH + 1, "no transaction is long"
    assert first.jobs + (await clean(desk, BEFORE_NOW, DAY)).jobs == BATCH + 2
    assert list(await desk.find(Filter())) == [dead, pending]
    shown = await desk.show(dead)
    assert shown is not None and len(shown.attempts) == 1


async def test_what_keeps_equal_jobs_out_is_kept_for_as_long_as_it_does(jobs: Jobs, desk: JobDesk) -> None:
    new = NewJob("sync", "shop", dedupe_key="once", dedupe_for=DAY)
    [(id, _)] = await jobs.enqueue([new])
    await end(jobs, await claim(jobs, 1))
    assert (await clean(desk, BEFORE_NOW, DAY)).jobs == 0
    assert await jobs.enqueue([new]) == [(id, False)]


async def test_ticks_are_cleaned_away_when_they_are_old(state: states.State, desk: JobDesk) -> None:
    now = "0" if state.url.startswith("sqlite") else "'2020-01-01'"
    late = "9000000000000" if state.url.startswith("sqlite") else "'2100-01-01'"
    await change(
        state, f"INSERT INTO ingest.schedules (id, spec, digest, cursor_at) VALUES ('shop/orders', '1h', 'd', {now})"
    )
    for decided in (now, late):
        await change(
            state,
            "INSERT INTO ingest.ticks (schedule, tick_at, outcome, decided_at, decided_by)"
            f" VALUES ('shop/orders', {decided}, 'enqueued', {decided}, 'me')",
        )
    assert ((await clean(desk, DAY, DAY)).ticks, (await clean(desk, DAY, DAY)).ticks) == (1, 0)
