"""A queue hands each job to one worker at a time, within the caps, and refuses what a worker says that lost one."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from checkpoints.jobs import (
    ERROR_LIMIT,
    LAST_ERROR_LIMIT,
    MAX_RELEASES,
    Cap,
    Ended,
    Enqueued,
    Exchanged,
    Held,
    Job,
    Jobs,
    NewJob,
    Outcome,
    Want,
    Worker,
)
from checkpoints.jobs.sqlite_due import due as due_in_the_file
from ingest.sqlite import path_of
from tests.contract.states import LONG, PATIENCE, SHORT, State, eventually, open_state

FAR = 86_400.0  # seconds: longer than any test
A, B = "host:1:a", "host:2:b"
NOTHING = Exchanged([], [], [])


@pytest.fixture(params=["sqlite", "jobs_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[State]:
    async with open_state(url) as state:
        yield state


@pytest.fixture
def jobs(state: State) -> Jobs:
    return state.jobs


def job(kind: str = "sync", source: str = "shop", **rest: Any) -> NewJob:
    return NewJob(kind, source, **rest)


def want(number: int = 1, **rest: Any) -> Want:
    return Want(number, **{"ttl": LONG, **rest})


def worker(name: str = A) -> Worker:
    return Worker(name, "host", 1, "1.0", slots=4, kinds=["sync"])


async def claim(jobs: Jobs, number: int = 1, *, by: str = A, **rest: Any) -> list[Job]:
    return list((await jobs.exchange(by, (), want(number, **rest))).jobs)


async def end(jobs: Jobs, job: Job, outcome: Outcome = Outcome.DONE, *, by: str = A, **rest: Any) -> Exchanged:
    lost, died, found = await jobs.exchange(by, [Ended(job.id, job.fence, outcome, **rest)], None)
    return Exchanged(list(lost), list(died), list(found))


async def rows(state: State, statement: str) -> list[tuple[Any, ...]]:
    """What a query finds, written for both engines."""
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


async def one_row(state: State, columns: str, job: int) -> tuple[Any, ...]:
    [row] = await rows(state, f"SELECT {columns} FROM ingest.jobs WHERE id = {job}")
    return row


async def attempts(state: State) -> list[tuple[Any, ...]]:
    return await rows(state, "SELECT attempt, fence, outcome FROM ingest.attempts ORDER BY job, fence")


async def lease_ends(state: State) -> None:
    """As if all that is claimed had been claimed long ago."""
    past = "1" if state.url.startswith("sqlite") else "'2020-01-01'"
    await rows(state, f"UPDATE ingest.jobs SET lease_until = {past} WHERE state = 'running' RETURNING id")


async def test_a_job_is_claimed_as_it_was_enqueued(state: State, jobs: Jobs) -> None:
    payload = b'{"stream": "charges", "n": 1.10}'
    [(id, fresh)] = await jobs.enqueue([job(payload=payload, queue="sync", max_attempts=3)])
    [found] = await claim(jobs)
    assert fresh
    assert (found.id, found.kind, found.source, found.queue, found.payload) == (id, "sync", "shop", "sync", payload)
    assert (found.attempt, found.max_attempts, found.fence, found.schedule, found.tick_at) == (1, 3, 1, None, None)
    assert found.claimed_at - FAR < found.run_at <= found.claimed_at
    assert await claim(jobs, by=B) == []
    assert await one_row(state, "state, worker, attempts", id) == ("running", A, 1)


async def test_nothing_is_claimed_where_there_is_nothing(jobs: Jobs) -> None:
    for wanted in (want(), want(0), None):
        assert [*map(list, await jobs.exchange(A, (), wanted))] == [[], [], []]
    assert list(await jobs.enqueue([])) == []
    assert await jobs.due(want()) is None


async def test_a_job_that_is_done_is_done_and_its_attempt_is_kept(state: State, jobs: Jobs) -> None:
    await jobs.enqueue([job()])
    [found] = await claim(jobs)
    assert await end(jobs, found, progress=b'{"pages": 3}') == NOTHING
    assert await one_row(state, "state, worker, lease_until, dead_reason, last_error", found.id) == (
        "done", None, None, None, None,
    )  # fmt: skip
    assert await attempts(state) == [(1, 1, "done")]
    assert await claim(jobs) == []
    assert await jobs.due(want()) is None


async def test_what_ended_and_what_is_wanted_is_one_exchange(state: State, jobs: Jobs) -> None:
    await jobs.enqueue([job() for _ in range(5)])
    first = await claim(jobs, 2)
    done = [Ended(one.id, one.fence, Outcome.DONE) for one in first]
    lost, died, second = await jobs.exchange(A, done, want(2))
    assert (len(lost), len(died), len(second)) == (0, 0, 2)
    assert len({one.id for one in [*first, *second]}) == 4
    assert await rows(state, "SELECT state, count(*) FROM ingest.jobs GROUP BY state ORDER BY state") == [
        ("done", 2), ("pending", 1), ("running", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.RETRY, Outcome.DEAD, Outcome.RELEASED])
async def test_what_a_worker_says_after_it_lost_the_job_is_refused(state: State, jobs: Jobs, outcome: Outcome) -> None:
    await jobs.enqueue([job()])
    [zombies] = await claim(jobs)
    await jobs.leave(A)
    assert [(one.id, one.worker, one.dead) for one in await jobs.rescue(0.0)] == [(zombies.id, A, False)]
    assert (await end(jobs, zombies, outcome)).lost == [zombies.id]  # before it is claimed again
    await run_at_once(state)
    [successors] = await claim(jobs, by=A)  # by the same worker: its name alone would let the zombie through
    assert (successors.id, successors.fence, successors.attempt) == (zombies.id, 2, 2)
    assert (await end(jobs, zombies, outcome)).lost == [zombies.id]
    assert await one_row(state, "state, fence", zombies.id) == ("running", 2)
    assert (await end(jobs, successors)).lost == []
    assert await attempts(state) == [(1, 1, "lost"), (2, 2, "done")]


async def run_at_once(state: State) -> None:
    """What waits for its next attempt need not wait."""
    past = "1" if state.url.startswith("sqlite") else "'2020-01-01'"
    await rows(state, f"UPDATE ingest.jobs SET run_at = {past} WHERE state = 'pending' RETURNING id")


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.RETRY, Outcome.RELEASED])
async def test_what_was_said_twice_counts_once(state: State, jobs: Jobs, outcome: Outcome) -> None:
    """As when the answer to the first time did not arrive."""
    await jobs.enqueue([job()])
    [found] = await claim(jobs)
    for _ in range(2):
        assert await end(jobs, found, outcome, delay=FAR) == NOTHING
    assert await attempts(state) == [(1, 1, outcome)]
    [counted] = await rows(state, "SELECT coalesce(sum(done + failed), 0) FROM ingest.tallies")
    assert counted[0] == (0 if outcome is Outcome.RELEASED else 1)


async def test_a_dead_job_that_is_said_to_be_dead_twice_is_named_twice(jobs: Jobs) -> None:
    await jobs.enqueue([job()])
    [found] = await claim(jobs)
    for _ in range(2):
        assert await end(jobs, found, Outcome.DEAD) == ([], [found.id], [])


async def test_a_job_is_tried_again_after_its_delay_until_no_attempt_is_left(state: State, jobs: Jobs) -> None:
    await jobs.enqueue([job(max_attempts=2)])
    [first] = await claim(jobs)
    assert await end(jobs, first, Outcome.RETRY, delay=FAR, error_class="Timeout", error="no answer") == NOTHING
    assert await claim(jobs) == []
    due = await jobs.due(want())
    assert due is not None
    assert FAR - LONG < due <= FAR
    assert await one_row(state, "state, last_error_class, last_error", first.id) == ("pending", "Timeout", "no answer")
    await run_at_once(state)
    [second] = await claim(jobs)
    assert (second.attempt, second.fence) == (2, 2)
    assert await end(jobs, second, Outcome.RETRY) == ([], [first.id], [])
    assert await one_row(state, "state, dead_reason, last_error", first.id) == ("dead", "exhausted", "no answer")
    assert await attempts(state) == [(1, 1, "retry"), (2, 2, "dead")]


async def test_a_permanent_error_is_the_end_and_its_text_is_kept_to_a_length(state: State, jobs: Jobs) -> None:
    await jobs.enqueue([job()])
    [found] = await claim(jobs)
    text = "it's \\ \0" + "x" * 2 * ERROR_LIMIT
    assert (await end(jobs, found, Outcome.DEAD, error_class="Refused", error=text)).died == [found.id]
    reason, short = await one_row(state, "dead_reason, last_error", found.id)
    [(long,)] = await rows(state, "SELECT error FROM ingest.attempts")
    assert reason == "permanent"
    assert (short[:6], len(short), len(long)) == ("it's \\", LAST_ERROR_LIMIT, ERROR_LIMIT)


async def test_a_claim_that_is_given_back_burns_no_attempt_a_few_times(state: State, jobs: Jobs) -> None:
    [(id, _)] = await jobs.enqueue([job(max_attempts=1)])
    for _ in range(MAX_RELEASES):
        [found] = await claim(jobs)
        assert found.attempt == 1
        assert (await end(jobs, found, Outcome.RELEASED)).died == []
    [found] = await claim(jobs)
    assert (await end(jobs, found, Outcome.RELEASED)).died == [id]
    assert await one_row(state, "state, dead_reason, fence", id) == ("dead", "exhausted", MAX_RELEASES + 1)


@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.RELEASED, Outcome.CANCELLED])
async def test_a_running_job_that_a_person_cancelled_does_not_come_again(
    state: State, jobs: Jobs, outcome: Outcome
) -> None:
    await jobs.enqueue([job()])
    [found] = await claim(jobs)
    flag = "1" if state.url.startswith("sqlite") else "true"
    await rows(state, f"UPDATE ingest.jobs SET cancel_requested = {flag} RETURNING id")
    assert list(await jobs.beat(worker(), [Held(found.id, found.fence)], LONG)) == [(found.id, True)]
    assert (await end(jobs, found, outcome)).died == [found.id]
    assert await one_row(state, "state, dead_reason, attempts", found.id) == ("dead", "cancelled", 1)
    assert await attempts(state) == [(1, 1, "cancelled")]


async def test_the_smallest_priority_goes_first_then_the_earliest_then_the_oldest(jobs: Jobs) -> None:
    ids = [
        one.id
        for one in await jobs.enqueue(
            [job(priority=5), job(run_at=20.0), job(run_at=10.0), job(run_at=10.0), job(priority=-1)]
        )
    ]
    assert [one.id for one in await claim(jobs, 5)] == [ids[n] for n in (4, 2, 3, 1, 0)]


async def test_one_claim_in_eight_takes_the_earliest_whatever_its_priority(jobs: Jobs) -> None:
    await jobs.enqueue([job("old", priority=9, run_at=1.0), *(job("urgent") for _ in range(10))])
    assert [one.kind for _ in range(8) for one in await claim(jobs)].count("old") == 1


async def test_the_source_that_waited_longest_is_served_first(jobs: Jobs) -> None:
    await jobs.enqueue([job(source=name) for name in ("a", "b", "c") for _ in range(3)])
    assert [one.source for _ in range(6) for one in await claim(jobs)] == ["a", "b", "c", "a", "b", "c"]
    assert sorted(one.source for one in await claim(jobs, 3)) == ["a", "b", "c"]


async def test_several_sources_share_the_slots_of_one_claim(jobs: Jobs) -> None:
    await jobs.enqueue([job(source=name) for name in ("a", "b") for _ in range(9)])
    await jobs.enqueue([job(source="few")])
    assert sorted(one.source for one in await claim(jobs, 7)) == [*"aaabbb", "few"]


async def test_a_worker_takes_only_kinds_and_sources_that_it_wants(jobs: Jobs) -> None:
    await jobs.enqueue([job("sync", "a"), job("it's", "a"), job("sync", "b")])
    assert [one.kind for one in await claim(jobs, 9, kinds=["it's"])] == ["it's"]
    assert [one.source for one in await claim(jobs, 9, sources=["b", "it's"])] == ["b"]
    assert await claim(jobs, 9, kinds=["backfill"]) == []
    assert await jobs.due(want(kinds=["backfill"])) is None
    assert await jobs.due(want(kinds=["sync"], sources=["a"])) == 0.0


async def test_a_source_runs_no_more_jobs_than_its_cap(state: State, jobs: Jobs) -> None:
    await jobs.limit([Cap("a", 2), Cap("b", None)], [])
    await jobs.enqueue([job(source=name) for name in ("a", "b") for _ in range(5)])
    first = await claim(jobs, 9)
    assert sorted(one.source for one in first) == ["a", "a", *"bbbbb"]
    assert await claim(jobs, 9, by=B) == []
    due = await jobs.due(want())
    assert due is not None
    assert due > 0  # nobody is told to come at once as long as there is no room
    [ended] = [one for one in first if one.source == "a"][:1]
    _, _, after = await jobs.exchange(A, [Ended(ended.id, ended.fence, Outcome.DONE)], want(9))
    assert [one.source for one in after] == ["a"]
    await jobs.limit([Cap("a", 4)], [])
    assert len(await claim(jobs, 9)) == 2


async def test_a_queue_runs_no_more_jobs_than_its_cap_and_holds_up_no_other(jobs: Jobs) -> None:
    await jobs.limit([], [Cap("backfill", 2), Cap("sync", None)])
    await jobs.enqueue([job(source=name, queue="backfill") for name in ("a", "b") for _ in range(3)])
    assert [one.queue for one in await claim(jobs, 3)] == ["backfill"] * 2
    due = await jobs.due(want())
    assert due is not None
    assert due > 0
    await jobs.enqueue([job(source="a", queue="sync", priority=9)])
    assert await jobs.due(want()) == 0.0
    assert [one.queue for one in await claim(jobs, 3)] == ["sync"]


async def test_a_persons_cap_goes_before_that_of_the_configuration(state: State, jobs: Jobs) -> None:
    await jobs.enqueue([job() for _ in range(5)])
    await rows(state, "UPDATE ingest.sources SET limited_to = 1 RETURNING name")
    await jobs.limit([Cap("shop", 4)], [])
    assert len(await claim(jobs, 9)) == 1


async def test_of_many_who_claim_at_once_none_exceeds_a_cap_and_no_job_is_claimed_twice(state: State) -> None:
    await state.jobs.limit([Cap("a", 3)], [Cap("default", 5)])
    await state.jobs.enqueue([job(source=name) for name in ("a", "b") for _ in range(20)])
    async with open_state(state.url) as other:
        found = await asyncio.gather(*(claim((state, other)[n % 2].jobs, 2, by=f"host:{n}:x") for n in range(8)))
        while len(claimed := [one for some in found for one in some]) < 5:
            found += await asyncio.gather(claim(state.jobs, 2), claim(other.jobs, 2, by=B))
    assert len({one.id for one in claimed}) == len(claimed) == 5
    assert sum(one.source == "a" for one in claimed) <= 3


async def test_a_source_that_is_held_gives_nothing_until_then_and_nobody_brings_that_forward(jobs: Jobs) -> None:
    await jobs.enqueue([job(), job(source="other")])
    for seconds in (FAR, SHORT):
        await jobs.hold("shop", seconds, "429")
    assert [one.source for one in await claim(jobs, 9)] == ["other"]
    due = await jobs.due(want())
    assert due is not None
    assert FAR - LONG < due <= FAR
    await jobs.hold("new", SHORT, "429")
    await jobs.enqueue([job(source="new")])
    [found] = await eventually(lambda: claimed_or_none(jobs, "new"))
    assert found.source == "new"


async def claimed_or_none(jobs: Jobs, source: str) -> Sequence[Job] | None:
    return await claim(jobs, sources=[source]) or None


async def test_a_later_job_is_due_when_it_is(jobs: Jobs) -> None:
    await jobs.enqueue([job(run_at=4_000_000_000.0)])
    due = await jobs.due(want())
    assert due is not None
    assert due > FAR
    assert await claim(jobs) == []


async def test_of_two_equal_jobs_that_are_pending_or_running_there_is_one(jobs: Jobs) -> None:
    [first, again, other] = await jobs.enqueue([job(dedupe_key="k"), job(dedupe_key="k"), job(dedupe_key="l")])
    assert first.fresh
    assert (again, other.fresh) == (Enqueued(first.id, False), True)
    [one, _] = await claim(jobs, 2)
    assert await jobs.enqueue([job(dedupe_key="k")]) == [Enqueued(first.id, False)]
    await end(jobs, one)
    [after] = await jobs.enqueue([job(dedupe_key="k")])
    assert after.fresh


async def test_a_job_is_not_enqueued_again_for_a_while_after_an_equal_one_was_done(state: State, jobs: Jobs) -> None:
    [first] = await jobs.enqueue([job(dedupe_key="k", dedupe_for=FAR)])
    [found] = await claim(jobs)
    await end(jobs, found)
    assert await jobs.enqueue([job(dedupe_key="k", dedupe_for=FAR)]) == [Enqueued(first.id, False)]
    past = "1" if state.url.startswith("sqlite") else "'2020-01-01'"
    await rows(state, f"UPDATE ingest.jobs SET finished_at = {past} RETURNING id")
    [after] = await jobs.enqueue([job(dedupe_key="k", dedupe_for=FAR)])
    assert after.fresh


async def test_of_many_who_enqueue_equal_jobs_at_once_one_does(state: State) -> None:
    async with open_state(state.url) as other:
        found = await asyncio.gather(
            *((state, other)[n % 2].jobs.enqueue([job(dedupe_key=key) for key in keys])
              for n, keys in enumerate(["kl", "lk"] * 4))
        )  # fmt: skip
    assert sum(one.fresh for some in found for one in some) == 2
    assert len({one.id for some in found for one in some}) == 2


async def test_a_heartbeat_renews_what_is_held_and_says_what_is_not(state: State, jobs: Jobs) -> None:
    await jobs.enqueue([job() for _ in range(3)])
    held = [Held(one.id, one.fence, b'{"pages": 2}') for one in await claim(jobs, 3, ttl=SHORT + LONG)]
    others = Held(held[1].id, held[1].fence + 1)
    beats = await jobs.beat(worker(), [held[0], others], 2 * LONG)
    assert list(beats) == [(held[0].id, False)]
    assert await rows(state, "SELECT name, running, lost, stopping FROM ingest.workers") in (
        [(A, 1, 1, False)], [(A, 1, 1, 0)],
    )  # fmt: skip
    later = "lease_until > (SELECT max(lease_until) FROM ingest.jobs WHERE progress IS NULL)"
    assert await rows(state, f"SELECT id FROM ingest.jobs WHERE progress IS NOT NULL AND {later}") == [(held[0].id,)]


async def test_a_heartbeat_does_not_revive_a_claim_that_has_expired(state: State, jobs: Jobs) -> None:
    await jobs.enqueue([job()])
    [found] = await claim(jobs)
    await lease_ends(state)
    assert list(await jobs.beat(worker(), [Held(found.id, found.fence)], LONG)) == []
    assert [one.id for one in await jobs.rescue(0.0)] == [found.id]


async def test_a_worker_that_shows_itself_keeps_its_claims(jobs: Jobs) -> None:
    await jobs.enqueue([job()])
    [found] = await claim(jobs)
    await jobs.beat(worker(), [Held(found.id, found.fence)], LONG)
    assert list(await jobs.rescue(0.0)) == []


async def test_a_lost_claim_is_rescued_once_and_tried_again_later(state: State) -> None:
    await state.jobs.enqueue([job()])
    [found] = await claim(state.jobs)
    await lease_ends(state)
    assert list(await state.jobs.rescue(2 * FAR * 365 * 60)) == []  # not before the grace is over
    async with open_state(state.url) as other:
        rescued = await asyncio.gather(*((state, other)[n % 2].jobs.rescue(0.0) for n in range(6)))
    assert [one for some in rescued for one in some] == [(found.id, "sync", "shop", A, False)]
    row = await one_row(state, "state, rescues, attempts, last_error_class, last_error", found.id)
    assert row == ("pending", 1, 1, "LeaseExpired", f"worker {A} gave no sign of life any more")
    due = await state.jobs.due(want())
    assert due is not None
    assert 0 < due < 10
    [counted] = await rows(state, "SELECT worker, failed FROM ingest.tallies")
    assert counted == (A, 1)


async def test_a_job_whose_worker_is_lost_with_its_last_attempt_is_dead(state: State, jobs: Jobs) -> None:
    [(id, _)] = await jobs.enqueue([job(max_attempts=2)])
    for dead in (False, True):
        await run_at_once(state)
        await claim(jobs)
        await lease_ends(state)
        assert [(one.id, one.dead) for one in await jobs.rescue(0.0)] == [(id, dead)]
    assert await one_row(state, "state, dead_reason, attempts", id) == ("dead", "exhausted", 2)


async def test_when_most_claims_are_lost_at_once_no_job_dies_of_it_before_twice_its_attempts(
    state: State, jobs: Jobs
) -> None:
    await jobs.enqueue([job(max_attempts=1) for _ in range(12)])
    for dead in (False, True):
        await run_at_once(state)
        assert len(await claim(jobs, 12)) == 12
        await lease_ends(state)
        assert [one.dead for one in await jobs.rescue(0.0)] == [dead] * 12


async def test_of_a_worker_and_its_rescuer_one_wins_each_job(state: State) -> None:
    await state.jobs.enqueue([job() for _ in range(40)])
    found = await claim(state.jobs, 40)
    await lease_ends(state)
    async with open_state(state.url) as other:
        ends = asyncio.gather(*(end(state.jobs, one) for one in found[:20]))
        said, rescued = await asyncio.gather(ends, other.jobs.rescue(0.0))
        said += [await end(state.jobs, one) for one in found[20:]]
    lost = {id for one in said for id in one.lost}
    assert lost == {one.id for one in rescued}
    [(done,)] = await rows(state, "SELECT count(*) FROM ingest.jobs WHERE state = 'done'")
    assert done == 40 - len(lost)


async def test_a_schedule_has_one_dead_job_that_counts_those_before(state: State, jobs: Jobs) -> None:
    for n in range(3):
        [(id, _)] = await jobs.enqueue([job(max_attempts=1)])
        await rows(state, f"UPDATE ingest.jobs SET schedule = 'shop/charges' WHERE id = {id} RETURNING id")
        [found] = await claim(jobs)
        if n == 1:
            await lease_ends(state)
            await jobs.rescue(0.0)
        else:
            await end(jobs, found, Outcome.RETRY)
    assert await rows(state, "SELECT id, state, deaths FROM ingest.jobs") == [(id, "dead", 2)]
    assert await rows(state, "SELECT count(*) FROM ingest.attempts") == [(1,)]


async def test_one_job_of_a_schedule_runs_at_a_time_also_when_one_comes_back_while_another_waits(
    state: State, jobs: Jobs
) -> None:
    guarded = "UPDATE ingest.jobs SET schedule = 's', overlap = 'queue_one' WHERE overlap IS NULL RETURNING id"
    await jobs.enqueue([job()])
    await rows(state, guarded)
    [first] = await claim(jobs, 9)
    await jobs.enqueue([job()])
    await rows(state, guarded)
    assert await claim(jobs, 9) == []
    await end(jobs, first, Outcome.RETRY)  # two are pending now
    [second] = await claim(jobs, 9)
    await end(jobs, second)
    assert len(await claim(jobs, 9)) == 1


async def test_many_jobs_that_were_lost_together_do_not_come_back_together(state: State, jobs: Jobs) -> None:
    number, parts = 2_000, 5
    await jobs.enqueue([job() for _ in range(number)])
    assert len(await claim(jobs, number)) == number
    await jobs.leave(A)
    while await jobs.rescue(0.0):
        pass
    found = [
        at for (at,) in await rows(state, "SELECT run_at FROM ingest.jobs WHERE state = 'pending' ORDER BY run_at")
    ]
    assert len(found) == number
    width = (found[-1] - found[0]) / parts
    shares = Counter(min(parts - 1, int((at - found[0]) / width)) for at in found)
    assert min(shares.values()) > number / parts / 2


async def test_what_a_worker_held_that_leaves_is_rescued_at_once(state: State, jobs: Jobs) -> None:
    await jobs.enqueue([job() for _ in range(2)])
    await jobs.beat(worker(), [], LONG)
    found = [*await claim(jobs), *await claim(jobs, by=B)]
    await jobs.leave(A)
    assert [one.id for one in await jobs.rescue(LONG)] == [found[0].id]
    assert await rows(state, "SELECT name FROM ingest.workers") == []


async def test_who_waits_is_woken_by_a_new_job(state: State) -> None:
    """In this process and from another connection; the time that passes is not looked at, only who came first."""
    for enqueue in (state.jobs.enqueue, None):
        await state.jobs.due(want())
        waiting = asyncio.create_task(state.jobs.wait(FAR))
        if enqueue is not None:
            await enqueue([job()])
        else:
            async with open_state(state.url) as other:
                await other.jobs.enqueue([job()])
        await asyncio.wait_for(waiting, PATIENCE)
        assert len(await claim(state.jobs, 9)) == 1


async def test_a_wait_ends_after_its_time(jobs: Jobs) -> None:
    assert await jobs.due(want()) is None
    await jobs.wait(SHORT)


async def test_in_the_file_a_backlog_behind_a_cap_is_not_read_through_to_say_when_the_next_is_due(
    sqlite_path: Path,
) -> None:
    """Workers ask each time that a job ends."""

    def cost() -> int:
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 1

        connection = sqlite3.connect(sqlite_path)
        connection.set_progress_handler(count, 10)
        assert due_in_the_file(connection, Want(1, kinds=("sync",))) == 1.0
        connection.close()
        return steps

    async with open_state(f"sqlite:///{sqlite_path}") as state:
        await state.jobs.limit([Cap("shop", 1)], [])
        await state.jobs.enqueue([NewJob("sync", "shop")] * 2)
        await claim(state.jobs, 1)
        few = cost()
        await state.jobs.enqueue([NewJob("sync", "shop")] * 500)
        assert cost() < 2 * few
