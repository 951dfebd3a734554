"""A process that is killed with a new refresh token in its hands leaves it to the next one, once it was used at all."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi
from tests.harness.issuer import Issuer
from tests.harness.listings import Answer, Request
from tests.unit.sources import reply

ENVIRONMENT = {"FIRST": "the-first-refresh-token", "CLIENT_SECRET": "client-secret"}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


def configured(folder: Path, api: FakeApi) -> Ingest:
    oauth2 = {
        "token_url": f"{api.url}/token",
        "grant": "refresh_token",
        "client_id": "client",
        "client_secret": "${env:CLIENT_SECRET}",
        "refresh_token": "${env:FIRST}",
    }
    stream = {"path": "/events", "records": "$.data", "id": "id"}
    source = {"base_url": api.url, "auth": {"oauth2": oauth2}, "streams": {"events": stream}}
    (folder / "ingest.yaml").write_text(json.dumps({"version": 1, "sources": {"api": source}}))
    return Ingest(folder, Engine("embedded", {}), **ENVIRONMENT)


async def test_what_was_shown_to_the_api_is_what_the_next_process_has(tmp_path: Path, api: FakeApi) -> None:
    issuer = Issuer(refresh_token=ENVIRONMENT["FIRST"])
    api.routes["/token"] = issuer.token
    ingest = configured(tmp_path, api)
    process = await ingest.start("run", "--once")

    def kill(request: Request) -> Answer:
        os.kill(process.pid, signal.SIGKILL)
        return Answer(request, cut=0.0)

    api.routes["/events"] = kill
    await process.communicate()
    assert process.returncode == -signal.SIGKILL
    api.routes["/events"] = issuer.guarded(reply('{"data":[{"id":1}]}'))
    await ingest("run", "--once")
    assert (issuer.given, issuer.reused) == (1, 0)
    issuer.good.clear()
    await ingest("run", "--once")
    assert (issuer.given, issuer.reused) == (2, 0)


async def test_a_token_that_was_on_its_way_is_lost_with_the_process_and_the_next_one_says_what_to_do(
    tmp_path: Path, api: FakeApi
) -> None:
    issuer = Issuer(refresh_token=ENVIRONMENT["FIRST"], pause=60.0)
    ingest = configured(tmp_path, api)
    process = await ingest.start("run", "--once")

    def kill(request: Request) -> Answer:
        asyncio.get_running_loop().call_soon(os.kill, process.pid, signal.SIGKILL)
        return issuer.token(request)

    api.routes["/token"] = kill
    await process.communicate()
    api.routes["/token"], issuer.pause = issuer.token, 0.0
    refused = await ingest("run", "--once", code=1)
    assert "invalid_grant" in refused.out
    assert "look at `refresh_token`" in " ".join(refused.out.split())
    issuer.refresh_token = ingest.environment["FIRST"] = "the-refresh-token-of-a-new-login"
    api.routes["/events"] = issuer.guarded(reply('{"data":[{"id":1}]}'))
    await ingest("run", "--once")
