"""An API that gives no more than so many rows of one listing is read to its end, from one cursor value to the next."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from ingest.errors import SourceChanged
from ingest.redaction import Redactor
from ingest.sources import Page
from ingest.sources.answers import Answer
from ingest.sources.auth.static import Static
from ingest.sources.cursor import decode
from ingest.sources.listing import Lister
from ingest.sources.pagination import Received
from ingest.sources.template import Template
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.listings import Style
from tests.unit.sources import PAGING, Watching, configured, cursor, failure, ids, list_all, opened, page, read, say

CAP = 10
ALL = [row["id"] for row in numbered(25)]
BY_TIME = {"type": "timestamp", "field": "updated_at", "since": {"param": "since"}, "order": "asc"}


def capped(style: Style, cap: int = CAP, **incremental: Any) -> dict[str, Any]:
    paginate = PAGING[style]["paginate"]
    paginate = {**({"type": paginate} if isinstance(paginate, str) else paginate), "listing_cap": cap}
    return {**PAGING[style], "paginate": paginate, "incremental": {**BY_TIME, **incremental}}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


def bounds(api: FakeApi) -> list[str | None]:
    """The lower bounds that were asked for, one after the other."""
    return list(dict.fromkeys(request.query.get("since") for request in api.requests))


@pytest.mark.parametrize("style", PAGING)
async def test_a_listing_that_reaches_the_cap_begins_again_at_the_last_value(api: FakeApi, style: Style) -> None:
    api.serve("events", numbered(25), style=style, page_size=4).cap = CAP
    pages = await list_all(api.url, capped(style))
    assert list(dict.fromkeys(ids(pages))) == ALL
    ends = [numbered(25)[n]["updated_at"] for n in (9, 18)]
    assert bounds(api) == [None, *ends]
    assert [one.stop is None for one in pages] == [True] * (len(pages) - 1) + [False]


async def test_a_single_page_of_so_many_rows_is_such_a_listing(api: FakeApi) -> None:
    api.serve("events", numbered(25), page_size=CAP)
    pages = await list_all(api.url, {"paginate": {"type": "none", "listing_cap": CAP}, "incremental": BY_TIME})
    assert list(dict.fromkeys(ids(pages))) == ALL


@pytest.mark.parametrize("rows", [9, 10, 11])
async def test_a_listing_around_the_cap_is_read_to_its_end(api: FakeApi, rows: int) -> None:
    api.serve("events", numbered(rows), style="cursor", page_size=3).cap = CAP
    pages = await list_all(api.url, capped("cursor"))
    assert list(dict.fromkeys(ids(pages))) == ALL[:rows]
    assert len(bounds(api)) == (1 if rows < CAP else 2)


async def test_a_whole_cap_inside_one_value_fails_the_stream(api: FakeApi) -> None:
    same = [{**row, "updated_at": "2024-01-01T00:00:00Z"} for row in numbered(12, first=6)]
    api.serve("events", [*numbered(5), *same], style="cursor", page_size=5).cap = CAP
    pages, error = await failure(api.url, capped("cursor"))
    assert isinstance(error, SourceChanged)
    assert "a whole `listing_cap`, have one value" in str(error)
    assert "2024-01-01T00:00:00Z" in str(error)
    assert len(ids(pages)) >= 10


async def test_rows_without_a_place_to_begin_again_fail_the_stream(api: FakeApi) -> None:
    say(api, [page(*range(10), next_cursor=None)])
    _, error = await failure(api.url, capped("cursor"))
    assert "a whole `listing_cap`" in str(error)


async def test_a_bound_that_is_coarser_than_the_rows_is_no_violation_of_their_order(api: FakeApi) -> None:
    rows = [{"id": str(n), "updated_at": f"2024-01-{1 + n // 4:02}T0{n % 4}:00:00Z"} for n in range(20)]
    api.serve("events", rows, style="cursor", page_size=3).cap = 7
    async with opened(api.url, capped("cursor", cap=7, format="%Y-%m-%d")) as source:
        watch = Watching()
        pages = await read(source, watch=watch)
    assert list(dict.fromkeys(ids(pages))) == [row["id"] for row in rows]
    assert not watch.notices


async def test_rows_out_of_order_fail_the_stream(api: FakeApi) -> None:
    rows = numbered(12)
    api.serve("events", rows[::-1], style="cursor", page_size=5).cap = CAP
    _, error = await failure(api.url, capped("cursor"))
    assert isinstance(error, SourceChanged)
    assert "see `order`" in str(error)


async def test_the_upper_bound_and_the_pages_so_far_stay(api: FakeApi) -> None:
    api.serve("events", numbered(25), style="cursor", page_size=5).cap = CAP
    async with opened(api.url, capped("cursor", until={"param": "until"})) as source:
        pages = await read(source)
    assert list(dict.fromkeys(ids(pages))) == ALL
    assert len({request.query["until"] for request in api.requests}) == 1
    assert cursor(pages[2])["listing"]["n"] == 3
    api.requests.clear()
    _, error = await failure(
        api.url, {**capped("cursor"), "paginate": {**capped("cursor")["paginate"], "max_pages": 4}}
    )
    assert "max_pages" in str(error)


async def test_each_window_may_be_cut_off(api: FakeApi) -> None:
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    times = [(start + timedelta(minutes=6 * n)).strftime("%Y-%m-%dT%H:%M:%SZ") for n in range(30)]
    rows = [{"id": f"{n:02}", "updated_at": time} for n, time in enumerate(times)]
    api.serve("events", rows, style="cursor", page_size=4).cap = CAP
    bounded: dict[str, Any] = {"window": "100m", "until": {"param": "until"}}
    bounded["since"] = {"param": "since", "first": times[0]}
    pages = await list_all(api.url, capped("cursor", **bounded))
    assert list(dict.fromkeys(ids(pages))) == [row["id"] for row in rows]
    assert len({request.query["until"] for request in api.requests}) == 2
    assert len(bounds(api)) > 3


@pytest.mark.parametrize("lookback", ["0s", "1h"])
async def test_it_goes_on_there_when_it_is_left_after_any_page(api: FakeApi, lookback: str) -> None:
    api.serve("events", numbered(25), style="cursor", page_size=4).cap = CAP
    found: list[Page] = []
    saved = None
    async with opened(api.url, capped("cursor", lookback=lookback)) as source:
        while not found or found[-1].stop is None:
            found += await read(source, saved, pages=1)
            saved = found[-1].cursor
    assert list(dict.fromkeys(ids(found))) == ALL
    assert len(api.requests) == len(found) == 8


@pytest.mark.parametrize("form", ["rfc3339", "%Y-%m-%d"])
@pytest.mark.parametrize(("style", "overlap"), [("cursor", 0), ("page", 0), ("offset", 0), ("offset", 1)])
async def test_rows_that_come_again_behind_a_cap_are_counted_once(
    api: FakeApi, style: Style, overlap: int, form: str
) -> None:
    rows = [{"id": str(n), "updated_at": f"2024-01-{1 + n // 3:02}T0{n % 3}:00:00Z"} for n in range(20)]
    api.serve("events", rows, style=style, page_size=4).cap = 7
    wanted = capped(style, cap=7, format=form)
    wanted["paginate"] |= {"overlap": overlap} if overlap else {}
    pages = await list_all(api.url, {**wanted, "expect": {"min_records": 20}})
    assert len(ids(pages)) > 20
    assert cursor(pages[-1])["rows"] == 20
    _, error = await failure(api.url, {**wanted, "expect": {"min_records": 21}})
    assert "incomplete: 20 records" in str(error)


async def test_rows_that_come_again_after_a_listing_was_left_are_counted_once(api: FakeApi) -> None:
    api.serve("events", numbered(25), style="page", page_size=4)
    keys = {"paginate": {"type": "page"}, "incremental": BY_TIME}
    async with opened(api.url, keys) as source:
        pages = await read(source, pages=2)
        pages += await read(source, pages[-1].cursor)
    assert len(ids(pages)) == 26
    assert cursor(pages[-1])["rows"] == 25


PLAIN: dict[str, Any] = {"type": "offset"}


@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(2, 12),
    st.integers(1, 5),
    st.sampled_from([PLAIN, {**PLAIN, "overlap": 2}]),
)
def test_every_row_is_read_unless_more_share_a_value_than_the_api_gives(
    values: list[int], cap: int, size: int, paginate: dict[str, Any]
) -> None:
    keys = {
        "paginate": {**paginate, "listing_cap": cap},
        "incremental": {"type": "integer", "field": "v", "since": {"param": "since"}, "order": "asc"},
    }
    source, stream = configured(keys=keys)
    scrub = Redactor().scrub
    rules = Lister(source, stream, Template(source, stream, scrub), Static({}, {}, ()), scrub)
    rows = [{"id": n, "v": v} for n, v in enumerate(sorted(values))]
    state, found = rules.opening.start(None, 1), set()
    try:
        while True:
            bound, place = state.listing.window[0], state.listing.page.number or 0
            listed = [row for row in rows if bound is None or row["v"] >= int(bound)][:cap]
            answer = Answer(json.dumps({"data": listed[place : place + size]}).encode())
            one, state = rules.take(Received("http://x", {}, answer, answer.records(("data",)) or []), state, 1, 1)
            found |= {record.id for record in one.records}
            if one.stop is not None:
                break
    except SourceChanged:
        assert max(Counter(values).values()) >= cap
    else:
        assert found == {str(row["id"]) for row in rows}
        assert decode(one.cursor).rows == len(rows)
