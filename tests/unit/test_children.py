"""A stream that is listed once for each record of another: nothing of any parent is lost, whatever happens."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any
from urllib.parse import unquote

import pytest
import pytest_asyncio

from checkpoints import StreamId
from ingest.poller import Target
from ingest.report import Outcome, Report
from ingest.run import Runner, Stream
from ingest.sources.cursor import decode
from ingest.sources.shelf import Reader, Shelf
from ingest.sqlite import Database
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.unit.polling import (
    STREAM,
    TOPIC,
    TTL,
    Killed,
    StumblingCheckpoints,
    StumblingPublisher,
    fails,
    here,
    poll,
    process,
)
from tests.unit.sources import both_opened, ids, list_all, opened, read, records

Rows = list[dict[str, Any]]
TOKENS = ascii_lowercase  # of the rows, opaque
PAGED = {"type": "cursor", "from": "$.next", "param": "c"}
REPOS: dict[str, Any] = {"path": "/repos", "records": "$.data", "id": "id", "paginate": PAGED}
ISSUES: dict[str, Any] = {"parent": {"stream": "repos"}, "path": "/repos/{parent.id}/issues", "paginate": PAGED}
SINCE: dict[str, Any] = {"type": "integer", "field": "n", "since": {"param": "since"}}
ABOVE: dict[str, Any] = {"streams": {"repos": REPOS}, "limits": {"concurrency": 1}}
WIDE: dict[str, Any] = {**ABOVE, "limits": {"concurrency": 4}}


class Lists:
    """Lists at paths, in pages of `size`; a list that is no more is 404. `since` leaves out what is lower in `n`."""

    def __init__(self, api: FakeApi, size: int = 2) -> None:
        self.url, self.requests = api.url, api.requests
        self._lists: dict[str, Rows] = {}
        self._size = size
        self.refuse: dict[str, int] = {}  # target → status
        self.before: dict[str, Any] = {}  # target → what is done before it is answered
        api.routes = self  # type: ignore[assignment]

    def get(self, path: str) -> Any:
        return self._answer

    def __setitem__(self, path: str, rows: Sequence[Any]) -> None:
        self._lists[path] = [row if isinstance(row, dict) else {"id": row, "n": row} for row in rows]

    def __delitem__(self, path: str) -> None:
        del self._lists[path]

    def _answer(self, request: Request) -> Answer:
        self.before.pop(request.target, lambda: None)()
        status = self.refuse.get(request.target) or (200 if unquote(request.path) in self._lists else 404)
        if status != 200:
            return Answer(request, status=status, body=b"{}")
        since = request.query.get("since")
        rows = [row for row in self._lists[unquote(request.path)] if since is None or row["n"] >= int(since)]
        at = TOKENS.index(request.query.get("c", TOKENS[0]))
        following = TOKENS[at + self._size] if at + self._size < len(rows) else None
        return Answer(request, body=json.dumps({"data": rows[at : at + self._size], "next": following}).encode())

    def asked(self) -> list[str]:
        """What was asked for since the last time, in order."""
        found = [request.target for request in self.requests]
        self.requests.clear()
        return found


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Lists]:
    async with FakeApi() as running:
        yield Lists(running)


@pytest.fixture
def path(sqlite_path: Path) -> Path:
    return sqlite_path


def family(api: Lists, children: Mapping[str, Sequence[Any]]) -> None:
    """Repositories, each with its issues."""
    api["/repos"] = [{"id": name} for name in children]
    for name, rows in children.items():
        api[f"/repos/{name}/issues"] = rows


async def logged(path: Path) -> list[str]:
    """Ids in the log in its order; deletes with a minus."""
    async with process(path) as one:
        return [("-" if event.type.endswith(".deleted") else "") + event.subject for event in await one.events()]


async def partitions(path: Path, *names: str) -> dict[str, Any]:
    async with process(path) as one:
        found = await one.checkpoints.cursors(STREAM, names)
        return {name: json.loads(cursor) for name, cursor in found.items()}


# ---- what is listed


async def test_every_parent_is_listed_and_a_childs_id_begins_with_its_parents(api: Lists) -> None:
    family(api, {"a": [1, 2, 3], "b": [], "c": [1]})
    pages = await list_all(api.url, ISSUES, ABOVE)
    assert ids(pages) == ["a|1", "a|2", "a|3", "c|1"]
    assert [page.partition for page in pages] == ["a", "a", "b", "c", ""]
    assert [page.stop for page in pages] == [None] * 4 + ["every parent was listed: 3"]
    assert sorted(api.asked()) == [
        "/repos", "/repos/a/issues", "/repos/a/issues?c=c", "/repos/b/issues", "/repos/c/issues", "/repos?c=c"
    ]  # fmt: skip
    assert [record.key for record in records(pages)][:1] == ["a|1"]


@pytest.mark.parametrize(
    ("parent", "keys", "own", "id"),
    [
        ({"id": 7}, {}, {"id": 1}, "7|1"),
        ({"id": 7, "o": "x|y"}, {"id": ["o", "id"]}, {"id": "p|q"}, r"x\|y|7|p\|q"),
        ({"id": "x|y"}, {}, {"id": 1, "k": 2}, r"x\|y|1"),
        ({"id": "7" * 2000}, {}, {"id": 1}, "~~4be7d8b0c9d0bbd6d0ee6bd18f6aa4b1|1"),
    ],
)
async def test_ids_of_several_parts_are_joined_and_long_ones_hashed(
    api: Lists, parent: dict[str, Any], keys: dict[str, Any], own: dict[str, Any], id: str
) -> None:
    api["/repos"], api["/x"] = [parent], [own]
    stream = {**ISSUES, "path": "/x", "headers": {"X-Parent": "{parent.id}"}}
    above = {**ABOVE, "streams": {"repos": {**REPOS, **keys}}}
    found = ids(await list_all(api.url, stream, above))
    assert found == [id] if not id.startswith("~~") else found[0].startswith("~~") and found[0].endswith("|1")


async def test_a_child_without_an_id_is_its_parents_and_the_hash_of_itself(api: Lists) -> None:
    family(api, {"a": [1], "b": [1]})
    one, other = ids(await list_all(api.url, {**ISSUES, "id": []}, ABOVE))
    assert (one[:3], other[:3]) == ("a|~", "b|~")
    assert one[1:] == other[1:]


async def test_fields_of_the_parent_fill_requests_and_stay_what_they_are(api: Lists) -> None:
    api["/repos"] = [{"id": 12345678901234567890, "o": {"n": "ä/b"}, "w": 1.10, "ok": True}]
    api["/of/ä/b"] = [1]
    stream = {
        **ISSUES,
        "path": "/of/{parent.o.n}",
        "params": {"w": "{parent.w}"},
        "json": {"id": "{parent.id}", "ok": "{parent.ok}", "text": "{parent.id}/{parent.w}"},
        "records": {"path": "$.data", "keep": {"repo": "parent.o", "no": "parent.no"}},
    }
    [record] = records(await list_all(api.url, stream, ABOVE))
    _, request = api.requests
    assert request.target == "/of/%C3%A4%2Fb?w=1.1"
    assert request.body == b'{"id":12345678901234567890,"ok":true,"text":"12345678901234567890/1.1"}'
    assert record.value == b'{"id": 1, "n": 1,"repo":{"n": "\\u00e4/b"}}'


@pytest.mark.parametrize("row", [{"id": 1}, {"id": 1, "name": None}, {"id": 1, "name": {"a": 1}}])
async def test_a_parent_that_cannot_fill_a_request_fails_the_stream(api: Lists, path: Path, row: Any) -> None:
    api["/repos"] = [row]
    report = await poll(path, api.url, {**ISSUES, "path": "/repos/{parent.name}/issues"}, ABOVE)
    assert report.outcome is Outcome.FAILED
    assert "name" in report.reason
    assert "the parent 1" in report.reason


async def test_filters_of_the_parents_count_and_what_they_rename_does_not(api: Lists) -> None:
    api["/repos"] = [{"id": 1, "n": "a", "old": True}, {"id": 2, "n": "b", "old": False}]
    api["/repos/b/issues"] = [1]
    repos = {**REPOS, "transform": [{"filter": "old == `false`"}, {"drop": "n"}]}
    keys = {**ISSUES, "path": "/repos/{parent.n}/issues"}
    pages = await list_all(api.url, keys, {**ABOVE, "streams": {"repos": repos}})
    assert ids(pages) == ["2|1"]


async def test_several_parents_are_listed_side_by_side_each_in_its_order(api: Lists) -> None:
    names = [f"r{n}" for n in range(17)]
    family(api, {name: range(1, 6) for name in names})
    async with opened(api.url, ISSUES, WIDE) as source:
        found = ids(await read(source))
    assert {name: [one for one in found if one.startswith(f"{name}|")] for name in names} == {
        name: [f"{name}|{n}" for n in range(1, 6)] for name in names
    }
    order = [target.split("/")[2] for target in api.asked() if target.endswith("/issues")]
    assert set(order[:4]) == {"r0", "r1", "r2", "r3"}


async def test_a_parent_that_comes_again_in_its_listing_is_listed_once_at_a_time(api: Lists, path: Path) -> None:
    api["/repos"] = [{"id": name} for name in ("a", "b", "a", "c", "b")]
    for name in "abc":
        api[f"/repos/{name}/issues"] = [1]
    report = await poll(path, api.url, ISSUES, WIDE)
    assert (report.outcome, report.events) == (Outcome.COMPLETE, 3)
    assert await logged(path) == sorted(await logged(path))


# ---- from one run to the next


async def test_each_parent_goes_on_where_it_was_and_a_new_one_is_read_whole(api: Lists, path: Path) -> None:
    """One parent's cursor does not stand for another."""
    keys = {**ISSUES, "incremental": SINCE}
    family(api, {"a": [1, 9], "b": [2]})
    assert (await poll(path, api.url, keys, ABOVE)).events == 3
    api.asked()
    family(api, {"a": [1, 9, 10], "b": [2, 3], "c": [1]})
    report = await poll(path, api.url, keys, ABOVE)
    assert (report.outcome, report.events, report.unchanged) == (Outcome.COMPLETE, 3, 2)
    assert sorted(api.asked()) == [
        "/repos", "/repos/a/issues?since=9", "/repos/b/issues?since=2", "/repos/c/issues", "/repos?c=c"
    ]  # fmt: skip
    saved = await partitions(path, "a", "b", "c", "d")
    assert {name: cursor["high_water"] for name, cursor in saved.items()} == {"a": 10, "b": 3, "c": 1}


async def test_ids_are_remembered_for_each_parent_by_its_own_bound(api: Lists, path: Path) -> None:
    keys = {**ISSUES, "incremental": SINCE}
    for last in (5, 6, 7):
        family(api, {"busy": range(last), "quiet": [1, 2]})
        await poll(path, api.url, keys, ABOVE)
    report = await poll(path, api.url, keys, ABOVE)
    assert (report.events, report.unchanged) == (0, 2)
    async with process(path) as one:
        assert set(await one.checkpoints.seen(STREAM, await one.ids())) == {"busy|6", "quiet|2"}


async def test_parents_without_anything_to_go_on_from_leave_no_cursor(api: Lists, path: Path) -> None:
    family(api, {"a": [1, 2, 3], "b": []})
    await poll(path, api.url, ISSUES, ABOVE)
    assert await partitions(path, "a", "b") == {}
    await poll(path, api.url, {**ISSUES, "incremental": SINCE}, ABOVE)
    assert list(await partitions(path, "a", "b")) == ["a"]


async def test_only_so_many_cursors_are_kept(api: Lists, path: Path) -> None:
    family(api, {f"r{n}": [n] for n in range(7)})
    keys = {**ISSUES, "parent": {"stream": "repos", "state_limit": 3}, "incremental": SINCE}
    report = await poll(path, api.url, keys, ABOVE)
    assert (report.outcome, report.events) == (Outcome.COMPLETE, 7)
    assert len(await partitions(path, *(f"r{n}" for n in range(7)))) == 3
    assert (await poll(path, api.url, keys, ABOVE)).outcome is Outcome.COMPLETE


async def test_only_changed_parents_are_listed_where_that_is_asked_for(api: Lists, path: Path) -> None:
    above = {**ABOVE, "streams": {"repos": {**REPOS, "incremental": SINCE}}}
    keys = {**ISSUES, "parent": {"stream": "repos", "changed_only": True}}
    for name in (1, 2, 3):
        api[f"/repos/{name}/issues"] = [name]
    api["/repos"] = [1, 2, 3]
    report = await poll(path, api.url, keys, above)
    assert (report.reason, report.events) == ("every parent was listed: 3", 3)
    api.asked()
    api["/repos/2/issues"] = [2, 22]
    api["/repos"] = [1, 3, {"id": 2, "n": 4}]
    report = await poll(path, api.url, keys, above)
    assert (report.reason, report.events, report.unchanged) == ("every changed parent was listed: 2", 1, 2)
    assert sorted(api.asked()) == ["/repos/2/issues", "/repos/3/issues", "/repos?since=3"]
    await poll(path, api.url, keys, above)
    assert sorted(api.asked()) == ["/repos/2/issues", "/repos?since=4"]


async def test_a_parent_stream_that_goes_on_does_not_speak_for_its_children(api: Lists, path: Path) -> None:
    """Every run lists every parent, whatever is new among them."""
    above = {**ABOVE, "streams": {"repos": {**REPOS, "incremental": SINCE}}}
    for name in (1, 2):
        api[f"/repos/{name}/issues"] = [name]
    api["/repos"] = [1, 2]
    for _ in range(2):
        report = await poll(path, api.url, ISSUES, above)
        assert (report.reason, "/repos" in api.asked()) == ("every parent was listed: 2", True)


async def test_a_listing_of_parents_that_is_suddenly_empty_is_incomplete(api: Lists, path: Path) -> None:
    family(api, {"a": [1]})
    await poll(path, api.url, ISSUES, ABOVE)
    family(api, {})
    report = await poll(path, api.url, ISSUES, ABOVE)
    assert (report.outcome, "incomplete: no records, where there were 1" in report.reason) == (Outcome.FAILED, True)


# ---- parents that are not there


async def test_a_parent_that_is_gone_is_skipped_counted_and_shown(api: Lists, path: Path) -> None:
    family(api, {"a": [1], "gone": [], "b": [2]})
    del api._lists["/repos/gone/issues"]
    keys = {**ISSUES, "parent": {"stream": "repos", "skip_on": [404]}}
    report = await poll(path, api.url, keys, ABOVE)
    assert (report.outcome, report.events) == (Outcome.COMPLETE, 2)
    assert report.reason == "every parent was listed: 3, 1 of them skipped"
    assert "answered" not in report.notices["parent_skipped"]
    assert "/repos/gone/issues: 404" in report.notices["parent_skipped"]


@pytest.mark.parametrize(("status", "target"), [(404, "/repos/b/issues"), (410, "/repos/a/issues?c=c")])
async def test_what_is_not_skipped_fails_the_stream_and_the_rest_follows_when_it_is_mended(
    api: Lists, path: Path, status: int, target: str
) -> None:
    family(api, {"a": [1, 2, 3], "b": [1], "c": [1]})
    keys = {**ISSUES, "parent": {"stream": "repos", "skip_on": [410]}}
    api.refuse[target] = status
    report = await poll(path, api.url, keys, ABOVE)
    assert (report.outcome, str(status) in report.reason) == (Outcome.FAILED, True)
    api.refuse.clear()
    assert (await poll(path, api.url, keys, ABOVE)).outcome is Outcome.COMPLETE
    assert sorted(set(await logged(path))) == ["a|1", "a|2", "a|3", "b|1", "c|1"]


# ---- crashes


async def dies(path: Path, url: str, keys: Any, above: Any, step: int, *, before: bool = False) -> None:
    """A run that is killed before or after its n-th save, if it comes so far."""
    steps = {step: fails(Killed())}

    def stumbling(database: Database) -> StumblingCheckpoints:
        return StumblingCheckpoints(database, **({"before": steps} if before else {"after": steps}))

    with suppress(ExceptionGroup):
        async with process(path, checkpoints=stumbling) as one:
            await one.poll(url, keys, above)


@pytest.mark.parametrize("incremental", [None, SINCE], ids=["everything", "what is new"])
@pytest.mark.parametrize("above", [ABOVE, WIDE], ids=["one by one", "side by side"])
async def test_a_crash_at_any_step_loses_nothing_and_repeats_a_page(
    api: Lists, path: Path, above: Any, incremental: Any
) -> None:
    family(api, {"a": [1, 2, 3], "b": [1, 2], "c": [], "d": [1, 2, 3, 4, 5]})
    keys = ISSUES if incremental is None else {**ISSUES, "incremental": incremental}
    wanted = {"a|1", "a|2", "a|3", "b|1", "b|2", "d|1", "d|2", "d|3", "d|4", "d|5"}
    pages = 7
    for step in range(pages):
        for before in (True, False):
            here = path.with_name(f"{step}{before}.db")
            await dies(here, api.url, keys, above, step, before=before)
            api.asked()
            report = await poll(here, api.url, keys, above)
            assert report.outcome is Outcome.COMPLETE
            found = await logged(here)
            assert set(found) == wanted
            assert len(found) <= len(wanted) + 2
            asked = [target for target in api.asked() if "/issues" in target]
            assert len(asked) <= pages - step - (not before)  # it goes on where it was


async def test_a_crash_between_publishing_and_saving_repeats_that_page_alone(api: Lists, path: Path) -> None:
    family(api, {"a": [1, 2, 3], "b": [1]})
    with pytest.raises(ExceptionGroup):
        async with process(path, publisher=lambda p: StumblingPublisher(p, after={1: fails(Killed())})) as one:
            await one.poll(api.url, ISSUES, ABOVE)
    await poll(path, api.url, ISSUES, ABOVE)
    assert await logged(path) == ["a|1", "a|2", "a|3", "a|3", "b|1"]


async def test_what_was_published_and_not_saved_is_followed_by_what_a_parent_has_now(api: Lists, path: Path) -> None:
    """A → B → A, and the poller dies with a B: whichever parent's page comes first afterwards, the log ends with A."""

    def at(version: int) -> None:
        family(api, {name: [{"id": n, "n": n, "v": version} for n in (1, 2, 3)] for name in ("a", "b", "c")})

    for step in range(6):
        here = path.with_name(f"{step}.db")
        at(1)
        await poll(here, api.url, ISSUES, WIDE)
        at(2)
        await dies(here, api.url, ISSUES, WIDE, step, before=True)
        at(1)
        for _ in ("the round that was begun", "another"):
            await poll(here, api.url, ISSUES, WIDE)
        async with process(here) as one:
            last = {event.subject: json.loads(event.payload)["v"] for event in await one.events()}
        assert set(last.values()) == {1}


async def test_a_restart_goes_on_with_the_parents_that_were_not_done(api: Lists, path: Path) -> None:
    family(api, {"a": [1, 2, 3], "b": [1, 2, 3], "c": [1]})
    await dies(path, api.url, ISSUES, ABOVE, 2)
    async with process(path) as one:
        cursor = decode(await one.cursor() or b"")
    assert cursor.round is not None
    assert (cursor.round.n, cursor.round.done, cursor.round.beyond) == (1, 1, ())
    api.asked()
    await poll(path, api.url, ISSUES, ABOVE)
    assert sorted(api.asked()) == ["/repos", "/repos/b/issues?c=c", "/repos/c/issues", "/repos?c=c"]


async def test_parents_that_were_done_out_of_turn_are_not_listed_again(api: Lists, path: Path) -> None:
    family(api, {"slow": range(1, 12), "b": [1], "c": [1], "d": [1]})
    stop = asyncio.Event()
    api.before["/repos/slow/issues?c=k"] = stop.set
    async with process(path) as one:
        report = await one.poll(api.url, ISSUES, WIDE, stop)
        cursor = decode(await one.cursor() or b"")
    assert report.outcome is Outcome.INCOMPLETE
    assert cursor.round is not None
    assert set(cursor.round.beyond) >= {"b", "c"}
    api.asked()
    assert (await poll(path, api.url, ISSUES, WIDE)).outcome is Outcome.COMPLETE
    assert not {"/repos/b/issues", "/repos/c/issues", "/repos/slow/issues"} & set(api.asked())
    assert sorted(await logged(path)) == sorted([*(f"slow|{n}" for n in range(1, 12)), "b|1", "c|1", "d|1"])


async def test_a_page_of_parents_that_is_not_what_it_was_is_listed_again(api: Lists, path: Path) -> None:
    """Else a parent that stands in front now would count as done."""
    family(api, {"a": [1], "b": [1], "c": [1], "d": [1]})
    await dies(path, api.url, ISSUES, ABOVE, 2)
    family(api, {"a": [1], "new": [1], "b": [1], "c": [1], "d": [1]})
    assert (await poll(path, api.url, ISSUES, ABOVE)).outcome is Outcome.COMPLETE
    family(api, {"a": [1], "x": [1], "new": [1], "b": [1], "c": [1], "d": [1]})
    assert set(await logged(path)) >= {"a|1", "b|1", "c|1", "d|1"}


@pytest.mark.parametrize(
    ("keys", "above"),
    [
        ({**ISSUES, "params": {"state": "all"}}, ABOVE),
        (ISSUES, {**ABOVE, "streams": {"repos": {**REPOS, "params": {"all": "1"}}}}),
    ],
    ids=["its own", "its parents'"],
)
async def test_a_changed_configuration_begins_a_new_round(api: Lists, path: Path, keys: Any, above: Any) -> None:
    family(api, {"a": [1, 2, 3], "b": [1]})
    await dies(path, api.url, ISSUES, ABOVE, 2)
    api.asked()
    await poll(path, api.url, keys, above)
    assert len([target for target in api.asked() if "/repos/a/issues" in target]) == 2


# ---- sweeps

SWEPT: dict[str, Any] = {**ISSUES, "deletes": {"sweep": {"every": "10ms"}}}


async def test_what_a_parent_no_longer_has_and_what_a_parent_that_is_gone_had_is_deleted(
    api: Lists, path: Path
) -> None:
    family(api, {"a": [1, 2], "b": [1, 2], "c": [1]})
    await poll(path, api.url, SWEPT, WIDE)
    family(api, {"a": [1, 2], "b": [2]})
    report = await poll(path, api.url, SWEPT, WIDE)
    assert (report.outcome, report.deletes) == (Outcome.COMPLETE, 2)
    assert sorted(one for one in await logged(path) if one[0] == "-") == ["-b|1", "-c|1"]


async def test_a_skipped_parent_leaves_the_sweep_in_doubt(api: Lists, path: Path) -> None:
    keys = {**SWEPT, "parent": {"stream": "repos", "skip_on": [404]}}
    family(api, {"a": [1, 2], "b": [1]})
    await poll(path, api.url, keys, ABOVE)
    family(api, {"a": [1], "b": [1]})
    del api._lists["/repos/b/issues"]
    report = await poll(path, api.url, keys, ABOVE)
    assert (report.outcome, report.deletes) == (Outcome.COMPLETE, 0)
    assert "skip_on" in report.notices["sweep_in_doubt"]
    family(api, {"a": [1]})
    assert (await poll(path, api.url, keys, ABOVE)).deletes == 2


async def test_a_parent_that_cannot_be_read_leaves_the_sweep_in_doubt(api: Lists, path: Path) -> None:
    family(api, {"a": [1, 2], "b": [1]})
    await poll(path, api.url, SWEPT, ABOVE)
    family(api, {"a": [1]})
    api["/repos"] = [{"id": "a"}, {"id": None}]
    report = await poll(path, api.url, SWEPT, ABOVE)
    assert (report.outcome, report.deletes) == (Outcome.COMPLETE, 0)
    assert "parents" in report.notices["sweep_in_doubt"]


@pytest.mark.parametrize(("least", "outcome"), [(4, Outcome.COMPLETE), (5, Outcome.FAILED)])
async def test_rows_of_a_child_that_come_again_behind_a_cap_are_counted_once(
    api: Lists, path: Path, least: int, outcome: Outcome
) -> None:
    family(api, {"a": [1, 2, 3], "b": [1]})
    keys = {**ISSUES, "paginate": {**PAGED, "listing_cap": 2}, "incremental": {**SINCE, "order": "asc"}}
    report = await poll(path, api.url, {**keys, "expect": {"min_records": least}}, ABOVE)
    assert len([target for target in api.asked() if "/a/issues" in target]) == 3
    assert (report.outcome, "incomplete: 4 records" in report.reason) == (outcome, least > 4)


async def test_a_parent_that_a_step_cannot_change_leaves_the_sweep_in_doubt(api: Lists, path: Path) -> None:
    """Nobody knows whether it would have been left out; its children are not listed."""
    above = {**ABOVE, "streams": {"repos": {**REPOS, "transform": [{"cast": {"n": "integer"}}]}}}
    family(api, {"a": [1, 2], "b": [1]})
    await poll(path, api.url, SWEPT, above)
    api["/repos"] = [{"id": "a", "n": 1}, {"id": "b", "n": "x"}]
    report = await poll(path, api.url, SWEPT, above)
    assert (report.outcome, report.deletes) == (Outcome.COMPLETE, 0)
    assert "dead letter" in report.notices["sweep_in_doubt"]


async def test_children_that_are_read_by_what_is_new_are_swept_when_that_is_due(api: Lists, path: Path) -> None:
    keys = {**SWEPT, "incremental": SINCE}
    family(api, {"a": [1, 2], "b": [5]})
    first = await poll(path, api.url, keys, ABOVE)
    assert first.events == 3
    assert len(api.asked()) == 3  # unfiltered: a sweep by itself
    family(api, {"a": [2]})
    report = await poll(path, api.url, keys, ABOVE)
    assert api.asked() == ["/repos", "/repos/a/issues?since=2", "/repos", "/repos/a/issues"]
    assert (report.outcome, report.deletes) == (Outcome.COMPLETE, 2)
    assert {name: one["high_water"] for name, one in (await partitions(path, "a", "b")).items()} == {"a": 2, "b": 5}
    family(api, {"a": [2], "b": [5]})
    assert (await poll(path, api.url, keys, ABOVE)).events == 1  # it is back


@pytest.mark.parametrize("step", range(12))
async def test_a_crash_in_a_sweep_deletes_nothing_that_is_there(api: Lists, path: Path, step: int) -> None:
    keys = {**SWEPT, "incremental": SINCE}
    family(api, {"a": [1, 2, 3], "b": [5, 6, 7], "c": [1]})
    await poll(path, api.url, keys, ABOVE)
    family(api, {"a": [1, 3], "b": [5, 6, 7]})
    await dies(path, api.url, keys, ABOVE, step, before=True)
    await poll(path, api.url, keys, ABOVE)
    assert {one for one in await logged(path) if one[0] == "-"} == {"-a|2", "-c|1"}


async def test_an_abandoned_round_is_no_part_of_the_sweep_that_follows(api: Lists, path: Path) -> None:
    """The pages that it had read are read again, or what they list would be taken for gone."""
    family(api, {"a": [1, 2, 3], "b": [1]})
    await poll(path, api.url, SWEPT, ABOVE)
    await dies(path, api.url, SWEPT, ABOVE, 1, before=True)
    assert (await partitions(path, "a"))["a"]["listing"]["n"] == 1
    other = {**ABOVE, "streams": {"repos": {**REPOS, "params": {"x": "1"}}}}
    report = await poll(path, api.url, SWEPT, other)
    assert (report.outcome, report.deletes) == (Outcome.COMPLETE, 0)


async def test_a_round_that_lacks_too_much_is_incomplete_and_deletes_nothing(api: Lists, path: Path) -> None:
    keys = {**SWEPT, "expect": {"max_drop": "50%"}}
    family(api, {"a": [1, 2, 3], "b": [1, 2, 3]})
    await poll(path, api.url, keys, ABOVE)
    family(api, {"a": [1], "b": []})
    report = await poll(path, api.url, keys, ABOVE)
    assert (report.outcome, "1 records after 6" in report.reason) == (Outcome.FAILED, True)
    assert not [one for one in await logged(path) if one[0] == "-"]
    family(api, {"a": [1, 2], "b": [1]})
    assert (await poll(path, api.url, keys, ABOVE)).deletes == 3


# ---- parents of parents

DEEP: dict[str, Any] = {
    "limits": {"concurrency": 2},
    "streams": {
        "orgs": {"path": "/orgs", "records": "$.data", "id": "id", "paginate": PAGED},
        "repos": {**REPOS, "path": "/{parent.id}/repos", "parent": {"stream": "orgs"}},
    },
}
DEEPER: dict[str, Any] = {**ISSUES, "path": "/of/{parent.id}"}


def grandfamily(api: Lists, orgs: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
    api["/orgs"] = [{"id": org} for org in orgs]
    for org, repos in orgs.items():
        api[f"/{org}/repos"] = [{"id": repo, "n": n} for n, repo in enumerate(repos)]
        for repo, rows in repos.items():
            api[f"/of/{repo}"] = rows


async def test_children_of_children_are_listed(api: Lists, path: Path) -> None:
    grandfamily(api, {"o": {"a": [1, 2, 3], "b": [1], "c": []}, "p": {"d": [4]}, "q": {}})
    report = await poll(path, api.url, DEEPER, DEEP)
    assert (report.outcome, report.reason) == (Outcome.COMPLETE, "every parent was listed: 4")
    assert sorted(await logged(path)) == ["o|a|1", "o|a|2", "o|a|3", "o|b|1", "p|d|4"]


@pytest.mark.parametrize("changed_only", [False, True])
async def test_a_crash_among_children_of_children_loses_nothing(api: Lists, path: Path, changed_only: bool) -> None:
    orgs = {"o": {"a": [1, 2, 3], "b": [1], "c": [7]}, "p": {"d": [4], "e": [5, 6, 7]}}
    grandfamily(api, orgs)
    wanted = {f"{o}|{r}|{n}" for o, repos in orgs.items() for r, rows in repos.items() for n in rows}
    above, keys = DEEP, DEEPER
    if changed_only:
        repos = {**DEEP["streams"]["repos"], "incremental": SINCE}
        above = {**DEEP, "streams": {**DEEP["streams"], "repos": repos}}
        keys = {**DEEPER, "parent": {"stream": "repos", "changed_only": True}}
    for step in range(7):
        here = path.with_name(f"{step}.db")
        await dies(here, api.url, keys, above, step)
        assert (await poll(here, api.url, keys, above)).outcome is Outcome.COMPLETE
        assert sorted(await logged(here)) == sorted(wanted)
        assert (await partitions(here, "#*o", "#*p")) == {}


async def test_changed_children_are_told_by_a_cursor_for_each_of_their_parents(api: Lists, path: Path) -> None:
    repos = {**DEEP["streams"]["repos"], "incremental": SINCE}
    above = {**DEEP, "limits": {"concurrency": 1}, "streams": {**DEEP["streams"], "repos": repos}}
    keys = {**DEEPER, "parent": {"stream": "repos", "changed_only": True}}
    grandfamily(api, {"o": {"a": [1], "b": [1]}, "p": {"c": [1]}})
    await poll(path, api.url, keys, above)
    saved = await partitions(path, "#^o", "#^p")
    assert {name: one["high_water"] for name, one in saved.items()} == {"#^o": 1, "#^p": 0}
    api.asked()
    api["/p/repos"] = [{"id": "c", "n": 0}, {"id": "z", "n": 5}]
    api["/of/z"] = [1]
    report = await poll(path, api.url, keys, above)
    assert (report.events, report.unchanged) == (1, 2)
    assert sorted(api.asked()) == ["/o/repos?since=1", "/of/b", "/of/c", "/of/z", "/orgs", "/p/repos?since=0"]


async def test_a_sweep_of_children_of_children_misses_what_went_with_a_grandparent(api: Lists, path: Path) -> None:
    keys = {**DEEPER, "deletes": {"sweep": {"every": "10ms"}}}
    grandfamily(api, {"o": {"a": [1, 2]}, "p": {"b": [1]}})
    await poll(path, api.url, keys, DEEP)
    grandfamily(api, {"o": {"a": [1]}})
    assert (await poll(path, api.url, keys, DEEP)).deletes == 2
    assert sorted(one for one in await logged(path) if one[0] == "-") == ["-o|a|2", "-p|b|1"]


# ---- beside their parents


async def together(path: Path, api: Lists, keys: Any, above: Any, runs: int = 1) -> list[list[Report]]:
    """Parents and children in one process, side by side; one run after the other."""
    async with process(path) as one, both_opened(api.url, keys, above) as (parents, children):
        runner = Runner(one.publisher, one.checkpoints, one.leases, one.holder, here, lease_ttl=TTL)
        repos = Stream(Target(StreamId("api", "repos"), "api.events", 100_000), parents, 1.0)
        issues = Stream(Target(STREAM, TOPIC, 100_000), children, 1.0)
        return [await runner.once([repos, issues], asyncio.Event()) for _ in range(runs)]


async def test_parents_that_run_beside_their_children_are_asked_for_once(api: Lists, path: Path) -> None:
    family(api, {f"r{n}": [n] for n in range(9)})
    [first, second] = await together(path, api, ISSUES, WIDE, runs=2)
    assert [(one.outcome, one.events) for one in first] == [(Outcome.COMPLETE, 9)] * 2
    assert [(one.outcome, one.unchanged) for one in second] == [(Outcome.COMPLETE, 9)] * 2
    asked = [target for target in api.asked() if not target.endswith("/issues")]
    assert sorted(asked) == sorted(2 * ["/repos", "/repos?c=c", "/repos?c=e", "/repos?c=g", "/repos?c=i"])


async def test_an_answer_that_one_of_them_does_not_get_is_asked_for_by_the_other() -> None:
    ended = asyncio.Event()
    shelf: Shelf[str] = Shelf(len)
    one, other = Reader(shelf, 1.0), Reader(shelf, 1.0)
    one.begin()
    other.begin()

    async def never() -> str:
        await ended.wait()
        raise AssertionError

    async def answers() -> str:
        return "answer"

    first = asyncio.create_task(one.get(b"mark", never))
    second = asyncio.create_task(other.get(b"mark", answers))
    await asyncio.sleep(0)
    assert not second.done()
    first.cancel()
    assert await second == "answer"
    assert await one.get(b"mark", never) == "answer"
    second = asyncio.create_task(other.get(b"mark", never))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_answers_are_kept_while_there_is_room_and_given_once() -> None:
    shelf: Shelf[str] = Shelf(len, room=10)
    one, other = Reader(shelf, 1.0), Reader(shelf, 1.0)
    one.begin()
    other.begin()
    asked: list[str] = []

    async def ask(answer: str) -> str:
        asked.append(answer)
        return answer

    for mark in ("aaaa", "bbbb", "cccc"):
        await one.get(mark.encode(), partial(ask, mark))
    for mark in ("aaaa", "cccc", "cccc"):
        await other.get(mark.encode(), partial(ask, mark))
    assert asked == ["aaaa", "bbbb", "cccc", "aaaa", "cccc"]
