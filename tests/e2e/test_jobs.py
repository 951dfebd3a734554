"""Jobs as a person meets them, with real workers: what is told when one dies, and what the commands then say and do."""

import asyncio
import json
import os
import signal
from pathlib import Path

from tests.contract.states import open_state
from tests.contract.test_job_desk import change
from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request

FILE = """
version: 1
notify: {url: "${env:HOOK}"}
tasks:
  report: {call: "reports:monthly", attempts: 1}
"""
REPORTS = """
import pathlib

def monthly(context):
    if not pathlib.Path("mended").exists():
        raise RuntimeError("the disk is full")
"""


async def test_doctor_looks_at_kafka_and_postgres_and_says_which_of_them_is_away(
    tmp_path: Path, servers: Engine
) -> None:
    (tmp_path / "ingest.yaml").write_text("version: 1\n")
    well = (await Ingest(tmp_path, servers)("doctor", "--json")).json
    assert [one["said"].partition(";")[0] for one in well if one["about"].startswith("kafka")] == ["it answers"]
    assert {one["level"] for one in well} == {"good"}
    away = {**servers.environment, "INGEST_LOG_URL": "kafka://127.0.0.1:1"}
    ill = (await Ingest(tmp_path, Engine("", away))("doctor", "--json", code=1)).json
    assert [one["about"] for one in ill if one["level"] == "act"] == ["kafka://127.0.0.1:1"]
    await Ingest(tmp_path, servers)("backup", "copies", code=2)


async def test_doctor_says_first_that_tables_are_missing(tmp_path: Path, bare_postgres_url: str) -> None:
    (tmp_path / "ingest.yaml").write_text("version: 1\n")
    ingest = Ingest(tmp_path, Engine("", {"INGEST_STORE_URL": bare_postgres_url}))
    found = (await ingest("doctor", "--json", code=1)).json
    assert {one["todo"] for one in found if one["said"].startswith("not applied: 0001_spine")} == {"`ingest migrate`"}


async def test_a_dead_job_is_told_once_by_workers_that_are_killed_and_done_after_a_person_requeued_it(
    tmp_path: Path, postgres_url: str
) -> None:
    (tmp_path / "ingest.yaml").write_text(FILE)
    (tmp_path / "reports.py").write_text(REPORTS)
    arrived: asyncio.Queue[str] = asyncio.Queue()
    async with FakeApi() as api, open_state(postgres_url) as state:
        api.routes["/hooks/x"] = lambda request: Answer(request, body=b"ok")

        def hear(request: Request) -> None:
            arrived.put_nowait(json.loads(request.body)["text"])

        environment = {"HOOK": f"{api.url}/hooks/x", "INGEST_LOG_FORMAT": "json"}
        ingest = Ingest(tmp_path, Engine("", {"INGEST_STATE_URL": postgres_url}), **environment)
        enqueued = (await ingest("jobs", "enqueue", "task:report", "--json")).json
        await ingest("worker", "--once", code=1)
        first = await ingest.start("worker", "--ops", "off")

        def kill(request: Request) -> None:
            hear(request)
            os.kill(first.pid, signal.SIGKILL)  # it has told, and not written that down

        api.arrived = kill
        assert "RuntimeError: the disk is full" in await asyncio.wait_for(arrived.get(), 60)
        await first.communicate()
        api.arrived = hear
        await change(state, "UPDATE ingest.incidents SET next_try_at = opened_at")  # as if a long time had passed
        workers = [await ingest.start("worker", "--ops", "127.0.0.1:0") for _ in range(2)]
        try:
            assert f"job {enqueued['id']} is dead" in await asyncio.wait_for(arrived.get(), 60)
            (tmp_path / "mended").touch()
            await ingest("jobs", "requeue", "--all-dead", "--kind", "task:report", "--yes")
            watching = await ingest.start("jobs", "summary", "--watch", "--json")
            assert watching.stdout is not None
            async with asyncio.timeout(60):
                while not json.loads(await watching.stdout.readline())["sources"][0]["done_1h"]:
                    pass
            watching.send_signal(signal.SIGINT)
            await watching.communicate()
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            ended = [await worker.communicate() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], ended
    assert arrived.empty(), "each incident is told once"
    assert watching.returncode == 0
