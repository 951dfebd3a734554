"""Processes that poll one source together never ask it faster than is configured, whoever comes, goes or is killed."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from migrations.runner import migrate
from tests.contract.states import open_state
from tests.harness import postgres as postgres_server
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.harness.names import unique

RATE, BURST = 200, 10
LIMITS = json.dumps({"rate": f"{RATE}/s", "burst": BURST})
TINY = 1e-6  # of a request: what floating point may lose


class Counter:
    """A real API that notes when each request arrived, by the machine's monotonic clock."""

    def __init__(self, api: FakeApi) -> None:
        self.url = f"{api.url}/ask"
        self.arrived: dict[str, float] = {}
        self.half = asyncio.Event()  # this many requests were made
        self.half_at = 10**9
        api.routes["/ask"] = self._answer

    def _answer(self, request: Request) -> Answer:
        self.arrived[request.query["id"]] = time.monotonic()
        if len(self.arrived) >= self.half_at:
            self.half.set()
        return Answer(request, body=b"[]")


@pytest_asyncio.fixture
async def counter() -> AsyncIterator[Counter]:
    async with FakeApi() as api:
        yield Counter(api)


@pytest.fixture(params=["sqlite", "pooled_postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@asynccontextmanager
async def asker(
    state_url: str, api_url: str, name: str, requests: int, streams: int = 2
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Ready, and waiting for the word."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.contract.asker"),
        *(state_url, api_url, name, LIMITS, str(requests), str(streams)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def go(process: asyncio.subprocess.Process) -> Mapping[str, float]:
    out, _ = await process.communicate(b"go\n")
    found: Mapping[str, float] = json.loads(out or b"{}")
    return found


def most_at_once(times: Sequence[float]) -> float:
    """By how many requests the fullest stretch of time is over rate · t."""
    lowest, most = float("inf"), 0.0
    for n, moment in enumerate(sorted(times)):
        lowest = min(lowest, n - RATE * moment)
        most = max(most, n + 1 - RATE * moment - lowest)
    return most


async def test_three_processes_together_never_exceed_the_rate_and_each_gets_its_part(
    url: str, counter: Counter
) -> None:
    async with open_state(url), AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(asker(url, counter.url, f"p{n}", 200)) for n in range(3)]
        found = await asyncio.gather(*map(go, processes))
    left = {name: moment for part in found for name, moment in part.items()}
    assert len(left) == len(counter.arrived) == 600
    assert most_at_once(list(left.values())) <= BURST + TINY
    # what the API saw: each request is on its way for a while, and no longer than the slowest of them
    slowest = max(counter.arrived[name] - moment for name, moment in left.items())
    assert most_at_once(list(counter.arrived.values())) <= BURST + RATE * slowest + TINY
    first_done = min(max(part.values()) for part in found)
    assert min(sum(moment <= first_done for moment in part.values()) for part in found) >= 20


async def test_a_process_that_is_killed_leaves_the_rate_to_the_others(url: str, counter: Counter) -> None:
    counter.half_at = 60
    async with (
        open_state(url),
        asker(url, counter.url, "stays", 100) as stays,
        asker(url, counter.url, "dies", 1_000_000) as dies,
    ):
        assert dies.stdin is not None
        dies.stdin.write(b"go\n")
        going = asyncio.create_task(go(stays))
        await counter.half.wait()
        os.kill(dies.pid, 9)
        left = await going
    assert len(left) == 100
    slowest = max(counter.arrived[name] - moment for name, moment in left.items())
    assert most_at_once(list(left.values())) <= BURST + TINY
    assert sum(name.startswith("stays") for name in counter.arrived) == 100
    assert slowest >= 0


async def test_while_postgres_is_away_what_was_taken_is_used_up_and_then_it_goes_on(
    tmp_path: Path, counter: Counter
) -> None:
    server = postgres_server.start(tmp_path)
    counter.half_at = 60
    try:
        url = await server.create_database(unique("rates"))
        await migrate(url)
        async with asker(url, counter.url, "p", 300) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"go\n")
            await counter.half.wait()
            server.kill()
            assert await process.stdout.readline() == b"the state store is away\n"
            at_most = len(counter.arrived) + 2  # one of each stream may be on its way
            server.restart()
            assert 60 <= len(counter.arrived) <= at_most < 300
            left = await go(process)
    finally:
        server.close()
    assert len(left) == len(counter.arrived) == 300
    assert most_at_once(list(left.values())) <= BURST + TINY
