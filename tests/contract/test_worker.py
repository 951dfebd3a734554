"""A worker takes what it has room for, writes down how it ended, and never says more than it knows."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from checkpoints.jobs import Beat, Ended, Exchanged, Held, Job, Jobs, NewJob, Outcome, Rescued, Want
from checkpoints.jobs import Worker as Identity
from ingest.errors import ConfigError, StoreUnavailable, Transient
from ingest.jobs.handler import Again, Handler, Progress, Work
from tests.contract.states import eventually
from tests.contract.working import PATIENCE, QUICK, Queue, nothing, open_jobs, open_queue, until_set

BEATING = QUICK._replace(beat=0.05)  # a heartbeat comes soon
BRIEF = QUICK._replace(ttl=0.6)  # a claim that a test sees end


@pytest.fixture(params=["sqlite", "pooled_postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with open_queue(url) as queue:
        yield queue


def waits_for(event: asyncio.Event) -> Work:
    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        await until_set(event)

    return work


def raises(error: BaseException) -> Work:
    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        raise error

    return work


async def test_jobs_run_side_by_side_up_to_the_slots_and_each_is_done_once(queue: Queue) -> None:
    seen, running, most, full = list[int](), 0, 0, asyncio.Event()

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        nonlocal running, most
        seen.append(job.id)
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await until_set(full)
        running -= 1

    ids = [one.id for one in await queue.enqueue(*["a"] * 20)]
    tally = await queue.worker({"a": Handler(work)}, slots=3).run(asyncio.Event(), drain=True)
    assert (sorted(seen), most) == (ids, 3)
    assert tally.outcomes == {Outcome.DONE: 20}
    assert {(await queue.row(id))["state"] for id in ids} == {"done"}


async def test_what_a_handler_raises_decides_what_becomes_of_the_job(queue: Queue) -> None:
    handlers = {
        "done": Handler(nothing),
        "later": Handler(raises(Transient("away", retry_after=600.0))),
        "never": Handler(raises(ConfigError("unset"))),
        "bug": Handler(raises(ZeroDivisionError("oh"))),
        "again": Handler(raises(Again("held", 600.0))),
        "left": Handler(raises(SystemExit(1))),
        "base": Handler(raises(GeneratorExit())),
        "strange": Handler(raises(Again("held", math.inf))),
        "slow": Handler(waits_for(asyncio.Event()), timeout=0.01),
    }
    ids = [one.id for one in await queue.enqueue(*handlers)]
    tally = await queue.worker(handlers).run(asyncio.Event(), drain=True)
    rows = [await queue.row(id) for id in ids]
    assert [(row["state"], row["attempts"], row["last_error_class"]) for row in rows] == [
        ("done", 1, None), ("pending", 1, "Transient"), ("dead", 1, "ConfigError"), ("pending", 1, "ZeroDivisionError"),
        ("pending", 0, "Again"), ("pending", 1, "SystemExit"), ("pending", 1, "GeneratorExit"),
        ("pending", 0, "Again"), ("pending", 1, "TimedOut"),
    ]  # fmt: skip
    assert "ZeroDivisionError: oh" in rows[3]["last_error"]
    assert rows[8]["last_error"] == "not done after 0.01 s, the timeout of slow"
    assert (tally.count(Outcome.RETRY), tally.count(Outcome.RELEASED), tally.died) == (5, 2, 1)


async def test_the_last_attempt_that_fails_leaves_the_job_dead_and_says_so(queue: Queue) -> None:
    [(id, _)] = await queue.enqueue("bug", attempts=1)
    with structlog.testing.capture_logs() as lines:
        tally = await queue.worker({"bug": Handler(raises(ZeroDivisionError("oh")))}).run(asyncio.Event(), drain=True)
    row = await queue.row(id)
    assert (row["state"], row["dead_reason"], tally.died) == ("dead", "exhausted", 1)
    [line] = [line for line in lines if line["log_level"] == "error"]
    assert (line["job"], line["error"]) == (id, "ZeroDivisionError: oh")


async def test_nothing_is_claimed_before_it_can_start(queue: Queue) -> None:
    go, stop, started = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(0)

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        started.release()
        await until_set(go)

    await queue.enqueue(*["a"] * 5)
    running = asyncio.create_task(queue.worker({"a": Handler(work)}, slots=2).run(stop, drain=True))
    for _ in range(2):
        await asyncio.wait_for(started.acquire(), PATIENCE)
    rest = await queue.jobs.exchange("here:2:other", (), Want(10))
    assert len(rest.jobs) == 3
    go.set()
    assert (await running).outcomes == {Outcome.DONE: 2}


async def test_a_job_that_comes_later_wakes_a_worker_that_waits(queue: Queue) -> None:
    done, stop = asyncio.Event(), asyncio.Event()

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        done.set()

    running = asyncio.create_task(queue.worker({"a": Handler(work)}).run(stop))
    await queue.jobs.enqueue([NewJob("other", "crm"), NewJob("a", "crm")])
    await until_set(done)
    stop.set()
    assert (await running).outcomes == {Outcome.DONE: 1}
    assert (await queue.row(1))["state"] == "pending"  # of a kind that it does not know


async def test_a_worker_that_stops_lets_jobs_end_and_gives_the_rest_back_without_burning_an_attempt(
    queue: Queue,
) -> None:
    both = asyncio.Barrier(3)

    async def ends(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        await both.wait()
        await until_set(stop)

    async def does_not(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        await both.wait()
        await until_set(asyncio.Event())

    (first, _), (second, _) = await queue.enqueue("ends", "does_not")
    stop, worker = asyncio.Event(), queue.worker({"ends": Handler(ends), "does_not": Handler(does_not)})
    running = asyncio.create_task(worker.run(stop))
    await both.wait()
    stop.set()
    tally = await running
    assert tally.outcomes == {Outcome.DONE: 1, Outcome.RELEASED: 1}
    assert (await queue.row(first))["state"] == "done"
    row = await queue.row(second)
    assert (row["state"], row["attempts"], row["releases"]) == ("pending", 0, 1)
    assert await queue.asks("SELECT name FROM {workers}") == [], "it said that it has left"


async def test_a_job_that_was_taken_away_is_cancelled_and_its_success_is_not_reported(queue: Queue) -> None:
    inside, cancelled = asyncio.Event(), asyncio.Event()

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        inside.set()
        try:
            await until_set(asyncio.Event())
        except asyncio.CancelledError:
            cancelled.set()
            return  # as if it had been done

    [(id, _)] = await queue.enqueue("a")
    stop = asyncio.Event()
    worker = queue.worker({"a": Handler(work)}, slots=1, times=BEATING)  # it cannot take it again
    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(worker.run(stop))
        await until_set(inside)
        await queue.jobs.leave((await queue.row(id))["worker"])
        await queue.jobs.rescue(0.0)
        await queue.asks("UPDATE {jobs} SET run_at = created_at")
        [other] = (await queue.jobs.exchange("here:2:other", (), Want(1))).jobs
        await until_set(cancelled)
        stop.set()
        tally = await running
    assert (tally.outcomes, tally.lost) == ({}, 1)
    assert [line["job"] for line in lines if line["event"].startswith("lost the job")] == [id]
    await queue.jobs.exchange("here:2:other", [Ended(id, other.fence, Outcome.DONE)], None)
    assert await queue.outcomes(id) == ["lost", "done"]


async def test_a_result_that_comes_after_the_claim_was_given_to_another_is_refused_and_said_once(queue: Queue) -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        inside.set()
        await until_set(go)

    [(id, _)] = await queue.enqueue("a")
    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(queue.worker({"a": Handler(work)}).run(asyncio.Event(), drain=True))
        await until_set(inside)
        await queue.jobs.leave((await queue.row(id))["worker"])
        await queue.jobs.rescue(0.0)  # no heartbeat comes meanwhile: the next one is minutes away
        go.set()
        tally = await running
    assert (tally.outcomes, tally.lost) == ({}, 1)
    [line] = [line for line in lines if line["event"].startswith("lost the job")]
    assert line["why"] == "its claim was over when it ended"
    assert (await queue.row(id))["state"] == "pending"


async def test_a_handler_that_holds_up_the_event_loop_loses_no_claim(queue: Queue) -> None:
    """It is renewed again and again while the loop stands still."""
    ends = set[float]()

    async def watching(id: int) -> None:
        async def renewed() -> bool | None:
            ends.add((await queue.row(id))["lease_until"])
            return len(ends) > 3 or None

        await eventually(renewed)

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        other = threading.Thread(target=lambda: asyncio.run(watching(job.id)))
        other.start()
        other.join(PATIENCE)

    await queue.enqueue("a")
    tally = await queue.worker({"a": Handler(work)}, times=BEATING).run(asyncio.Event(), drain=True)
    assert (len(ends), tally.outcomes, tally.lost) == (4, {Outcome.DONE: 1}, 0)


async def test_one_that_holds_it_up_for_longer_than_it_may_take_keeps_no_claim(queue: Queue) -> None:
    """Its timeout cannot end it, so others get the job."""
    rescued = list[Rescued]()

    async def rescuing() -> None:
        async with open_jobs(queue.url) as jobs:

            async def found() -> Sequence[Rescued] | None:
                return await jobs.rescue(0.0) or None

            rescued.extend(await eventually(found))

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        other = threading.Thread(target=lambda: asyncio.run(rescuing()))
        other.start()
        other.join(PATIENCE)

    [(id, _)] = await queue.enqueue("a")
    tally = await queue.worker({"a": Handler(work, timeout=0.01)}, times=BRIEF).run(asyncio.Event(), drain=True)
    assert ([one.id for one in rescued], tally.outcomes, tally.lost) == ([id], {}, 1)


async def test_progress_goes_with_the_heartbeat_and_with_the_result(queue: Queue) -> None:
    seen = asyncio.Event()

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        progress({"pages": 1})

        async def shown() -> bool | None:
            return (await queue.row(job.id))["progress"] == '{"pages":1}' or None

        await eventually(shown)
        seen.set()
        progress({"pages": 2})

    [(id, _)] = await queue.enqueue("a")
    await queue.worker({"a": Handler(work)}, times=BEATING).run(asyncio.Event(), drain=True)
    assert seen.is_set()
    assert (await queue.row(id))["progress"] == '{"pages":2}'


@pytest.mark.parametrize("looks", [True, False], ids=["looks", "does not look"])
async def test_a_job_that_a_person_cancels_ends_whether_its_handler_looks_or_not(queue: Queue, looks: bool) -> None:
    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        await queue.asks(f"UPDATE {{jobs}} SET cancel_requested = {_true(queue)} WHERE id = {job.id}")
        await until_set(stop if looks else asyncio.Event())
        raise Again("half way")

    [(id, _)] = await queue.enqueue("a")
    tally = await queue.worker({"a": Handler(work)}, times=BEATING).run(asyncio.Event(), drain=True)
    row = await queue.row(id)
    assert (tally.outcomes, row["state"], row["dead_reason"]) == ({Outcome.CANCELLED: 1}, "dead", "cancelled")


def _true(queue: Queue) -> str:
    return "1" if queue.url.startswith("sqlite") else "true"


class Away:
    """The real queue behind a database that does not answer while `away` says so."""

    def __init__(self, jobs: Jobs, away: Callable[[], bool]) -> None:
        self._jobs, self._away = jobs, away
        self.refused = asyncio.Event()

    async def exchange(self, worker: str, ended: Sequence[Ended], want: Want | None) -> Exchanged:
        self._answer()
        return await self._jobs.exchange(worker, ended, want)

    async def beat(
        self, worker: Identity, held: Sequence[Held], ttl: float, *, stopping: bool = False
    ) -> Sequence[Beat]:
        self._answer()
        return await self._jobs.beat(worker, held, ttl, stopping=stopping)

    def _answer(self) -> None:
        if self._away():
            self.refused.set()
            raise StoreUnavailable("the database is away")

    def __getattr__(self, name: str) -> object:
        return getattr(self._jobs, name)


async def test_while_the_database_is_away_results_are_kept_until_they_can_be_written(queue: Queue) -> None:
    away = False

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        nonlocal away
        away = True

    jobs = Away(queue.jobs, lambda: away)
    ids = [one.id for one in await queue.enqueue("a", "a")]
    worker = queue.worker({"a": Handler(work)}, jobs=jobs)  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run(asyncio.Event(), drain=True))
    await until_set(jobs.refused)
    assert (await queue.row(ids[0]))["state"] == "running"
    away = False
    tally = await running
    assert (tally.outcomes[Outcome.DONE], tally.lost) == (2, 0)


async def test_a_claim_that_cannot_be_renewed_in_time_is_let_go_by_the_worker_s_own_clock(queue: Queue) -> None:
    """Its handler is cancelled, whatever the database says; then somebody rescues the job."""
    cancelled = asyncio.Event()

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        try:
            await until_set(asyncio.Event())
        finally:
            cancelled.set()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Jobs]:
        async with open_jobs(queue.url) as jobs:
            yield Away(jobs, lambda: True)  # type: ignore[misc]

    [(id, _)] = await queue.enqueue("a")
    stop = asyncio.Event()
    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(queue.worker({"a": Handler(work)}, times=BRIEF, connect=connect).run(stop))
        await until_set(cancelled)
        assert (await queue.row(id))["state"] == "running"
        stop.set()
        tally = await running
    assert (tally.lost, tally.outcomes) == (1, {})
    [line] = [line for line in lines if line["event"].startswith("lost the job")]
    assert line["why"] == "it could not be renewed in time: the database is away"

    async def rescued() -> bool | None:
        return bool(await queue.jobs.rescue(0.0)) or None

    await eventually(rescued)
    assert await queue.outcomes(id) == ["lost"]
