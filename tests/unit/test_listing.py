"""A listing can be left after any page and goes on there; it ends whole, or says what is wrong."""

import itertools
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from ingest.errors import ConfigError, SourceChanged, SourceRefused
from ingest.redaction import Redactor
from ingest.sources.answers import Answer
from ingest.sources.auth.static import credentials
from ingest.sources.cursor import decode, describe
from ingest.sources.listing import Lister
from ingest.sources.pagination import Received
from ingest.sources.request import Request
from ingest.sources.template import Template
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.listings import Style
from tests.unit.sources import (
    PAGING,
    WHERE,
    Watching,
    configured,
    cursor,
    failure,
    ids,
    list_all,
    opened,
    read,
    read_until_it_fails,
    reply,
    say,
    targets,
)

TOKEN = PAGING["cursor"]
SINCE = {"incremental": {"type": "timestamp", "field": "updated_at", "since": {"param": "since"}}}
ALL = [row["id"] for row in numbered(10)]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


# ---- resuming


@pytest.mark.parametrize("style", PAGING)
@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_listing_goes_on_where_its_cursor_stands(api: FakeApi, style: Style, after: int) -> None:
    api.serve("events", numbered(10), style=style, page_size=3)
    async with opened(api.url, PAGING[style]) as source:
        before = await read(source, pages=after)
        rest = await read(source, before[-1].cursor)
    assert ids(before) + ids(rest) == ALL
    assert len(api.requests) == (5 if style == "keyset" else 4)  # which an empty page ends


async def test_a_finished_listing_begins_again_from_its_start(api: FakeApi) -> None:
    api.serve("events", numbered(4), style="cursor", page_size=3)
    async with opened(api.url, TOKEN) as source:
        pages = await read(source)
        assert ids(await read(source, pages[-1].cursor)) == ids(pages)
    assert "listing" not in cursor(pages[-1])


async def test_the_window_is_frozen_for_a_listing(api: FakeApi) -> None:
    rows = numbered(9)
    keys = {**TOKEN, "incremental": {**SINCE["incremental"], "order": "asc"}}
    listing = api.serve("events", rows[:3], style="cursor", page_size=3)
    async with opened(api.url, keys) as source:
        [first] = await read(source)
        listing.replace(rows)
        [second] = await read(source, first.cursor, pages=1)
        rest = await read(source, second.cursor)
    bound = f"since={rows[2]['updated_at'].replace(':', '%3A')}"
    assert all(bound in target for target in targets(api)[1:])
    assert cursor(second)["high_water"] > cursor(first)["high_water"]
    assert ids([second, *rest]) == [row["id"] for row in rows[2:]]


async def test_a_saved_cursor_is_readable_json(api: FakeApi) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=3)
    async with opened(api.url, TOKEN) as source:
        [first] = await read(source, pages=1)
    saved = cursor(first)
    assert saved["v"] == 1
    assert saved["listing"]["page"]["token"] == "t3"
    assert saved["updated_at"].endswith("Z")
    assert re.fullmatch("[0-9a-f]{16}", saved["fingerprint"])
    assert describe(first.cursor) == "after page 1"
    assert describe(None) is None


@pytest.mark.parametrize(
    "saved", [b"", b"null", b"[]", b'{"fingerprint":1}', b'{"v":99,"fingerprint":"x","updated_at":"y"}']
)
async def test_a_cursor_that_is_not_ours_is_a_matter_for_a_person(api: FakeApi, saved: bytes) -> None:
    async with opened(api.url) as source:
        with pytest.raises(ConfigError):
            await read(source, saved)


async def test_a_mark_that_does_not_fit_the_configuration_is_a_matter_for_a_person(api: FakeApi) -> None:
    api.serve("events", numbered(3), style="cursor")
    [page] = await list_all(api.url, {**TOKEN, **SINCE})
    async with opened(api.url, {**TOKEN, "incremental": {"type": "integer", "field": "amount"}}) as source:
        with pytest.raises(ConfigError, match="checkpoints reset"):
            await read(source, page.cursor)


# ---- the fingerprint

CHANGES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "path": ({"path": "/events?x=1"}, {}),
    "params": ({"params": {"kind": "a"}}, {}),
    "params of the source": ({}, {"params": {"kind": "a"}}),
    "method": ({"method": "POST"}, {}),
    "json": ({"json": {"a": 1}}, {}),
    "form": ({"form": {"a": 1}}, {}),
    "graphql": ({"graphql": {"query": "q"}}, {}),
    "list_style": ({"list_style": "comma"}, {}),
    "names of headers": ({"headers": {"X-A": "1"}}, {}),
    "records": ({"records": '["data"]'}, {}),
    "paginate": ({"paginate": {**TOKEN["paginate"], "max_pages": 7}}, {}),
    "incremental": ({"incremental": {**SINCE["incremental"], "lookback": "1s"}}, {}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_what_shapes_the_listing_restarts_it_and_keeps_the_mark(api: FakeApi, change: str) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=4)
    keys, above = CHANGES[change]
    ordered = {**TOKEN, "incremental": {**SINCE["incremental"], "order": "asc"}}
    async with opened(api.url, ordered) as source:
        [first] = await read(source, pages=1)
    if "incremental" in keys:
        keys = {"incremental": {**keys["incremental"], "order": "asc"}}
    async with opened(api.url, {**ordered, **keys}, above) as source:
        pages = await read(source, first.cursor)
    assert "cursor=" not in targets(api)[1]
    assert "since=" in targets(api)[1]
    assert ids(pages)[-1] == ALL[-1]


@pytest.mark.parametrize(
    ("keys", "above"),
    [
        ({"key": "account"}, {}),
        ({"version": "updated_at"}, {}),
        ({}, {"retry": {"attempts": 7}}),
        ({"headers": {"x-a": "2"}}, {}),
        ({}, {"limits": {"max_body": "1MB"}}),
    ],
)
async def test_what_does_not_shape_the_listing_does_not_restart_it(
    api: FakeApi, keys: dict[str, Any], above: dict[str, Any]
) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=4)
    before = {**TOKEN, "headers": {"X-A": "1"}}
    async with opened(api.url, before) as source:
        [first] = await read(source, pages=1)
    async with opened(api.url, {**before, **keys}, above) as source:
        assert ids(await read(source, first.cursor)) == ALL[4:]


async def test_a_rotated_secret_does_not_restart_the_listing(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=4)
    keys = {**TOKEN, "params": {"key": "${env:API_KEY}"}}
    monkeypatch.setenv("API_KEY", "first-secret-value")
    async with opened(api.url, keys) as source:
        [first] = await read(source, pages=1)
    monkeypatch.setenv("API_KEY", "other-secret-value")
    async with opened(api.url, keys) as source:
        assert ids(await read(source, first.cursor)) == ALL[4:]
    assert "key=other-secret-value" in targets(api)[1]


# ---- refused tokens


@pytest.mark.parametrize("status", [400, 404, 410, 422])
async def test_a_saved_token_that_is_refused_restarts_the_window_once(api: FakeApi, status: int) -> None:
    rows = numbered(10)
    keys = {**TOKEN, "incremental": {**SINCE["incremental"], "order": "asc"}}
    api.serve("events", rows[:1], style="cursor", page_size=4)
    async with opened(api.url, keys) as source:
        [before] = await read(source)
        api.serve("events", rows, style="cursor", page_size=4)
        [first] = await read(source, before.cursor, pages=1)
        api.misbehave([faults.status(status)])
        watch = Watching()
        pages = await read(source, first.cursor, watch)
    bound = f"since={rows[0]['updated_at'].replace(':', '%3A')}"
    assert ids(pages) == ALL
    assert bound in targets(api)[-3]
    assert "cursor=" not in targets(api)[-3]
    assert len(watch.restarts) == 1
    assert str(status) in watch.restarts[0]


async def test_no_delete_is_concluded_from_a_listing_whose_token_was_refused(api: FakeApi) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=4)
    async with opened(api.url, {**TOKEN, "deletes": {"sweep": {"every": "1d"}}}) as source:
        [first] = await read(source, pages=1)
        whole = await read(source, first.cursor)
        api.misbehave([faults.status(410)])
        restarted = await read(source, first.cursor)
    assert [pages[-1].sweep is not None and pages[-1].sweep.ends for pages in (whole, restarted)] == [True, False]


async def test_a_restart_that_is_refused_too_fails_the_stream(api: FakeApi) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=4)
    async with opened(api.url, TOKEN) as source:
        [first] = await read(source, pages=1)
        api.misbehave(itertools.repeat(faults.status(404)))
        pages, error = await read_until_it_fails(source, first.cursor)
    assert isinstance(error, SourceRefused)
    assert (pages, len(api.requests)) == ([], 3)


async def test_a_token_that_is_refused_later_than_on_the_first_request_fails_the_stream(api: FakeApi) -> None:
    api.serve("events", numbered(12), style="cursor", page_size=4)
    async with opened(api.url, TOKEN) as source:
        [first] = await read(source, pages=1)
        api.misbehave([faults.ok, faults.status(410)])
        pages, error = await read_until_it_fails(source, first.cursor)
    assert isinstance(error, SourceRefused)
    assert len(pages) == 1


@pytest.mark.parametrize("status", [401, 403, 405])
async def test_other_refusals_of_a_resumed_listing_are_no_matter_of_its_token(api: FakeApi, status: int) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=4)
    async with opened(api.url, TOKEN) as source:
        [first] = await read(source, pages=1)
        api.misbehave([faults.status(status)])
        _, error = await read_until_it_fails(source, first.cursor)
    assert isinstance(error, SourceRefused)
    assert len(api.requests) == 2


async def test_a_first_request_that_is_refused_is_not_made_again(api: FakeApi) -> None:
    say(api, [reply("gone", 410)])
    _, error = await failure(api.url, TOKEN)
    assert isinstance(error, SourceRefused)
    assert len(api.requests) == 1


async def test_a_restart_resets_the_guard_against_loops(api: FakeApi) -> None:
    api.serve("events", numbered(4), style="cursor", page_size=4)
    async with opened(api.url, TOKEN) as source:
        api.serve("events", numbered(8), style="cursor", page_size=4)
        [first] = await read(source, pages=1)
        api.misbehave([faults.status(400)])
        assert ids(await read(source, first.cursor)) == ALL[:8]


# ---- answers that are no pages


async def test_a_missing_list_fails_the_stream_and_names_the_lists_and_the_place(api: FakeApi) -> None:
    api.serve("events", numbered(3))
    api.misbehave([faults.records_at("items")])
    pages, error = await failure(api.url, PAGING["next_url"])
    assert isinstance(error, SourceChanged)
    assert str(error).startswith(f"{WHERE}: GET {api.url}/events answered 200 without a list at `records: $.data`")
    assert "$.items (3)" in str(error)
    assert not pages


async def test_an_object_where_lines_may_be_meant_says_how_to_read_them(api: FakeApi) -> None:
    say(api, [reply('{"id":1}')])
    _, error = await failure(api.url, {"records": "$"})
    assert str(error).endswith("if that is one record of JSON Lines, write `format: jsonl`")


async def test_a_list_that_vanishes_later_keeps_what_was_read(api: FakeApi) -> None:
    api.serve("events", numbered(4), page_size=2)
    api.misbehave([faults.ok, faults.error_body({"error": "quota"})])
    pages, error = await failure(api.url, PAGING["next_url"])
    assert isinstance(error, SourceChanged)
    assert "quota" in str(error)
    assert "lists found: none" in str(error)
    assert len(ids(pages)) == 2


@pytest.mark.parametrize("body", ['{"data":null}', '{"data":{"id":1}}', '{"data":"none"}', "{}", "7"])
async def test_what_is_no_list_is_not_taken_for_an_empty_one(api: FakeApi, body: str) -> None:
    say(api, [reply(body)])
    _, error = await failure(api.url)
    assert isinstance(error, SourceChanged)


@pytest.mark.parametrize("status", [204, 205])
@pytest.mark.parametrize("style", PAGING)
async def test_no_content_is_an_empty_listing(api: FakeApi, style: Style, status: int) -> None:
    say(api, [reply(b"", status)])
    [only] = await list_all(api.url, PAGING[style])
    assert (only.records, only.stop) == ([], "no content")


@pytest.mark.parametrize("style", ["page", "offset"])
@pytest.mark.parametrize("totals", [True, False])
async def test_no_content_ends_a_count_like_an_empty_page(api: FakeApi, style: Style, totals: bool) -> None:
    """A total that says that there is more is not believed less for it."""
    api.serve("events", numbered(4), style=style, page_size=2)
    api.misbehave([faults.ok, faults.no_content])
    if totals:
        pages, error = await failure(api.url, PAGING[style])
        assert isinstance(error, SourceChanged)
        assert "incomplete: no content after" in str(error)
    else:
        pages = await list_all(api.url, {"paginate": style})
        assert pages[-1].stop == "no content"
    assert len(ids(pages)) == 2


@pytest.mark.parametrize("style", ["link", "next_url", "cursor", "object"])
async def test_no_content_where_a_page_was_named_ends_the_listing_and_is_noticed(api: FakeApi, style: Style) -> None:
    api.serve("events", numbered(4), style=style, page_size=2)
    api.misbehave([faults.ok, faults.no_content])
    watch = Watching()
    async with opened(api.url, PAGING[style]) as source:
        pages = await read(source, watch=watch)
    assert (len(ids(pages)), pages[-1].stop) == (2, "no content")
    assert [notice.kind for notice in watch.notices] == ["no_content"]


async def test_an_empty_answer_later_than_the_first_is_tried_again(api: FakeApi) -> None:
    api.serve("events", numbered(4), style="cursor", page_size=2)
    api.misbehave([faults.ok, faults.empty])
    assert ids(await list_all(api.url, TOKEN)) == ALL[:4]
    assert len(api.requests) == 3


@pytest.mark.parametrize("body", ["", " \r\n"])
async def test_an_empty_first_answer_is_an_empty_listing(api: FakeApi, body: str) -> None:
    say(api, [reply(body)])
    [only] = await list_all(api.url, TOKEN)
    assert only.stop == "no content"


async def test_a_first_page_without_a_good_record_fails_the_stream(api: FakeApi) -> None:
    say(api, [reply('{"data":[{"uid":1,"n":0},{"uid":2}]}')])
    pages, error = await failure(api.url)
    assert isinstance(error, SourceChanged)
    assert "`id` (id) is null or missing; it has uid, n" in str(error)
    assert not pages


@pytest.mark.parametrize("first", ['{"data":[{"uid":1}],"next_cursor":"a"}', '{"data":[{"id":1}],"next_cursor":"a"}'])
async def test_bad_records_alone_do_not_fail_a_page_of_one_nor_a_later_page(api: FakeApi, first: str) -> None:
    say(api, [reply(first), reply('{"data":[{"uid":2},{"uid":3}]}')])
    pages = await list_all(api.url, TOKEN)
    assert len(pages) == 2
    assert len(pages[1].refused) == 2


async def test_the_first_page_that_has_records_counts_as_the_first(api: FakeApi) -> None:
    say(api, [reply('{"data":[],"next_cursor":"a"}'), reply('{"data":[{"uid":2},{"uid":3}]}')])
    pages, error = await failure(api.url, TOKEN)
    assert isinstance(error, SourceChanged)
    assert len(pages) == 1


@pytest.mark.parametrize(
    "bad",
    [
        b'{"id":2,"x":01}',
        b'{"id":2,"x":"\x01"}',
        b'{"id":2,"x":1,"x":2}',
        b"17",
        b'{"id":null}',
    ],
)
async def test_a_bad_record_is_refused_alone_and_paging_goes_on(api: FakeApi, bad: bytes) -> None:
    say(api, [reply(b'{"data":[{"id":1},%s,{"id":3}],"next_cursor":"a"}' % bad), reply('{"data":[{"id":4}]}')])
    pages = await list_all(api.url, TOKEN)
    assert ids(pages) == ["1", "3", "4"]
    assert [refused.value for refused in pages[0].refused] == [bad]


async def test_records_keep_the_bytes_of_the_answer(api: FakeApi) -> None:
    raw = b'{ "b":1.10,"id": 18446744073709551616 ,\n"a":"\\u00e9" }'
    say(api, [reply(b'{"data":[ %s ]}' % raw)])
    [page] = await list_all(api.url)
    assert [(record.id, record.value) for record in page.records] == [("18446744073709551616", raw)]


# ---- any sequence of pages

PAGES = st.lists(st.lists(st.integers(0, 50), max_size=4), min_size=1, max_size=8)


def lister(keys: dict[str, Any]) -> Lister:
    source, stream = configured(keys=keys)
    scrub = Redactor().scrub
    return Lister(source, stream, Template(source, stream, scrub), credentials(None, {}), scrub)


def walk(rules: Lister, pages: list[list[int]], leave: frozenset[int]) -> tuple[list[Request], list[str], object]:
    """Read all pages, forgetting everything but the saved cursor after those in `leave`."""
    state = rules.opening.start(None, 1)
    asked, found, saved = [], [], b""
    for number, rows in enumerate(pages):
        asked.append(rules.asking.request(state.listing))
        last = number == len(pages) - 1
        body: dict[str, Any] = {"data": [{"id": n, "at": f"2024-01-01T00:00:{n:02}Z"} for n in rows]}
        listed = itertools.takewhile(len, pages)
        body |= {"next": None if last else f"t{number}", "total": sum(map(len, listed))}
        body |= {"continue": None if last else {"c": f"t{number}", "d": "-||"}}  # a text that does not count
        answer = Answer(json.dumps(body).encode())
        items = answer.records(("data",))
        assert items is not None
        page, state = rules.take(Received(asked[-1].url, {}, answer, items), state, 10**16, 10**16)
        found += [record.id for record in page.records]
        saved = page.cursor
        if page.stop is not None:
            break
        if number in leave:
            state = rules.opening.start(saved, 1)
    end = decode(saved)
    return asked, found, (end.high_water, end.listing)


@given(
    PAGES,
    st.frozensets(st.integers(0, 8)),
    st.sampled_from(["cursor", "next_url", "page", "offset", "object", "keyset"]),
    st.booleans(),
)
def test_a_listing_that_is_left_and_resumed_makes_the_same_requests_and_yields_the_same_records(
    pages: list[list[int]], leave: frozenset[int], style: str, ordered: bool
) -> None:
    paginate = {
        "cursor": {"type": "cursor", "from": "$.next", "param": "c"},
        "next_url": {"type": "next_url", "from": "$.next"},
        "page": {"type": "page"},
        "offset": {"type": "offset", "total": "$.total"},
        "object": {"type": "object", "from": "$.continue"},
        "keyset": {"type": "keyset", "fields": {"at": "from", "id": "after"}},
    }[style]
    incremental = {
        "type": "timestamp",
        "field": "at",
        "since": {"param": "since"},
        "order": "asc" if ordered and style not in ("page", "offset") else "none",  # those begin again at the mark
    }
    rules = lister({"paginate": paginate, "incremental": incremental})
    assert walk(rules, pages, frozenset()) == walk(rules, pages, leave)
