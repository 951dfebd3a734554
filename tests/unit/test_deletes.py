"""A record that says that it is gone, and a feed that says so of others: published once, under the record's key."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ingest.report import Outcome
from tests.harness.fake_api import FakeApi
from tests.unit.polling import (
    LETTERS,
    Killed,
    StumblingCheckpoints,
    fails,
    poll,
    process,
)
from tests.unit.sources import list_all, records, reply, say, targets

SOFT: dict[str, Any] = {"key": "owner", "deletes": {"soft": "state == 'gone'"}}
SINCE: dict[str, Any] = {"type": "integer", "field": "n", "since": {"param": "since"}}
LOG: dict[str, Any] = {"path": "/log", "records": "$.data", "id": "seq", "version": "none"}
FEED: dict[str, Any] = {"stream": "log", "where": "kind == 'deleted'", "id": "what"}
FED: dict[str, Any] = {"key": "owner", "version": "v", "deletes": {"feed": FEED}}
ABOVE: dict[str, Any] = {"streams": {"log": LOG}}
BY_SEQ: dict[str, Any] = {"streams": {"log": {**LOG, "incremental": {**SINCE, "field": "seq"}}}}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


@pytest.fixture
def path(sqlite_path: Path) -> Path:
    return sqlite_path


def lists(api: FakeApi, *pages: list[dict[str, Any]], at: str = "/events") -> None:
    """The next listings, of one page each."""
    say(api, [reply(json.dumps({"data": rows})) for rows in pages], at)


def row(id: Any, **more: Any) -> dict[str, Any]:
    return {"id": id, "owner": f"o{id}", "v": 1, **more}


def told(seq: int, what: Any, kind: str = "deleted") -> dict[str, Any]:
    return {"seq": seq, "kind": kind, "what": what}


async def names(path: Path) -> list[str]:
    """eventIds in the log, in its order, behind `api:events:`."""
    async with process(path) as one:
        return [event.id.removeprefix("api:events:") for event in await one.events()]


# ---- a record that says so itself


async def test_a_record_that_says_that_it_is_gone_is_a_delete_with_its_version_and_its_own_bytes(
    api: FakeApi, path: Path
) -> None:
    keys = {**SOFT, "version": "v"}
    lists(api, [row(1), row(2)], [row(1, v=2, state="gone"), row(2)], [row(1, v=2, state="gone"), row(2)])
    reports = [await poll(path, api.url, keys) for _ in range(3)]
    assert [(r.outcome, r.events, r.deletes) for r in reports] == [
        (Outcome.COMPLETE, 2, 0), (Outcome.COMPLETE, 1, 1), (Outcome.COMPLETE, 0, 0)
    ]  # fmt: skip
    assert await names(path) == ["1@1", "2@1", "1#deleted@2"]
    async with process(path) as one:
        last = (await one.events())[-1]
    assert (last.type, last.key, last.subject) == ("api.events.deleted", "o1", "1")
    assert json.loads(last.payload) == row(1, v=2, state="gone")


async def test_it_is_deleted_again_when_its_version_changes_and_published_when_it_is_back(
    api: FakeApi, path: Path
) -> None:
    keys = {**SOFT, "version": "v", "incremental": SINCE}
    states = [row(1, n=1), row(1, n=2, v=2, state="gone"), row(1, n=3, v=3, state="gone"), row(1, n=4, v=4)]
    lists(api, *[[one] for one in states])
    for _ in states:
        await poll(path, api.url, keys)
    assert await names(path) == ["1@1", "1#deleted@2", "1#deleted@3", "1@4"]


async def test_without_a_version_the_hash_of_the_record_tells_two_deletes_apart(api: FakeApi, path: Path) -> None:
    lists(api, [row(1, state="gone")])
    await poll(path, api.url, {**SOFT, "version": "none"})
    [name] = await names(path)
    assert name.startswith("1#deleted@~")


async def test_deletes_are_told_by_what_the_api_sent_and_published_as_transformed(api: FakeApi) -> None:
    lists(api, [row(1, state="gone"), row(2), row(3, state="gone")])
    keys = {**SOFT, "transform": [{"drop": ["state", "owner"]}, {"filter": "id != `3`"}]}
    found = records(await list_all(api.url, keys))
    assert [(one.id, one.deleted, one.key) for one in found] == [("1", True, "o1"), ("2", False, "o2")]
    assert json.loads(found[0].value) == {"id": 1, "v": 1}


async def test_parts_are_gone_with_what_they_are_of_or_by_themselves(api: FakeApi) -> None:
    lists(api, [row(1, state="gone", lines=[{"a": 1}]), row(2, lines=[{"a": 1}, {"a": 2, "state": "gone"}])])
    keys = {**SOFT, "id": "^.id", "key": "^.id", "transform": [{"explode": "lines"}]}
    found = records(await list_all(api.url, keys))
    assert [(one.id, one.deleted) for one in found] == [("1#0", True), ("2#0", False), ("2#1", True)]


@pytest.mark.parametrize("transform", [[], [{"drop": "v"}]], ids=["as it came", "transformed"])
async def test_a_record_of_which_it_cannot_be_said_is_a_dead_letter(
    api: FakeApi, path: Path, transform: list[Any]
) -> None:
    lists(api, [row(1, tags=["gone"]), row(2, tags=5), row(3, tags=[])])
    report = await poll(path, api.url, {"deletes": {"soft": "contains(tags, 'gone')"}, "transform": transform})
    assert (report.events, report.deletes, report.dead_letters) == (2, 1, 1)
    async with process(path) as one:
        [letter] = await one.records(LETTERS)
    assert json.loads(letter.value or b"") == row(2, tags=5)


# ---- a feed that says so of others


async def test_rows_of_a_feed_delete_what_they_name_under_its_own_key(api: FakeApi, path: Path) -> None:
    lists(api, [row(1), row(2), row(3)], [row(1), row(3)])
    rows = [told(7, 1, "created"), told(8, 2), told(9, 99)]
    lists(api, [], rows, at="/log")
    assert (await poll(path, api.url, FED, ABOVE)).events == 3
    report = await poll(path, api.url, FED, ABOVE)
    assert (report.outcome, report.reason, report.deletes) == (Outcome.COMPLETE, "single page", 2)
    *_, known, unknown = await names(path)
    assert (known[:11], unknown[:12]) == ("2#deleted@~", "99#deleted@~")
    async with process(path) as one:
        two = (await one.events())[-2:]
    assert [(one.key, json.loads(one.payload)["seq"]) for one in two] == [("o2", 8), ("99", 9)]
    assert (await poll(path, api.url, FED, ABOVE)).deletes == 0


@pytest.mark.parametrize(
    ("feed", "what", "gone"),
    [
        ({"match": r"^/events/(\d+)$"}, "/events/2", "2"),
        ({"match": r"\d+"}, "event 2 is gone", "2"),
        ({"match": r"^/events/(\d+)$"}, "/others/2", None),
        ({"match": r"x(2)?"}, "x", None),
        ({"id": ["what.a", "what.b"]}, {"a": "p|q", "b": 2}, r"p\|q|2"),
        ({"id": "what.id"}, {"id": 18446744073709551616}, "18446744073709551616"),
    ],
)
async def test_what_a_row_names(api: FakeApi, path: Path, feed: dict[str, Any], what: Any, gone: str | None) -> None:
    lists(api, [row(1)])
    lists(api, [told(1, what)], at="/log")
    report = await poll(path, api.url, {**FED, "deletes": {"feed": {**FEED, **feed}}}, ABOVE)
    assert report.outcome is Outcome.COMPLETE
    assert [name.partition("#deleted")[0] for name in (await names(path))[1:]] == ([] if gone is None else [gone])


@pytest.mark.parametrize("what", [None, {"a": 1}])
async def test_a_row_that_names_nothing_is_a_dead_letter(api: FakeApi, path: Path, what: Any) -> None:
    lists(api, [row(1)])
    lists(api, [told(1, what), told(2, 1)], at="/log")
    report = await poll(path, api.url, FED, ABOVE)
    assert (report.outcome, report.deletes, report.dead_letters) == (Outcome.COMPLETE, 1, 1)


async def test_a_feed_goes_on_from_a_cursor_of_its_own(api: FakeApi, path: Path) -> None:
    lists(api, [row(1), row(2), row(3)], [row(2), row(3)], [row(3)])
    lists(api, [told(1, 1)], [told(1, 1), told(2, 2)], [told(2, 2)], at="/log")
    for _ in range(3):
        await poll(path, api.url, {**FED, "incremental": {**SINCE, "field": "v"}}, BY_SEQ)
    assert [one for one in targets(api) if "log" in one] == ["/log", "/log?since=1", "/log?since=2"]
    assert [name[:9] for name in (await names(path))[3:]] == ["1#deleted", "2#deleted"]


async def test_what_came_back_is_not_deleted_again_by_a_row_that_is_listed_once_more(api: FakeApi, path: Path) -> None:
    lists(api, [row(1), row(2)], [row(2)], [row(1, v=2), row(2)])
    lists(api, [], [told(5, 1)], at="/log")
    reports = [await poll(path, api.url, FED, BY_SEQ) for _ in range(5)]
    assert [(r.events, r.deletes) for r in reports] == [(2, 0), (1, 1), (1, 0), (0, 0), (0, 0)]
    assert [name[:9] for name in await names(path)] == ["1@1", "2@1", "1#deleted", "1@2"]


@pytest.mark.parametrize("by", [ABOVE, BY_SEQ])
async def test_a_feed_that_always_lists_everything_deletes_nothing_twice(
    api: FakeApi, path: Path, by: dict[str, Any]
) -> None:
    lists(api, [row(1), row(2)], [row(2)], [row(1, v=2), row(2)])
    lists(api, [told(3, 7), told(2, 8)], [told(5, 1), told(4, 1), told(3, 7), told(2, 8)], at="/log")
    reports = [await poll(path, api.url, FED, by) for _ in range(4)]
    assert [(r.events, r.deletes) for r in reports[2:]] == [(1, 0), (0, 0)]
    assert (await names(path))[-1] == "1@2"


async def test_of_more_rows_than_are_remembered_none_is_applied_again(
    api: FakeApi, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.sources.feed.REMEMBERED", 2)
    everything = {"streams": {"log": {**LOG, "incremental": {"type": "integer", "field": "seq"}}}}
    lists(api, [row(1)], [row(1, v=2)], [row(1, v=2)])
    lists(api, [told(n, n) for n in range(1, 7)], at="/log")
    reports = [await poll(path, api.url, FED, everything) for _ in range(3)]
    assert [(r.events, r.deletes) for r in reports] == [(7, 6), (1, 0), (0, 0)]


async def test_a_feed_that_fails_leaves_what_was_listed_and_is_read_by_the_next_run(api: FakeApi, path: Path) -> None:
    lists(api, [row(1), row(2)])
    say(api, [reply("{}", 403), reply(json.dumps({"data": [told(1, 2)]}))], "/log")
    report = await poll(path, api.url, FED, ABOVE)
    assert (report.outcome, report.events, "/log: 403" in report.reason) == (Outcome.FAILED, 2, True)
    report = await poll(path, api.url, FED, ABOVE)
    assert (report.outcome, report.events, report.deletes) == (Outcome.COMPLETE, 1, 1)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_at_any_step_loses_no_delete(api: FakeApi, path: Path, step: int, after: bool) -> None:
    lists(api, [row(1), row(2)])
    lists(api, [told(1, 1)], at="/log")
    dies = {step: fails(Killed())}
    try:
        async with process(
            path, checkpoints=lambda db: StumblingCheckpoints(db, **{"after" if after else "before": dies})
        ) as one:
            await one.poll(api.url, FED, BY_SEQ)
    except ExceptionGroup:
        pass
    assert (await poll(path, api.url, FED, BY_SEQ)).outcome is Outcome.COMPLETE
    found = [name.partition("@")[0] for name in await names(path)]
    assert set(found) == {"1", "2", "1#deleted"}
    assert found.index("1") < found.index("1#deleted")


async def test_a_sweep_and_a_feed_say_it_once(api: FakeApi, path: Path) -> None:
    keys = {**FED, "deletes": {"feed": FEED, "sweep": {"every": "10ms"}}}
    lists(api, [row(1), row(2)], [row(2)])
    lists(api, [], [], [told(1, 1)], at="/log")
    reports = [await poll(path, api.url, keys, BY_SEQ) for _ in range(3)]
    assert [r.deletes for r in reports] == [0, 1, 1]  # the row is another version of it
    assert (await poll(path, api.url, keys, BY_SEQ)).deletes == 0
