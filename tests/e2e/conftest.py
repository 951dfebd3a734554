"""Both engines for every test that asks for `engine`."""

from typing import cast

import pytest

from tests.e2e.command import Engine


@pytest.fixture(params=["embedded", "kafka and postgres"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "embedded":
        return Engine("embedded", {})
    return cast(Engine, request.getfixturevalue("servers"))


@pytest.fixture
def servers(kafka_url: str, postgres_url: str) -> Engine:
    return Engine("kafka and postgres", {"INGEST_LOG_URL": kafka_url, "INGEST_STORE_URL": postgres_url})
