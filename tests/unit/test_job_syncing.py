"""A job that runs a stream: how the run ends decides what becomes of the job; the stream's lease is what fences."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from checkpoints import StreamId, stream_lease
from checkpoints.jobs import Job, NewJob, Want
from checkpoints.jobs.sqlite import SqliteJobs
from ingest.errors import ConfigError, SourceRefused, SourceUnavailable, Superseded
from ingest.jobs import Again
from ingest.jobs.syncing import HELD_DELAY, handler
from ingest.poller import Target
from ingest.run import Runner, Stream
from ingest.sources import Source
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.faults import Fault
from tests.unit.polling import STREAM, TOPIC, TTL, Process, here, process
from tests.unit.sources import opened

KEYS = {"paginate": {"type": "cursor", "from": "$.next_cursor", "param": "cursor"}}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        server.serve("events", numbered(30), style="cursor", page_size=10)
        yield server


def job(payload: bytes = b'{"stream":"events"}') -> Job:
    return Job(1, 1, "sync", "api", "sync", payload, 1, 5, 0.0, 0.0)


async def run(
    one: Process, source: Source, stop: asyncio.Event | None = None, wanted: Job | None = None
) -> list[object]:
    """What it said of its progress."""
    said = list[object]()

    async def open_stream(name: StreamId) -> Stream:
        if name != STREAM:
            raise ConfigError(f"no stream {name}")
        return Stream(Target(STREAM, TOPIC, 100), source, 300.0)

    runner = Runner(one.publisher, one.checkpoints, one.leases, one.holder, here, lease_ttl=TTL)
    work = handler(runner, open_stream, SqliteJobs(one.database).hold).work
    await work(wanted or job(), said.append, stop or asyncio.Event())
    return said


async def test_a_stream_that_is_complete_is_done_and_shows_how_far_it_came(api: FakeApi, sqlite_path: Path) -> None:
    async with process(sqlite_path) as one, opened(api.url, KEYS) as source:
        said = await run(one, source)
        assert said[-1] == {"pages": 3, "events": 30, "unchanged": 0}
        assert len(await one.ids()) == 30
        lease = await one.leases.acquire(stream_lease(STREAM), "here:2:b", 1.0)
        assert lease is not None and lease.clean


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (faults.status(503), SourceUnavailable),
        (faults.status(403), SourceRefused),
        (faults.status(429, retry_after="1"), SourceUnavailable),
    ],
)
async def test_what_ended_the_run_decides_about_the_job(
    api: FakeApi, sqlite_path: Path, fault: Fault, error: type[Exception]
) -> None:
    api.misbehave([faults.ok, *[fault] * 3])
    above = {"retry": {"attempts": 3, "base": "1ms", "cap": "2ms", "max_wait": "100ms"}}
    async with process(sqlite_path) as one, opened(api.url, KEYS, above) as source:
        with pytest.raises(error):
            await run(one, source)
        assert len(await one.ids()) == 10, "what was saved before stays good"


async def test_an_api_that_asks_for_a_long_wait_is_left_alone_and_no_attempt_is_burned(
    api: FakeApi, sqlite_path: Path
) -> None:
    api.misbehave([faults.status(429, retry_after="7200")])
    async with process(sqlite_path) as one, opened(api.url, KEYS) as source:
        with pytest.raises(Again, match="429") as raised:
            await run(one, source)
        assert 7100 < raised.value.delay <= 7200
        jobs = SqliteJobs(one.database)
        await jobs.enqueue([NewJob("sync", "api")])
        due = await jobs.due(Want(1))
        assert due is not None and 7100 < due <= 7200, "nor do the source's other jobs run"


async def test_a_stream_that_someone_else_polls_is_tried_again_soon(api: FakeApi, sqlite_path: Path) -> None:
    async with process(sqlite_path) as one, opened(api.url, KEYS) as source:
        assert await one.leases.acquire(stream_lease(STREAM), one.holder, TTL)
        with pytest.raises(Again, match="another process polls") as raised:
            await run(one, source)
    assert raised.value.delay == HELD_DELAY
    assert api.requests == []


async def test_a_run_that_is_stopped_is_given_back(api: FakeApi, sqlite_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    async with process(sqlite_path) as one, opened(api.url, KEYS) as source:
        with pytest.raises(Again, match="stopped"):
            await run(one, source, stop)


async def test_a_run_that_loses_its_lease_drops_the_work(api: FakeApi, sqlite_path: Path) -> None:
    def take_over(_: object) -> None:
        connection = sqlite3.connect(sqlite_path)
        with connection:
            connection.execute("UPDATE leases SET holder = 'here:2:b', fence = fence + 1")
        connection.close()

    async with process(sqlite_path) as one, opened(api.url, KEYS) as source:
        api.arrived = take_over
        with pytest.raises(Superseded):
            await run(one, source)
    assert api.requests


@pytest.mark.parametrize("payload", [b"{}", b'{"stream":5}', b'{"stream":"orders"}'])
async def test_a_job_that_names_no_stream_of_the_configuration_is_a_mistake(
    api: FakeApi, sqlite_path: Path, payload: bytes
) -> None:
    async with process(sqlite_path) as one, opened(api.url, KEYS) as source:
        with pytest.raises(ConfigError):
            await run(one, source, wanted=job(payload))
