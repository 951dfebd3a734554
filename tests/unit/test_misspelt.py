"""Fields that no record has, and an id that several records share, are said where a listing begins."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.harness.fake_api import FakeApi, numbered
from tests.unit.sources import Watching, opened, read

ROWS = numbered(3)
SINCE = {"type": "timestamp", "field": "updated", "since": {"param": "since"}}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        yield api


async def told(
    api: FakeApi, keys: dict[str, Any], cursor: bytes | None = None, kind: str = "absent_field"
) -> list[str]:
    watch = Watching()
    async with opened(api.url, keys) as source:
        await read(source, cursor, watch)
    return [notice.message for notice in watch.notices if notice.kind == kind]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"key": "acount"}, "`acount` (`key`)"),
        ({"version": "updated", "occurred_at": "created.at"}, "`updated` (`version`), `created.at` (`occurred_at`)"),
        ({"incremental": SINCE}, "`updated` (`incremental.field`)"),
    ],
)
async def test_a_field_that_no_record_has_is_named_with_those_that_they_have(
    api: FakeApi, keys: dict[str, Any], named: str
) -> None:
    api.serve("events", ROWS)
    assert await told(api, keys) == [f"no record of the first page has {named}; it has id, account, updated_at, amount"]


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        (ROWS, {"key": "account", "version": "updated_at"}),
        ([*ROWS, {"id": 4, "k": None}], {"key": "k"}),  # null is there
        (ROWS[:2], {"key": "acount"}),  # some APIs leave out what is null
        ([{"id": 1, "parts": [{"n": 1}]}] * 3, {"id": "^.id", "key": "n", "transform": [{"explode": "parts"}]}),
        (ROWS, {"key": "next", "records": {"path": "$.data", "keep": {"next": "^.next"}}}),
    ],
)
async def test_what_may_be_right_is_not_said(api: FakeApi, rows: list[Any], keys: dict[str, Any]) -> None:
    api.serve("events", rows)
    assert not await told(api, keys)


async def test_records_that_came_later_say_nothing_of_a_name(api: FakeApi) -> None:
    api.serve("events", ROWS)
    keys = {"incremental": {**SINCE, "field": "updated_at"}, "key": "acount"}
    async with opened(api.url, keys) as source:
        [page] = await read(source)
    assert not await told(api, keys, page.cursor)


@pytest.mark.parametrize(
    ("accounts", "keys", "ids"),
    [
        ("aaab", {}, 2),
        ("aabc", {}, None),
        ("aaa", {}, None),
        ("aaaa", {"version": "updated_at"}, None),  # a list of versions
        ("aaaa", {"id": ["account", "id"]}, None),
    ],
)
async def test_an_id_that_most_records_share_with_another_is_said(
    api: FakeApi, accounts: str, keys: dict[str, Any], ids: int | None
) -> None:
    api.serve("events", [{"id": n, "account": one, "updated_at": str(n)} for n, one in enumerate(accounts)])
    said = await told(api, {"id": "account", **keys}, kind="repeated_ids")
    expected = f"the 4 records of the first page have {ids} ids: does `id` (account) tell records apart?"
    assert [one.partition(" Else")[0] for one in said] == ([expected] if ids else [])
