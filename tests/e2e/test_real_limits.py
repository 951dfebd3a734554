"""A real API that counts our requests and sends us away when they are too many."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e import readings
from tests.e2e.pipeline import EMBEDDED, Pipeline
from tests.harness.apis import pocketbase
from tests.harness.apis.orders import orders


@pytest.fixture
def api(tmp_path: Path) -> Iterator[pocketbase.PocketBase]:
    with closing(pocketbase.start(tmp_path)) as server:
        server.put(orders(1, 120))  # 24 pages
        yield server


async def test_an_api_that_sends_us_away_is_read_to_its_end_all_the_same(
    api: pocketbase.PocketBase, tmp_path: Path
) -> None:
    api.throttle(6)
    pipeline = Pipeline(tmp_path, EMBEDDED, readings.with_guests(api, "{}"))
    [run] = (await pipeline.ingest("run", "--once", "--stream", "orders", "--json")).json
    assert (run["outcome"], run["events"]) == ("complete", 120)
    assert run["retries"] > 0
    await pipeline.ingest("consume", "warehouse", "--once")
    assert await pipeline.newest() == api.held()


async def test_processes_that_share_a_rate_are_not_sent_away(api: pocketbase.PocketBase, tmp_path: Path) -> None:
    api.throttle(25)
    pipeline = Pipeline(tmp_path, EMBEDDED, readings.with_guests(api, "{rate: 20/s, burst: 1}"))
    ran = await asyncio.gather(
        *(pipeline.ingest("run", "--once", "--stream", stream, "--json") for stream in ("orders", "backwards"))
    )
    assert [(run["events"], run["retries"]) for done in ran for run in done.json] == [(120, 0), (120, 0)]
