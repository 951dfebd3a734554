"""A real OAuth 2 server before a real API: access tokens end amid a listing, and refresh tokens work once."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e import readings
from tests.e2e.pipeline import EMBEDDED, Pipeline
from tests.harness.apis import json_server, oauth
from tests.harness.apis.orders import orders

CLIENTS = {
    "machine": "client_id: machine, send_as: basic, scopes: [orders:read]",
    "machine-post": "client_id: machine-post",
    "person": 'client_id: person, send_as: basic, grant: refresh_token, refresh_token: "${env:REFRESH}"',
}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[json_server.JsonServer]:
    directory = tmp_path / "api"
    directory.mkdir()
    with closing(json_server.start(directory)) as server:
        server.put(orders(1, 120))
        yield server


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_listing_goes_on_where_its_token_was_revoked(
    client: str, api: json_server.JsonServer, tmp_path: Path
) -> None:
    with closing(oauth.start(tmp_path / "gate", api.url, client, uses=7)) as gate:
        pipeline = Pipeline(tmp_path, EMBEDDED, readings.with_oauth(gate, CLIENTS[client]))
        assert (await pipeline.sync("--stream", "orders")).inserted == 120
        assert await pipeline.newest() == api.held()
        assert gate.seen() == oauth.Tokens(good=4, refused=3)  # 24 pages
        api.put(orders(121, 125))
        assert (
            await pipeline.sync("--stream", "orders")
        ).inserted == 5  # another process, with what is left of the tokens


async def test_processes_that_share_a_refresh_token_take_turns_with_it_when_their_tokens_end(
    api: json_server.JsonServer, tmp_path: Path
) -> None:
    with closing(oauth.start(tmp_path / "gate", api.url, "person", lifetime=1)) as gate:
        pipeline = Pipeline(tmp_path, EMBEDDED, readings.with_oauth(gate, CLIENTS["person"], size=1))
        streams = ("orders", "backwards")
        await asyncio.gather(*(pipeline.ingest("run", "--once", "--stream", stream) for stream in streams))
        await pipeline.ingest("consume", "warehouse", "--once")
        assert await pipeline.newest("orders") == await pipeline.newest("backwards") == api.held()
        assert gate.seen().good > 1
