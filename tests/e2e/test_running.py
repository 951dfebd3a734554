"""`ingest run` without `--once`: what has a schedule becomes jobs, what is polled all the time stands by."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest_asyncio

from tests.e2e.command import Engine, Ingest
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


async def test_what_is_scheduled_is_polled_at_once_as_a_job_beside_what_stands_by(
    api: FakeApi, engine: Engine, tmp_path: Path
) -> None:
    for name in ("hourly", "yearly", "always"):
        api.serve(name, numbered(30), page_size=10)
    source = configured(
        tmp_path,
        api,
        """
      hourly: {path: /hourly, every: 1h}
      yearly: {path: /yearly, cron: "0 0 1 1 *"}
      gone: {path: /gone, every: 1h}
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
            ended = {"hourly": "complete", "always": "complete", "gone": "failed"}
            labels = [f'{{outcome="{how}",source="{source}",stream="{name}"}}' for name, how in ended.items()]
            ready = (await client.get(metrics.replace("/metrics", "/readyz"))).status_code == 200
            return ready and all(f"ingest_source_polls_total{one}" in text for one in labels)

        async def reported() -> bool:
            return (tmp_path / "done").exists()

        await until(polled)
        await until(reported)
    found = (await ingest("jobs", "list", "--json")).json
    assert sorted((job["state"], job["kind"], job["schedule"]) for job in found) == [
        ("dead", "sync", f"{source}/gone"), ("done", "sync", f"{source}/hourly"), ("done", "task:other", None),
        ("done", "task:report", "task:report"),
    ]  # fmt: skip
    assert (await ingest("workers", "--json")).json == [], "it said that it left"
