"""What starts the next run is saved without our secrets, and sent only to what it was saved for."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ingest.report import Outcome
from ingest.sources import Page
from tests.harness.fake_api import FakeApi
from tests.unit.polling import poll, process
from tests.unit.sources import Watching, cursor, ids, list_all, opened, read, read_until_it_fails, reply, say, targets

SECRET = "s3cr3t-canary-key"
TOKEN = {"type": "cursor", "from": "$.next", "param": "c"}
KEYSET = {"type": "keyset", "fields": {"at": "after_at", "id": "after_id"}}
BY_TOKEN: dict[str, Any] = {"paginate": TOKEN, "incremental": {"type": "token", "from": "$.sync", "param": "sync"}}
BY_KEYS: dict[str, Any] = {"paginate": KEYSET, "incremental": "keyset"}
BY_KEYS_AND_TIME: dict[str, Any] = {"paginate": KEYSET, "incremental": {"type": "keyset", "field": "at"}}
BY_ID: dict[str, Any] = {"paginate": {**KEYSET, "fields": {"id": "after_id"}}, "incremental": "keyset"}
BY_TIME: dict[str, Any] = {
    "paginate": TOKEN,
    "incremental": {"type": "timestamp", "field": "at", "since": {"param": "since"}},
}
WHOLE: dict[str, Any] = {"paginate": TOKEN}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", SECRET)


def rows(*numbers: object, **rest: Any) -> Any:
    data = [{"id": number, "at": "2024-01-01T00:00:00Z"} for number in numbers]
    return reply(json.dumps({"data": data, **rest}))


def with_key(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {**keys, "params": {"api_key": "${env:API_KEY}"}}


def none_saved(pages: list[Page]) -> bool:
    return not any(SECRET.encode() in page.cursor for page in pages)


# ---- secrets

ECHO = f"https://api.example.com/changes?api_key={SECRET}&from=9"


@pytest.mark.parametrize("told", [ECHO, f"t-{SECRET}", base64.b64encode(SECRET.encode()).decode()])
async def test_a_start_token_that_repeats_a_secret_fails_the_stream_and_keeps_the_one_before(
    api: FakeApi, told: str
) -> None:
    say(api, [rows(1, sync="s1"), rows(2, next="n"), rows(3, sync=told), rows(2, next="n"), rows(3, sync="s2")])
    async with opened(api.url, with_key(BY_TOKEN)) as source:
        [before] = await read(source)
        pages, error = await read_until_it_fails(source, before.cursor)
        again = await read(source, pages[-1].cursor)
    assert "holds a secret of the configuration" in str(error)
    assert told not in str(error)
    assert ids(pages) == ids(again) == ["2", "3"]
    assert [cursor(page)["mark"] for page in (before, *pages, again[-1])] == ["s1", "s1", "s1", "s2"]
    assert none_saved([before, *pages, *again])
    assert [("sync=s1" in target, "c=n" in target) for target in targets(api)[1:]] == [(True, False), (True, True)] * 2


async def test_a_token_of_a_page_that_repeats_a_secret_is_used_and_not_saved(api: FakeApi) -> None:
    say(api, [rows(1, next=ECHO, sync=ECHO), rows(2, sync="s1")])
    async with opened(api.url, with_key(BY_TOKEN)) as source:
        pages = await read(source)
    assert (ids(pages), cursor(pages[-1])["mark"]) == (["1", "2"], "s1")
    assert "listing" not in cursor(pages[0])
    assert none_saved(pages)


async def test_keys_of_a_row_that_repeat_a_secret_fail_the_stream_and_keep_those_before(api: FakeApi) -> None:
    say(api, [rows("a"), rows(), rows("b", SECRET), rows()])
    async with opened(api.url, with_key(BY_KEYS)) as source:
        before = await read(source)
        pages, error = await read_until_it_fails(source, before[-1].cursor)
    assert "holds a secret of the configuration" in str(error)
    assert ids(pages) == ["b", SECRET]
    assert cursor(pages[-1])["mark"] == cursor(before[-1])["mark"] == '["2024-01-01T00:00:00Z","a"]'
    assert none_saved(pages)


async def test_a_first_token_that_is_a_secret_is_sent_and_not_saved(api: FakeApi) -> None:
    say(api, [rows(1, next="n"), rows(2, sync="s1")])
    since = {"first": "${env:API_KEY}"}
    pages = await list_all(api.url, {**BY_TOKEN, "incremental": {**BY_TOKEN["incremental"], "since": since}})
    assert all(f"sync={SECRET}" in target for target in targets(api))
    assert cursor(pages[-1])["mark"] == "s1"
    assert none_saved(pages)


async def test_what_was_saved_before_the_secret_was_known_is_not_saved_again(api: FakeApi) -> None:
    say(api, [rows(1, sync=ECHO), rows(2, sync=ECHO)])
    [before] = await list_all(api.url, BY_TOKEN)
    assert not none_saved([before])
    async with opened(api.url, with_key(BY_TOKEN)) as source:
        pages, _ = await read_until_it_fails(source, before.cursor)
    assert none_saved(pages)


async def test_the_state_database_holds_no_secret_that_an_api_repeats(api: FakeApi, sqlite_path: Path) -> None:
    say(api, [rows(1, next=ECHO, sync=ECHO), rows(2, next="n", sync=ECHO), rows(3, sync=ECHO)])
    report = await poll(sqlite_path, api.url, with_key(BY_TOKEN))
    assert (report.outcome, report.events) == (Outcome.FAILED, 3)
    async with process(sqlite_path) as one:
        saved = [await one.cursor(), *(entry.cursor for entry in await one.history())]
        notes = [entry.note for entry in await one.history()]
    assert SECRET not in f"{saved} {notes} {report.reason}"


async def test_why_a_listing_stopped_is_told_without_secrets(api: FakeApi) -> None:
    say(api, [rows(SECRET)])
    paginate = {"type": "keyset", "fields": {"id": "from"}, "size_param": "limit", "size": 2}
    pages = await list_all(api.url, with_key({"paginate": paginate}))
    assert pages[-1].stop == "nothing behind id ***"


# ---- another kind of start


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BY_KEYS, BY_TOKEN),
        (BY_TOKEN, BY_KEYS),
        (BY_KEYS, BY_ID),
        (BY_TIME, BY_TOKEN),
        (BY_TIME, BY_KEYS),
        (BY_TOKEN, BY_TIME),
        (BY_KEYS, BY_TIME),
    ],
)
async def test_a_mark_of_another_kind_is_not_sent_and_the_run_says_that_it_begins_anew(
    api: FakeApi, before: dict[str, Any], after: dict[str, Any]
) -> None:
    say(api, [rows(1, sync="s1"), rows(sync="s1")])
    saved = (await list_all(api.url, before))[-1].cursor
    api.requests.clear()
    say(api, [rows(1, 2, sync="s2"), rows()])
    watch = Watching()
    async with opened(api.url, after) as source:
        pages = await read(source, saved, watch)
        assert targets(api)[0] == "/events"
        assert [notice.kind for notice in watch.notices] == ["foreign"]
        assert ids(pages) == ["1", "2"]
        await read(source, pages[-1].cursor, watch)
    assert targets(api)[-1] != "/events"  # and then goes on by its own
    assert [notice.kind for notice in watch.notices] == ["foreign"]


async def test_a_time_that_was_kept_beside_keys_is_still_a_lower_bound(api: FakeApi) -> None:
    say(api, [rows(1), rows()])
    saved = (await list_all(api.url, BY_KEYS_AND_TIME))[-1].cursor
    watch = Watching()
    async with opened(api.url, BY_TIME) as source:
        await read(source, saved, watch)
    assert targets(api)[-1] == "/events?since=2024-01-01T00%3A00%3A00Z"
    assert not watch.notices


async def test_what_lists_everything_needs_no_mark_and_says_nothing(api: FakeApi) -> None:
    say(api, [rows(1, sync="s1")])
    [page] = await list_all(api.url, BY_TOKEN)
    watch = Watching()
    async with opened(api.url, WHOLE) as source:
        await read(source, page.cursor, watch)
    assert (targets(api)[-1], watch.notices) == ("/events", [])


async def test_a_token_of_the_same_kind_outlives_a_change_of_what_shapes_the_listing(api: FakeApi) -> None:
    say(api, [rows(1, sync="s1")])
    [page] = await list_all(api.url, BY_TOKEN)
    async with opened(api.url, {**BY_TOKEN, "params": {"limit": 5}}) as source:
        await read(source, page.cursor)
    assert targets(api)[-1] == "/events?limit=5&sync=s1"


async def test_a_listing_that_cannot_go_on_begins_where_it_began_and_not_where_it_was(api: FakeApi) -> None:
    """Some APIs name with the first page what starts the next run behind the last."""
    say(api, [rows(1, sync="s1"), rows(2, next="n", sync="s2"), rows(3, sync="s2")])
    async with opened(api.url, BY_TOKEN) as source:
        [first] = await read(source)
        [left] = await read(source, first.cursor, pages=1)
    async with opened(api.url, {**BY_TOKEN, "params": {"limit": 5}}) as source:
        await read(source, left.cursor)
    assert [target.partition("?")[2] for target in targets(api)] == ["", "sync=s1", "limit=5&sync=s1"]
