"""Rows that move under an offset: with an overlap none is missed, whatever is removed or added while it is listed."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from ingest.errors import SourceChanged
from ingest.paths import parse
from ingest.sources.answers import Answer
from ingest.sources.pagination import Received, Stop, Token, paginator
from tests.harness.fake_api import FakeApi, numbered
from tests.unit.sources import Watching, configured, cursor, failure, ids, list_all, opened, page, read, reply, say

KEYS = {"paginate": {"type": "offset", "total": "$.total", "size_param": "limit", "size": 4, "overlap": 2}}
ALL = [row["id"] for row in numbered(12)]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


def offsets(api: FakeApi) -> list[int]:
    return [int(request.query["offset"]) for request in api.requests]


async def test_each_page_begins_with_the_last_rows_of_the_one_before(api: FakeApi) -> None:
    api.serve("events", numbered(9), style="offset", page_size=4)
    pages = await list_all(api.url, KEYS)
    assert offsets(api) == [0, 2, 4, 6]
    assert list(dict.fromkeys(ids(pages))) == ALL[:9]
    assert pages[-1].stop == "total reached (9 of 9)"


async def test_a_page_of_overlap_alone_ends_the_listing(api: FakeApi) -> None:
    say(api, [page(1, 2, 3, 4), page(3, 4, 5, 6), page(5, 6)])
    pages = await list_all(api.url, KEYS)
    assert pages[-1].stop == "only rows of the page before"
    assert offsets(api) == [0, 2, 4]


@pytest.mark.parametrize("cap", [1, 2, 3])
async def test_an_api_that_gives_fewer_rows_than_the_overlap_is_read_to_its_end(api: FakeApi, cap: int) -> None:
    api.serve("events", numbered(7), style="offset", page_size=cap)
    keys = {"paginate": {"type": "offset", "overlap": 5}}
    pages = await list_all(api.url, keys)
    assert list(dict.fromkeys(ids(pages))) == ALL[:7]


@pytest.mark.parametrize("removed", [1, 2, 3, 4])
@pytest.mark.parametrize("resumed", [True, False])
async def test_rows_that_are_removed_in_front_hide_none(api: FakeApi, removed: int, resumed: bool) -> None:
    rows = numbered(12)
    listing = api.serve("events", rows, style="offset", page_size=4)
    found = []
    async with opened(api.url, KEYS) as source:
        saved = None
        while True:
            stopped = False
            async for one in source.pages(saved, Watching()):
                found.append(one)
                saved, stopped = one.cursor, one.stop is not None
                if len(found) == 2:
                    listing.replace(rows[removed:])
                if resumed:
                    break
            if stopped:
                break
    assert set(ids(found)) == set(ALL)
    assert (sorted(offsets(api)) != offsets(api)) == (removed >= 2)  # it stepped back


async def test_stepping_back_goes_one_page_at_a_time_until_the_pages_meet(api: FakeApi) -> None:
    pages = [page(*range(9)[n : n + 4]) for n in (0, 2, 4)]
    say(api, [*pages, page(20, 21), page(20, 21), page(8, 20, 21), page(20, 21)])
    found = await list_all(api.url, {"paginate": {"type": "offset", "overlap": 2}})
    assert offsets(api) == [0, 2, 4, 6, 2, 0, 1]
    assert found[-1].stop == "only rows of the page before"


@pytest.mark.parametrize("gone", [page(), reply(b"", 204)])
async def test_an_empty_page_where_the_overlap_should_be_is_no_end(api: FakeApi, gone: Any) -> None:
    say(api, [page(1, 2, 3, 4), page(3, 4, 5, 6), gone, page(5, 6, 7), page(6, 7)])
    found = await list_all(api.url, KEYS)
    assert offsets(api) == [0, 2, 4, 0, 1]
    assert ids(found)[-2:] == ["6", "7"]


async def test_a_total_or_a_short_page_does_not_end_a_listing_whose_pages_do_not_meet(api: FakeApi) -> None:
    say(api, [page(1, 2, 3, 4, total=6), page(7, 8, total=6), page(4, 5, 6, 7, total=6), page(6, 7, 8), page(7, 8)])
    keys = {"paginate": {**KEYS["paginate"], "end": "short"}}
    found = await list_all(api.url, keys)
    assert "5" in ids(found)


async def test_rows_without_an_id_meet_by_their_content(api: FakeApi) -> None:
    say(api, [page(1, 2, 3, 4), page(3, 4, 5), page(4, 5)])
    assert (await list_all(api.url, {**KEYS, "id": []}))[-1].stop == "only rows of the page before"


async def test_a_row_that_changed_meanwhile_is_still_the_same_row_and_is_read_again(api: FakeApi) -> None:
    changed = reply('{"data":[{"id":3,"x":1},{"id":4},{"id":5}]}')
    say(api, [page(1, 2, 3, 4), changed, page(4, 5)])
    found = await list_all(api.url, KEYS)
    assert offsets(api) == [0, 2, 3]
    assert found[1].records[0].value == b'{"id":3,"x":1}'


async def test_an_overlap_is_no_violation_of_the_order(api: FakeApi) -> None:
    incremental = {"type": "timestamp", "field": "updated_at", "order": "asc"}
    api.serve("events", numbered(9), style="offset", page_size=4)
    async with opened(api.url, {**KEYS, "incremental": incremental}) as source:
        watch = Watching()
        found = await read(source, watch=watch)
    assert not watch.notices
    assert cursor(found[1])["high_water"].startswith("2023-11-14T22:13:26")


async def test_rows_that_the_next_page_repeats_are_remembered_although_the_mark_has_passed_them(api: FakeApi) -> None:
    incremental = {"type": "integer", "field": "id", "since": {"param": "from"}, "order": "asc"}
    say(api, [page(1, 2, 3, 4), page(3, 4, 5, 6), page(5, 6)])
    found = await list_all(api.url, {**KEYS, "incremental": incremental})
    assert [cursor(one)["high_water"] for one in found] == [4, 6, 6]
    assert [one.remember_from for one in found] == [1, 3, 6]


async def test_rows_in_another_order_each_time_fail_the_stream(api: FakeApi) -> None:
    turns = [page(*range(n, n + 4)) for n in range(0, 400, 10)]
    say(api, turns)
    _, error = await failure(api.url, KEYS)
    assert isinstance(error, SourceChanged)
    assert "ask the API to sort them" in str(error)
    assert len(api.requests) < 20


async def test_what_is_remembered_of_a_page_is_saved_and_bounded(api: FakeApi) -> None:
    say(api, [page(*range(3000))])
    async with opened(api.url, {"paginate": {"type": "offset", "overlap": 5}}) as source:
        [first] = await read(source, pages=1)
    assert len(cursor(first)["listing"]["page"]["before"]) == 1000
    assert len(first.cursor) < 20_000


CHANGES = st.lists(
    st.tuples(st.lists(st.integers(0, 40), max_size=12), st.lists(st.integers(0, 40), max_size=6)), max_size=12
)


@given(st.integers(0, 40), st.integers(2, 9), st.integers(1, 8), CHANGES)
def test_a_row_that_is_there_all_the_time_is_read_whatever_comes_and_goes(
    count: int, size: int, overlap: int, changes: list[tuple[list[int], list[int]]]
) -> None:
    _, stream = configured(keys={"paginate": {"type": "offset", "overlap": overlap}})
    rules = paginator(stream.paginate, "http://x", [parse("id")])
    rows = [{"id": n} for n in range(count)]
    stayed, found, fresh = set(range(count)), set(), 1000
    token: Token | Stop = rules.first()
    for turn in range(500):
        assert isinstance(token, Token)
        start = token.number or 0
        body = json.dumps(rows[start : start + size]).encode()
        answer = Answer(body)
        listed = answer.records(()) or []
        found |= {row["id"] for row in rows[start : start + size]}
        token = rules.after(token, Received("http://x", {}, answer, listed))
        if isinstance(token, Stop):
            break
        removed, added = changes[turn] if turn < len(changes) else ([], [])
        for at in removed:
            if at < len(rows):
                stayed.discard(rows.pop(at)["id"])
        for at in added:
            rows.insert(at, {"id": (fresh := fresh + 1)})
    assert isinstance(token, Stop)
    assert stayed <= found
