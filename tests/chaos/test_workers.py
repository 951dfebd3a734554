"""Workers that are killed, frozen and stopped in the middle of a task: whatever happens to them, the job is done."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from ingest.jobs import enqueue_async
from tests.chaos.processes import HURRY, Process, until
from tests.contract.working import Queue, open_queue
from tests.harness.processes import tail
from tests.harness.proxy import Beside, Proxy

CONFIGURATION = """
version: 1
tasks:
  waits: {call: "deeds:waits"}
  stands: {call: "deeds:stands"}
  poison: {call: "deeds:poison", attempts: 2}
"""
DEEDS = '''
import asyncio, os
from pathlib import Path

def waits(context):
    """The first attempt ends when somebody writes into the pipe."""
    Path(f"began-{context.retries}").touch()
    if context.retries == 0:
        Path("pipe").read_text()
    Path(f"ended-{context.retries}").touch()

async def stands(context):
    Path(f"began-{context.retries}").touch()
    await asyncio.Event().wait()

def poison(context):
    os._exit(7)
'''


class Place(NamedTuple):
    folder: Path
    queue: Queue
    processes: list[Process]

    def start(self, **environment: str) -> Process:
        env = {"INGEST_STATE_URL": self.queue.url, HURRY: "1", **environment}
        process = Process(f"worker-{len(self.processes)}", ("ingest", "worker", "--ops", "off"), self.folder, env)
        self.processes.append(process)
        return process

    async def works_at(self, process: Process, attempt: int = 0) -> None:
        async def began() -> bool:
            return (self.folder / f"began-{attempt}").exists()

        await process.reaches(began)

    async def claims_end(self) -> None:
        """As if the time of all claims had passed, and that until the next attempt of what was lost before."""
        long_ago = "1" if self.queue.url.startswith("sqlite") else "to_timestamp(1)"
        await self.queue.asks(f"UPDATE {{jobs}} SET lease_until = {long_ago} WHERE state = 'running'")
        await self.delays_end()

    async def delays_end(self) -> None:
        await self.queue.asks("UPDATE {jobs} SET run_at = created_at WHERE state = 'pending'")

    async def dies(self, process: Process, code: int) -> None:
        async def gone() -> bool:
            await self.delays_end()
            return process.exitcode is not None

        await until(gone, lambda: f"{process.name} ends\n{tail(process.output)}")
        assert process.exitcode == code

    async def becomes(self, id: int, state: str) -> None:
        async def is_so() -> bool:
            await self.delays_end()
            return bool((await self.queue.row(id))["state"] == state)

        await until(is_so, lambda: f"{state}\n" + "\n".join(tail(process.output) for process in self.processes))


@pytest.fixture(params=["sqlite", "postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@asynccontextmanager
async def prepared(url: str, folder: Path) -> AsyncIterator[Place]:
    (folder / "ingest.yaml").write_text(CONFIGURATION)
    (folder / "deeds.py").write_text(DEEDS)
    os.mkfifo(folder / "pipe")
    async with open_queue(url) as queue:
        place = Place(folder, queue, [])
        try:
            yield place
        finally:
            for process in place.processes:
                process.kill()


@pytest_asyncio.fixture
async def place(url: str, tmp_path: Path) -> AsyncIterator[Place]:
    async with prepared(url, tmp_path) as place:
        yield place


async def enqueue(place: Place, task: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGEST_STATE_URL", place.queue.url)
        return (await enqueue_async(f"task:{task}", config=place.folder / "ingest.yaml")).id


async def test_a_job_whose_worker_is_killed_in_the_middle_is_done_by_another_once(place: Place) -> None:
    id = await enqueue(place, "waits")
    first = place.start()
    await place.works_at(first)
    first.kill()
    await place.claims_end()
    second = place.start()
    await place.becomes(id, "done")
    assert await place.queue.outcomes(id) == ["lost", "done"]
    second.send(signal.SIGTERM)
    assert await second.ended() == 0


async def test_a_worker_that_was_frozen_past_its_claim_is_told_that_it_lost_it(place: Place) -> None:
    """It goes on when it wakes up, ends its task and reports success: nobody believes it."""
    id = await enqueue(place, "waits")
    frozen = place.start()
    await place.works_at(frozen)
    async with place.queue.nobody_writes():  # one that is frozen in a transaction holds up all the others
        frozen.send(signal.SIGSTOP)
        await frozen.frozen()
    await place.claims_end()
    second = place.start()
    await place.becomes(id, "done")
    frozen.send(signal.SIGCONT)
    (place.folder / "pipe").write_text("go on")

    async def told() -> bool:
        return frozen.output.read_text().count("lost the job: its result does not count") == 1

    await frozen.reaches(told)
    assert await place.queue.outcomes(id) == ["lost", "done"]
    for process in (frozen, second):
        process.send(signal.SIGTERM)
        assert await process.ended() == 0
    assert await place.queue.outcomes(id) == ["lost", "done"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_worker_that_is_stopped_gives_its_job_back_and_burns_no_attempt(place: Place) -> None:
    id = await enqueue(place, "stands")
    worker = place.start()
    await place.works_at(worker)
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    row = await place.queue.row(id)
    assert (row["state"], row["attempts"], row["releases"]) == ("pending", 0, 1)
    assert await place.queue.outcomes(id) == ["released"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_task_that_ends_its_process_is_dead_when_its_attempts_are_used_up(place: Place) -> None:
    id = await enqueue(place, "poison")
    for _ in range(2):
        await place.dies(place.start(), 7)
        await place.claims_end()
    last = place.start()
    await place.becomes(id, "dead")
    row = await place.queue.row(id)
    assert (row["attempts"], row["dead_reason"]) == (2, "exhausted")
    assert await place.queue.outcomes(id) == ["lost", "lost"]
    last.send(signal.SIGTERM)
    assert await last.ended() == 0


async def test_a_job_goes_on_while_postgres_is_away_and_its_result_is_written_when_it_is_back(
    postgres_url: str, tmp_path: Path
) -> None:
    """Every connection of the worker is reset for a while, the heartbeat's too."""
    with Beside() as beside:
        port = urlsplit(postgres_url).port
        assert port is not None
        way = Proxy(beside, port)
        way.open()
        async with prepared(postgres_url, tmp_path) as place:
            id = await enqueue(place, "waits")
            worker = place.start(INGEST_STATE_URL=postgres_url.replace(f":{port}/", f":{way.port}/"))
            await place.works_at(worker)
            way.set("cut")
            (tmp_path / "pipe").write_text("go on")

            async def noticed() -> bool:
                return "cannot reach the jobs yet" in worker.output.read_text()

            await worker.reaches(noticed)
            assert (await place.queue.row(id))["state"] == "running"
            way.heal()
            await place.becomes(id, "done")
            assert await place.queue.outcomes(id) == ["done"]
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0
        way.close()
