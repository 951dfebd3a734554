"""A pipeline on each engine, of the test's own; whatever it started is gone afterwards."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chaos.pipeline import Pipeline, prepare
from tests.harness.fake_api import FakeApi


@pytest.fixture(params=["sqlite", "kafka"])
def servers(request: pytest.FixtureRequest, sqlite_path: Path) -> tuple[str, str | None]:
    """The embedded SQLite file, or Postgres and Kafka. A test of one engine names it with `indirect`."""
    if request.param == "sqlite":
        return str(sqlite_path), None
    bootstrap = str(request.getfixturevalue("kafka_url")).removeprefix("kafka://")
    return str(request.getfixturevalue("postgres_url")), bootstrap


@pytest_asyncio.fixture
async def pipeline(servers: tuple[str, str | None], tmp_path: Path) -> AsyncIterator[Pipeline]:
    async with FakeApi(log_path=tmp_path / "served.jsonl") as api:
        pipeline = await prepare(tmp_path, api, *servers)
        try:
            yield pipeline
        finally:
            for process in pipeline.processes:
                process.kill()
