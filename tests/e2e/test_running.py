"""`ingest run` without `--once`: what has a schedule becomes jobs, what is polled all the time stands by."""

import asyncio
import json
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest_asyncio

from tests.e2e.command import Engine, Ingest
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.names import unique

EMBEDDED = Engine("embedded", {})


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        yield server


def configured(folder: Path, api: FakeApi, streams: str, more: str = "") -> str:
    """The name of the source."""
    source = unique("shop")
    (folder / "ingest.yaml").write_text(f"""
version: 1
sources:
  {source}:
    base_url: {api.url}
    retry: {{attempts: 2, base: 1ms, cap: 2ms}}
    defaults: {{records: $.data, id: id, paginate: {{type: next_url, from: $.next}}}}
    streams:
{streams}
topics: {{partitions: 3, replication: 1, min_insync: 1, durability: relaxed}}
{more}
""")
    return source


@asynccontextmanager
async def running(ingest: Ingest, *arguments: str) -> AsyncIterator[str]:
    """`ingest run` while the body does; yields the address of its metrics. It ends well when it is asked to."""
    process = await ingest.start("run", "--ops", "127.0.0.1:0", "--log-format", "json", *arguments)
    said = list[bytes]()
    assert process.stderr is not None
    listening = asyncio.get_running_loop().create_future()

    async def listen() -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            said.append(line)
            if b"metrics and health" in line:
                listening.set_result(str(json.loads(line)["url"]))

    reading = asyncio.create_task(listen())
    try:
        yield await asyncio.wait_for(listening, 60)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 60)
        await reading
    assert code == 0, b"".join(said).decode()


async def until(ready: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await ready():  # noqa: ASYNC110 - another process is asked
            await asyncio.sleep(0.05)


async def jobs(ingest: Ingest, state: str) -> list[str]:
    """Source, stream or task, and how often it was tried."""
    found = (await ingest("jobs", "list", "--state", state, "--json")).json
    return sorted(f"{job['schedule'].rpartition('/')[2]} {job['attempts']}" for job in found)


async def test_what_is_scheduled_is_polled_at_once_as_a_job_beside_what_stands_by(
    api: FakeApi, engine: Engine, tmp_path: Path
) -> None:
    for name in ("hourly", "nightly", "always"):
        api.serve(name, numbered(30), page_size=10)
    source = configured(
        tmp_path,
        api,
        """
      hourly: {path: /hourly, every: 1h}
      nightly: {path: /nightly, cron: "0 0 1 1 *"}
      always: {path: /always, every: 20ms}""",
        """
tasks:
  report: {call: "work:report", every: 1h}
  other: {call: "work:other"}""",
    )
    (tmp_path / "work.py").write_text("""
from pathlib import Path
from ingest.jobs import enqueue_async
async def report(context): await enqueue_async("task:other")
def other(context): Path("done").touch()
""")
    ingest = Ingest(tmp_path, engine)
    async with running(ingest) as metrics, httpx.AsyncClient() as client:

        async def polled() -> bool:
            text = (await client.get(metrics)).text
            labels = [f'{{outcome="complete",source="{source}",stream="{name}"}}' for name in ("hourly", "always")]
            ready = (await client.get(metrics.replace("/metrics", "/readyz"))).status_code == 200
            return ready and all(f"ingest_source_polls_total{one}" in text for one in labels)

        async def reported() -> bool:
            return (tmp_path / "done").exists()

        await until(polled)
        await until(reported)
    found = (await ingest("jobs", "list", "--state", "done", "--json")).json
    assert sorted((job["kind"], job["source"]) for job in found) == [
        ("sync", source), ("task:other", "other"), ("task:report", "report"),
    ]  # fmt: skip
    asked = {request.path for request in api.requests}
    assert asked == {"/hourly", "/always"}, "what is due next year is not"
    assert (await ingest("jobs", "list", "--state", "running", "--json")).json == []
    assert (await ingest("workers", "--json")).json == [], "it said that it left"


async def test_a_stream_that_fails_is_tried_again_and_one_that_cannot_work_waits_for_a_person(
    api: FakeApi, tmp_path: Path
) -> None:
    api.serve("away", numbered(10))
    streams = "      away: {path: /away, every: 1h}\n      gone: {path: /gone, every: 1h}"
    configured(tmp_path, api, streams)
    api.misbehave([faults.status(503)] * 2)
    ingest = Ingest(tmp_path, EMBEDDED)
    async with running(ingest):

        async def settled() -> bool:
            return await jobs(ingest, "done") == ["away 2"] and await jobs(ingest, "dead") == ["gone 1"]

        await until(settled)


async def test_a_narrower_selection_leaves_the_schedules_of_the_others_alone(api: FakeApi, tmp_path: Path) -> None:
    for name in ("one", "one_more"):
        api.serve(name, numbered(3))
    source = configured(
        tmp_path, api, "      one: {path: /one, every: 1h}\n      one_more: {path: /one_more, every: 1h}"
    )
    ingest = Ingest(tmp_path, EMBEDDED)

    async def done(*expected: str) -> None:
        async def is_so() -> bool:
            return await jobs(ingest, "done") == list(expected)

        await until(is_so)

    async with running(ingest):
        await done("one 1", "one_more 1")
    async with running(ingest, "--stream", "one"):

        async def looked() -> bool:
            return len((await ingest("workers", "--json")).json) == 1

        await until(looked)
    connection = sqlite3.connect(tmp_path / ".ingest" / "ingest.db")
    schedules = connection.execute("SELECT id, absent FROM schedules ORDER BY id").fetchall()
    connection.close()
    assert schedules == [(f"{source}/one", 0), (f"{source}/one_more", 0)]
