"""Runs that go on: who holds a stream keeps it, others stand by, and what is away is said and waited for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from checkpoints import Claim, StreamId, stream_lease
from checkpoints.sqlite import SqliteCheckpoints
from ingest.errors import ConfigError, LogUnavailable
from ingest.poller import Target
from ingest.report import Outcome, Report
from ingest.run import Runner, Stream
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.unit.polling import STREAM, TOPIC, Process, StumblingPublisher, fails, here, process
from tests.unit.sources import opened

KEYS = {"paginate": {"type": "cursor", "from": "$.next_cursor", "param": "cursor"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ingest.db"


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        server.serve("events", numbered(3), style="cursor")
        yield server


async def until(ready: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await ready():  # noqa: ASYNC110 - another task is waited for
            await asyncio.sleep(0.01)


def runner_of(one: Process, changed: Callable[[Report], None] = lambda report: None, ttl: float = 600.0) -> Runner:
    return Runner(one.publisher, one.checkpoints, one.leases, one.holder, here, changed, lease_ttl=ttl)


async def test_a_stream_is_polled_again_and_again_under_one_lease_and_released_at_the_end(
    api: FakeApi, path: Path
) -> None:
    async with process(path) as one, opened(api.url, KEYS) as source:
        stop = asyncio.Event()
        stream = Stream(Target(STREAM, TOPIC, 100), source, 0.01)
        running = asyncio.create_task(runner_of(one).forever([stream], stop))

        async def polled_often() -> bool:
            return len(api.requests) >= 5

        await until(polled_often)
        assert await one.leases.holder(stream_lease(STREAM)) == one.holder
        stop.set()
        await running
        assert await one.ids() == [str(record["id"]) for record in numbered(3)]
        lease = await one.leases.acquire(stream_lease(STREAM), "here:2:b", 1.0)
        assert lease is not None
        assert (lease.fence, lease.clean) == (2, True)


class Refusing(SqliteCheckpoints):
    """A database in which a person must mend something, for a while."""

    refusals = 2

    async def claim(self, stream: StreamId, holder: str, ttl: float) -> Claim | None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise ConfigError("the password was changed")
        return await super().claim(stream, holder, ttl)


async def test_what_a_person_must_mend_in_the_database_does_not_end_a_process_that_goes_on(
    api: FakeApi, path: Path
) -> None:
    async with process(path, checkpoints=Refusing) as one, opened(api.url, KEYS) as source:
        stop, blocked = asyncio.Event(), list[str | None]()
        runner = runner_of(one, lambda report: blocked.append(report.blocked))
        running = asyncio.create_task(runner.forever([Stream(Target(STREAM, TOPIC, 100), source, 0.01)], stop))

        async def published() -> bool:
            return len(await one.records()) == 3

        await until(published)
        stop.set()
        await running
        assert "the password was changed" in blocked, "it was said, and the process was not ready"
        assert blocked[-1] is None


async def test_a_process_that_is_stopped_before_it_began_ends_quietly(api: FakeApi, path: Path) -> None:
    async with process(path) as one, opened(api.url, KEYS) as source:
        stop = asyncio.Event()
        stop.set()
        assert await runner_of(one).forever([Stream(Target(STREAM, TOPIC, 100), source, 0.01)], stop) == []
    assert api.requests == []


async def test_a_second_process_stands_by_without_asking_the_api_and_takes_over(api: FakeApi, path: Path) -> None:
    async with process(path) as one, opened(api.url, KEYS) as source:
        stop, stop_second = asyncio.Event(), asyncio.Event()
        stream = Stream(Target(STREAM, TOPIC, 100), source, 0.01)
        first = asyncio.create_task(runner_of(one).forever([stream], stop))

        async def polled() -> bool:
            return len(api.requests) >= 2

        await until(polled)
        async with process(path) as two, opened(api.url, KEYS, {"headers": {"X-Who": "two"}}) as of_two:
            outcomes: list[Outcome] = []
            runner = runner_of(two, lambda report: outcomes.append(report.outcome))
            second = asyncio.create_task(runner.forever([Stream(stream.target, of_two, 0.01)], stop_second))

            async def polled_on() -> bool:
                return len(api.requests) >= 20

            await until(polled_on)
            assert not any("x-who" in request.headers for request in api.requests)
            stop.set()
            await first

            async def taken_over() -> bool:
                return "x-who" in api.requests[-1].headers

            await until(taken_over)
            stop_second.set()
            await second
            assert Outcome.UNAVAILABLE not in outcomes


async def test_a_log_that_is_away_blocks_and_unblocks_the_report(api: FakeApi, path: Path) -> None:
    blocked: list[str | None] = []
    away = {n: fails(LogUnavailable("the broker is away")) for n in range(2)}
    async with (
        process(path, publisher=lambda publisher: StumblingPublisher(publisher, before=away)) as one,
        opened(api.url, KEYS) as source,
    ):
        runner = runner_of(one, lambda report: blocked.append(report.blocked))
        [report] = await runner.once([Stream(Target(STREAM, TOPIC, 100), source, 1.0)], asyncio.Event())
    assert report.outcome is Outcome.COMPLETE
    assert "the broker is away" in blocked
    assert blocked[-1] is None


async def test_a_run_that_failed_is_followed_by_one_that_goes_on_where_it_stopped(api: FakeApi, path: Path) -> None:
    api.serve("events", numbered(30), style="cursor", page_size=10)
    api.misbehave([faults.ok, faults.status(404)])
    async with process(path) as one, opened(api.url, KEYS) as source:
        stop = asyncio.Event()
        stream = Stream(Target(STREAM, TOPIC, 100), source, 0.01)
        runner = runner_of(one)
        running = asyncio.create_task(runner.forever([stream], stop))

        async def complete() -> bool:
            return len(await one.ids()) == 30

        await until(complete)
        stop.set()
        await running
        assert "cursor" not in api.requests[0].query
        assert api.requests[2].query["cursor"] == api.requests[1].query["cursor"]


async def test_history_has_a_row_for_a_listing_that_ended_with_an_empty_page(api: FakeApi, path: Path) -> None:
    api.serve("events", numbered(20), style="page", page_size=10)
    async with process(path) as one:
        report = await one.poll(api.url, {"paginate": {"type": "page"}})
        assert report.reason == "empty page"
        assert [entry.note for entry in await one.history()] == ["empty page"]
        await one.poll(api.url, {"paginate": {"type": "page"}})
        assert len(await one.history()) == 1
