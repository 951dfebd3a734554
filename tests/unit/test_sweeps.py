"""What is gone is found by a complete listing, and concluded from nothing less."""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ingest.report import Outcome
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.unit.polling import Killed, StumblingCheckpoints, StumblingPublisher, poll, process
from tests.unit.sources import PAGING, reply, say, targets

TOKEN = PAGING["cursor"]
SWEPT: dict[str, Any] = {**TOKEN, "key": "owner", "deletes": {"sweep": {"every": "10ms"}}}
LINKED: dict[str, Any] = {**SWEPT, "paginate": {"type": "cursor", "from": "$.next", "param": "c"}}
SINCE: dict[str, Any] = {"type": "timestamp", "field": "at", "since": {"param": "since"}}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


@pytest.fixture
def path(sqlite_path: Path) -> Path:
    return sqlite_path


def rows(numbers: Iterable[int], **more: Any) -> list[dict[str, Any]]:
    return [{"id": n, "owner": f"o{n}", **more} for n in numbers]


def answer(numbers: Iterable[int], next: str | None = None, **more: Any) -> Any:
    return reply(json.dumps({"data": rows(numbers, **more), "next": next}))


async def deleted(path: Path) -> list[tuple[str, str]]:
    """Ids and keys of the deletes in the log, in its order."""
    async with process(path) as one:
        return [(event.subject, event.key) for event in await one.events() if event.type.endswith(".deleted")]


async def test_what_a_complete_listing_no_longer_lists_is_deleted_once_under_its_own_key(
    api: FakeApi, path: Path
) -> None:
    lists = [[1, 2, 3, 4], [1, 3], [1, 3], [1, 3, 4], [3, 4]]
    say(api, [answer(numbers) for numbers in lists])
    reports = [await poll(path, api.url, LINKED) for _ in lists]
    assert [(r.outcome, r.events, r.deletes) for r in reports] == [
        (Outcome.COMPLETE, 4, 0),
        (Outcome.COMPLETE, 2, 2),
        (Outcome.COMPLETE, 0, 0),
        (Outcome.COMPLETE, 1, 0),  # 4 lives again
        (Outcome.COMPLETE, 1, 1),
    ]
    assert await deleted(path) == [("2", "o2"), ("4", "o4"), ("1", "o1")]
    async with process(path) as one:
        events = [event for event in await one.events() if event.subject == "4"]
        assert await one.stored() == 7  # four records and three deletes: 4 alive again is the row that it has
    value = json.loads(events[1].payload)
    assert events[1].id == f"api:events:4#deleted@{value['deleted_at']}"
    assert value["id"] == "4"


async def test_a_snapshot_without_deletes_concludes_none(api: FakeApi, path: Path) -> None:
    say(api, [answer([1, 2]), answer([1])])
    keys = {key: value for key, value in LINKED.items() if key != "deletes"}
    for _ in range(2):
        await poll(path, api.url, keys)
    assert await deleted(path) == []


async def test_more_than_a_page_of_deletes_is_published_whole(
    api: FakeApi, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.poller.DELETED_AT_ONCE", 3)
    say(api, [answer(range(1, 12)), answer([5])])
    for _ in range(2):
        await poll(path, api.url, LINKED)
    assert sorted(int(name) for name, _ in await deleted(path)) == [n for n in range(1, 12) if n != 5]


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("where", ["publish", "acknowledged", "save", "saved"])
async def test_a_crash_while_deletes_are_concluded_loses_and_doubles_none(
    api: FakeApi, path: Path, where: str, step: int
) -> None:
    lists = {"first": ([1, 2], [3, 4]), "then": ([1, 9], [3])}
    now = "first"

    def two_pages(request: Request) -> Answer:
        head, tail = lists[now]
        found: Answer = (answer(tail) if "c=n" in request.target else answer(head, "n"))(request)
        return found

    api.routes["/events"] = two_pages
    await poll(path, api.url, LINKED)
    now = "then"

    def dies() -> None:
        raise Killed

    steps = {step: dies}
    before, after = (
        (steps if where in ("publish", "save") else {}),
        (steps if where in ("acknowledged", "saved") else {}),
    )
    publishes = where in ("publish", "acknowledged")
    async with process(
        path,
        publisher=lambda inner: StumblingPublisher(inner, before, after) if publishes else inner,
        checkpoints=lambda database: StumblingCheckpoints(database, *(({}, {}) if publishes else (before, after))),
    ) as one:
        try:
            await one.poll(api.url, LINKED)
        except BaseExceptionGroup as group:
            assert group.subgroup(Killed) is not None
    for _ in range(2):
        report = await poll(path, api.url, LINKED)
        assert report.outcome is Outcome.COMPLETE
    found = await deleted(path)
    assert sorted({name for name, _ in found}) == ["2", "4"]
    async with process(path) as one:
        await one.stored()
        assert len({event.id for event in await one.events() if event.type.endswith(".deleted")}) == len(set(found))


# ---- when nothing is concluded


@pytest.mark.parametrize(
    ("name", "listing"),
    [
        ("no content", [answer([1], "n"), reply(b"", status=204)]),
        ("an empty body at the start", [reply(b"")]),
        ("a record that cannot be read", [reply('{"data":[{"id":1},{"id":null}]}')]),
    ],
)
async def test_a_sweep_in_doubt_concludes_nothing_and_the_next_one_does(
    api: FakeApi, path: Path, name: str, listing: Sequence[Any]
) -> None:
    expect = {"expect": {"min_records": 0}}
    say(api, [answer([1, 2]), *listing, answer([1])])
    await poll(path, api.url, {**LINKED, **expect})
    doubtful = await poll(path, api.url, {**LINKED, **expect})
    assert (doubtful.outcome, doubtful.deletes) == (Outcome.COMPLETE, 0)
    assert "sweep_in_doubt" in doubtful.notices
    assert await deleted(path) == []
    assert (await poll(path, api.url, {**LINKED, **expect})).deletes == 1


async def test_a_sweep_that_fails_concludes_nothing(api: FakeApi, path: Path) -> None:
    say(api, [answer([1, 2]), answer([1], "n"), reply("{}"), answer([2])])
    await poll(path, api.url, LINKED)
    assert (await poll(path, api.url, LINKED)).outcome is Outcome.FAILED
    assert await deleted(path) == []
    assert (await poll(path, api.url, LINKED)).outcome is Outcome.COMPLETE  # the page that had failed; 1 came before it
    assert await deleted(path) == []


async def test_where_rows_move_under_an_offset_only_the_second_miss_counts(api: FakeApi, path: Path) -> None:
    keys = {**SWEPT, "paginate": {"type": "offset", "end": "empty"}}
    say(api, [answer(one) for one in ([1, 2, 3], [], [1, 3], [], [1, 2], [], [1], [])])
    found = []
    for _ in range(4):
        await poll(path, api.url, keys)
        found.append([name for name, _ in await deleted(path)])
    assert found == [[], [], [], ["3"]]  # 2 was back in between


@pytest.mark.parametrize(("token", "misses"), [("2", 2), ("3", 2), ("c3Vt", 1), ("1000", 1)])
async def test_where_a_token_counts_pages_or_rows_only_the_second_miss_counts(
    api: FakeApi, path: Path, token: str, misses: int
) -> None:
    pages = [answer([1, 2, 3], token), answer([4]), *[answer([1, 3, 5], token), answer([4])] * 2]
    say(api, pages)
    found = []
    for _ in range(3):
        await poll(path, api.url, LINKED)
        found.append([name for name, _ in await deleted(path)])
    assert found == [[] if n < misses else ["2"] for n in range(3)]


# ---- sweeps beside an incremental stream


def moment(**ago: float) -> str:
    return (datetime.now(UTC) - timedelta(**ago)).isoformat(timespec="seconds").replace("+00:00", "Z")


async def test_a_sweep_lists_everything_after_what_is_new_and_moves_no_mark(api: FakeApi, path: Path) -> None:
    at = moment(hours=1)
    keys = {**LINKED, "incremental": SINCE, "deletes": {"sweep": {"every": "7d", "params": {"status": "any"}}}}
    say(api, [answer([1, 2, 3], at=at)])
    await poll(path, api.url, keys)  # unfiltered: a sweep by itself
    say(api, [answer([3], at=at)])
    await poll(path, api.url, keys)  # not due
    assert await deleted(path) == []
    say(api, [answer([3], at=at), answer([3], "n", at=at), answer([4], at=moment(minutes=1))])
    report = await poll(path, api.url, {**keys, "deletes": {"sweep": {"every": "10ms", "params": {"status": "any"}}}})
    since = f"since={at.replace(':', '%3A')}"
    assert targets(api) == [
        "/events", f"/events?{since}", f"/events?{since}", "/events?status=any", "/events?status=any&c=n"
    ]  # fmt: skip
    assert (report.outcome, report.deletes, report.cursor_to) == (Outcome.COMPLETE, 2, at)
    assert await deleted(path) == [("1", "o1"), ("2", "o2")]
    async with process(path) as one:
        assert [event.subject for event in await one.events()] == ["1", "2", "3", "4", "1", "2"]


async def test_what_is_older_than_the_lower_bound_is_not_forgotten_by_a_stream_that_sweeps(
    api: FakeApi, path: Path
) -> None:
    keys = {**LINKED, "incremental": SINCE, "deletes": {"sweep": {"every": "10ms"}}}
    old, new = answer([1, 2], "n", at=moment(hours=9)), answer([3], at=moment(hours=1))
    say(api, [old, new])
    await poll(path, api.url, keys)
    say(api, [new, answer([1, 3], at=moment(hours=1))])
    await poll(path, api.url, keys)
    assert await deleted(path) == [("2", "o2")]


# ---- what a listing must hold


@pytest.mark.parametrize(
    ("expect", "lists", "outcome"),
    [
        (None, [[1, 2], []], Outcome.FAILED),  # nothing, where there was something
        ({"min_records": 0}, [[1, 2], []], Outcome.COMPLETE),
        (None, [[], []], Outcome.COMPLETE),
        ({"min_records": 2}, [[1]], Outcome.FAILED),
        ({"min_records": 2}, [[1, 2]], Outcome.COMPLETE),
        ({"max_drop": "50%"}, [[1, 2, 3, 4], [1]], Outcome.FAILED),
        ({"max_drop": "50%"}, [[1, 2, 3, 4], [1, 2]], Outcome.COMPLETE),
        ({"max_drop": "50%"}, [[1, 2, 3, 4], [1, 2], [1]], Outcome.COMPLETE),
    ],
)
async def test_a_listing_that_lacks_too_much_is_incomplete(
    api: FakeApi, path: Path, expect: dict[str, Any] | None, lists: list[list[int]], outcome: Outcome
) -> None:
    say(api, [answer(numbers) for numbers in lists])
    keys = {**LINKED} if expect is None else {**LINKED, "expect": expect}
    reports = [await poll(path, api.url, keys) for _ in lists]
    assert [report.outcome for report in reports[:-1]] == [Outcome.COMPLETE] * (len(lists) - 1)
    assert reports[-1].outcome is outcome
    assert ("incomplete: " in reports[-1].reason) is (outcome is Outcome.FAILED)
    assert (await deleted(path) == []) is (outcome is Outcome.FAILED or len(set(map(len, lists))) == 1)


async def test_an_incomplete_listing_is_published_and_begins_again(api: FakeApi, path: Path) -> None:
    say(api, [answer([1, 2, 3, 4]), answer([5], "n"), answer([6]), answer([1, 2, 3, 5, 6])])
    keys = {**LINKED, "expect": {"max_drop": "25%"}}
    reports = [await poll(path, api.url, keys) for _ in range(3)]
    assert [(r.outcome, r.events) for r in reports] == [
        (Outcome.COMPLETE, 4), (Outcome.FAILED, 2), (Outcome.COMPLETE, 1)
    ]  # fmt: skip
    assert targets(api) == ["/events", "/events", "/events?c=n", "/events"]
    assert await deleted(path) == [("4", "o4")]


async def test_only_complete_unfiltered_listings_are_compared(api: FakeApi, path: Path) -> None:
    at = moment(hours=1)
    say(api, [answer([1, 2, 3, 4], at=at), answer([4], at=at), answer([], at=at)])
    keys = {**TOKEN, "paginate": LINKED["paginate"], "incremental": SINCE, "expect": {"max_drop": "10%"}}
    assert [(await poll(path, api.url, keys)).outcome for _ in range(3)] == [Outcome.COMPLETE] * 3


# ---- what the API lists and we do not publish


async def test_a_record_that_a_filter_leaves_out_is_still_there(api: FakeApi, path: Path) -> None:
    shut = reply(json.dumps({"data": [*rows([1], state="open"), *rows([2], state="shut")]}))
    say(api, [answer([1, 2], state="open"), shut, answer([1], state="open")])
    keys = {**LINKED, "transform": [{"filter": "state == 'open'"}]}
    found = []
    for _ in range(3):
        await poll(path, api.url, keys)
        found.append(await deleted(path))
    assert found == [[], [], [("2", "o2")]]


@pytest.mark.parametrize("more", [{}, {"transform": [{"drop": ["secret"]}]}])
async def test_a_record_that_lost_its_incremental_field_is_still_there(
    api: FakeApi, path: Path, more: dict[str, Any]
) -> None:
    every, unset = rows([1, 2, 3], at=moment(hours=1)), {"id": 2, "owner": "o2", "at": None}
    lists = [every, [every[0], unset, every[2]], [every[0], {"id": None}, unset], [every[0]]]
    say(api, [reply(json.dumps({"data": one})) for one in lists])
    incremental = {"type": "timestamp", "field": "at", "on_null": "skip"}
    found = []
    for _ in lists:
        await poll(path, api.url, {**LINKED, **more, "incremental": incremental})
        found.append([name for name, _ in await deleted(path)])
    assert found == [[], [], [], ["2", "3"]]  # nobody knows which one it was that had no id


async def test_a_record_that_a_schema_refuses_is_still_there_and_casts_no_doubt(api: FakeApi, path: Path) -> None:
    (path.parent / "state.json").write_text('{"properties": {"state": {"type": "string"}}}')
    bad = reply(json.dumps({"data": [*rows([1], state="a"), *rows([2], state=7)]}))
    say(api, [answer([1, 2, 3], state="a"), bad])
    keys = {**LINKED, "schema": {"file": str(path.parent / "state.json")}}
    await poll(path, api.url, keys)
    report = await poll(path, api.url, keys)
    assert (report.dead_letters, "sweep_in_doubt" in report.notices) == (1, False)
    assert await deleted(path) == [("3", "o3")]


@pytest.mark.parametrize("last", [{"n": "x", "lines": [{}]}, {"n": 1, "lines": 5}])
async def test_a_record_that_is_left_out_and_cannot_be_taken_apart_casts_doubt(
    api: FakeApi, path: Path, last: dict[str, Any]
) -> None:
    """It is not published, and what it was taken apart into may all be there still."""
    good = {"id": 1, "state": "open", "n": 1, "lines": [{}, {}]}
    steps = [{"filter": "state == 'open'"}, {"cast": {"n": "integer"}}, {"explode": "lines"}]
    keys = {**LINKED, "id": "^.id", "key": "^.id", "transform": steps}
    listed = [[good, {**good, "id": 2}], [good, {"id": 2, "state": "shut", **last}], [good]]
    say(api, [reply(json.dumps({"data": one})) for one in listed])
    reports = [await poll(path, api.url, keys) for _ in listed]
    assert [(r.deletes, r.dead_letters, "sweep_in_doubt" in r.notices) for r in reports] == [
        (0, 0, False), (0, 0, True), (2, 0, False)
    ]  # fmt: skip


# ---- what may not be concluded from a sweep that was interrupted

RESTARTING: dict[str, Any] = {"errors": [{"when": {"status": 200, "has": "$.moved"}, "do": "restart_listing"}]}


async def test_a_sweep_that_begins_again_behind_a_cap_lists_what_came_before_it_too(api: FakeApi, path: Path) -> None:
    every = [(n, moment(hours=9 - n)) for n in (1, 2, 3)]
    moves: list[str] = []

    def two_at_most(request: Request) -> Answer:
        since = request.query.get("since", "")
        if since == every[1][1] and moves:
            return reply(json.dumps({"data": [], "moved": moves.pop()}))(request)
        found = [{"id": n, "owner": f"o{n}", "at": at} for n, at in every if at >= since][:2]
        return reply(json.dumps({"data": found}))(request)

    api.routes["/events"] = two_at_most
    paginate = {**LINKED["paginate"], "listing_cap": 2}
    keys = {**LINKED, **RESTARTING, "paginate": paginate, "incremental": {**SINCE, "order": "asc", "on_null": "fail"}}
    assert (await poll(path, api.url, keys)).outcome is Outcome.COMPLETE
    moves.append("yes")
    report = await poll(path, api.url, keys)
    assert (report.outcome, moves) == (Outcome.COMPLETE, [])
    assert await deleted(path) == []


@pytest.mark.parametrize("then", [None, {"sweep": {"every": "10ms", "params": {"status": "any"}}}])
async def test_a_sweep_under_way_does_not_go_on_where_deletes_are_configured_anew(
    api: FakeApi, path: Path, then: dict[str, Any] | None
) -> None:
    say(api, [answer([1, 2, 3]), answer([1], "n"), reply("{}"), answer([1, 2, 3])])
    await poll(path, api.url, LINKED)
    assert (await poll(path, api.url, LINKED)).outcome is Outcome.FAILED
    now = {**LINKED, "deletes": then} if then else {name: key for name, key in LINKED.items() if name != "deletes"}
    await poll(path, api.url, now)
    assert (targets(api)[-1], await deleted(path)) == ("/events", [])


async def test_a_sweep_that_begins_again_leaves_the_start_token_of_the_next_run(api: FakeApi, path: Path) -> None:
    keys = {**LINKED, **RESTARTING, "incremental": {"type": "token", "from": "$.start", "param": "from"}}
    said = [{"data": rows([1]), "start": "s1"}, {"data": [], "start": "s2"}, {"moved": 1}, {"data": rows([1])}]
    say(api, [reply(json.dumps(one)) for one in said])
    for _ in range(3):
        await poll(path, api.url, keys)
    assert targets(api)[:5] == ["/events", "/events?from=s1", "/events", "/events", "/events?from=s2"]


async def test_a_sweep_that_is_refused_is_no_refused_start_token(api: FakeApi, path: Path) -> None:
    keys = {**LINKED, "incremental": {"type": "token", "from": "$.start", "param": "from"}}
    first = [reply(json.dumps({"data": rows([1]), "start": f"s{n}"})) for n in (1, 2)]
    say(api, [*first, reply("{}", status=400)])
    await poll(path, api.url, keys)
    assert (await poll(path, api.url, keys)).outcome is Outcome.FAILED
    assert targets(api) == ["/events", "/events?from=s1", "/events"]
