"""`conditional`: what an API says is new is read, what it says is not is not, and nothing is lost in between."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ingest.report import Outcome
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.unit.polling import TOPIC, Killed, StumblingCheckpoints, StumblingPublisher, fails, poll, process
from tests.unit.sources import targets

KEYS: dict[str, Any] = {"conditional": True}
SWEPT: dict[str, Any] = {**KEYS, "deletes": {"sweep": {"every": "1h"}}}


class Page:
    """A list at every path, with an ETag, a time or both; 304 where the request names what it has."""

    def __init__(self, api: FakeApi, named: Sequence[str] = ("etag",)) -> None:
        self.url, self._api, self._named = api.url, api, named
        self.rows: list[dict[str, Any]] = [{"id": 1}, {"id": 2}]
        self.status = 200
        api.routes = self  # type: ignore[assignment]

    def get(self, path: str) -> Any:
        return self._answer

    def _answer(self, request: Request) -> Answer:
        body = json.dumps({"data": self.rows}).encode()
        tags = {"etag": f'W/"{hash(body)}"', "last-modified": f"state {hash(body)}"}
        sent = {"etag": "if-none-match", "last-modified": "if-modified-since"}
        same = all(request.headers.get(sent[name]) == tags[name] for name in self._named)
        status = 304 if same and self._named else self.status
        headers = tuple((name, tags[name]) for name in self._named)
        return Answer(request, status=status, headers=headers, body=b"" if status == 304 else body)

    def asked(self) -> list[str]:
        """How often, and whether for anything or for something new."""
        found = [
            "new" if {"if-none-match", "if-modified-since"} & set(r.headers) else "all" for r in self._api.requests
        ]
        self._api.requests.clear()
        return found


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


@pytest.fixture
def path(sqlite_path: Path) -> Path:
    return sqlite_path


@pytest.mark.parametrize("named", [["etag"], ["last-modified"], ["etag", "last-modified"]])
async def test_what_is_not_new_is_not_read_and_what_is_is(api: FakeApi, path: Path, named: list[str]) -> None:
    page = Page(api, named)
    reports = [await poll(path, page.url, KEYS) for _ in range(2)]
    page.rows = [{"id": 1}, {"id": 3}]
    reports += [await poll(path, page.url, KEYS) for _ in range(2)]
    assert [(r.outcome, r.events, r.unchanged, r.reason) for r in reports] == [
        (Outcome.COMPLETE, 2, 0, "single page"),
        (Outcome.COMPLETE, 0, 0, "nothing new (304)"),
        (Outcome.COMPLETE, 1, 1, "single page"),
        (Outcome.COMPLETE, 0, 0, "nothing new (304)"),
    ]
    assert page.asked() == ["all", "new", "new", "new"]


async def test_an_api_that_names_no_state_is_read_again(api: FakeApi, path: Path) -> None:
    page = Page(api, [])
    assert [(await poll(path, page.url, KEYS)).unchanged for _ in range(2)] == [0, 2]
    assert page.asked() == ["all", "all"]


@pytest.mark.parametrize("step", ["publish", "save"])
async def test_the_state_of_a_page_that_was_not_saved_is_not_remembered(api: FakeApi, path: Path, step: str) -> None:
    page = Page(api)
    await poll(path, page.url, KEYS)
    page.rows += [{"id": 3}]
    dies = {0: fails(Killed())}
    with pytest.raises(ExceptionGroup):
        async with process(
            path,
            publisher=lambda p: StumblingPublisher(p, before=dies) if step == "publish" else p,
            checkpoints=lambda db: StumblingCheckpoints(db, before=dies if step == "save" else {}),
        ) as one:
            await one.poll(page.url, KEYS)
    await poll(path, page.url, KEYS)
    async with process(path) as one:
        assert set(await one.ids()) == {"1", "2", "3"}
        assert await one.stored() == 3


async def test_a_page_that_was_published_and_not_saved_is_asked_for_whatever_the_api_has_now(
    api: FakeApi, path: Path
) -> None:
    """A → B → A, and the poller dies with B: the log must end with A."""
    page = Page(api)
    before, after = [{"id": 1, "a": 1}], [{"id": 1, "a": 2}]
    page.rows = before
    await poll(path, page.url, KEYS)
    page.rows = after
    with pytest.raises(ExceptionGroup):
        async with process(path, checkpoints=lambda db: StumblingCheckpoints(db, before={0: fails(Killed())})) as one:
            await one.poll(page.url, KEYS)
    page.rows = before
    await poll(path, page.url, KEYS)
    async with process(path) as one:
        assert [json.loads(event.payload)["a"] for event in await one.events()] == [1, 2, 1]
    assert page.asked() == ["all", "new", "all"]


@pytest.mark.parametrize(
    "keys", [{"params": {"a": "1"}}, {"transform": [{"add": {"b": "c"}}]}, {"version": "id"}, {"records": "$.data[*]"}]
)
async def test_what_becomes_of_the_answer_is_part_of_its_state(api: FakeApi, path: Path, keys: dict[str, Any]) -> None:
    page = Page(api)
    await poll(path, page.url, KEYS)
    await poll(path, page.url, {**KEYS, **keys})
    await poll(path, page.url, {**KEYS, **keys})
    assert page.asked() == ["all", "all", "new"]


async def test_a_topic_that_was_made_anew_is_filled_again(api: FakeApi, path: Path) -> None:
    page = Page(api)
    await poll(path, page.url, KEYS)
    async with process(path) as one:
        await one.database.write(lambda connection: connection.execute("DELETE FROM log"))
        await one.database.write(lambda connection: connection.execute("DELETE FROM topics WHERE name = ?", (TOPIC,)))
    report = await poll(path, page.url, KEYS)
    assert (report.events, page.asked()) == (2, ["all", "all"])


async def test_a_304_counts_nothing_and_concludes_no_delete(api: FakeApi, path: Path) -> None:
    page = Page(api)
    keys = {**SWEPT, "expect": {"min_records": 1, "max_drop": "60%"}}
    reports = [await poll(path, page.url, keys) for _ in range(3)]
    assert [(r.outcome, r.deletes, r.notices) for r in reports] == [(Outcome.COMPLETE, 0, {})] * 3
    page.rows = page.rows[1:]
    report = await poll(path, page.url, keys)
    assert (report.outcome, report.deletes) == (Outcome.COMPLETE, 1)
    page.rows = []
    assert (await poll(path, page.url, keys)).outcome is Outcome.FAILED  # fewer than min_records
    assert (await poll(path, page.url, keys)).outcome is Outcome.FAILED  # and not forgotten
    assert page.asked() == ["all", "new", "new", "new", "new", "all"]


async def test_an_answer_that_is_in_doubt_is_read_again(api: FakeApi, path: Path) -> None:
    page = Page(api)
    page.rows += [{"id": None}]
    reports = [await poll(path, page.url, SWEPT) for _ in range(2)]
    assert [r.dead_letters for r in reports] == [1, 1]
    assert page.asked() == ["all", "all"]


async def test_a_304_that_was_not_asked_for_is_refused(api: FakeApi, path: Path) -> None:
    page = Page(api)
    page.status = 304
    for keys in ({}, KEYS):
        report = await poll(path, page.url, keys)
        assert (report.outcome, ": 304" in report.reason) == (Outcome.FAILED, True)


async def test_each_parent_is_asked_for_what_is_new_there(api: FakeApi, path: Path) -> None:
    page = Page(api)
    keys = {**KEYS, "parent": "repos", "path": "/repos/{parent.id}"}
    above = {"streams": {"repos": {"path": "/repos", "records": "$.data", "id": "id", **KEYS}}}
    reports = [await poll(path, page.url, keys, above) for _ in range(2)]
    assert [(r.outcome, r.events, r.unchanged) for r in reports] == [
        (Outcome.COMPLETE, 4, 0), (Outcome.COMPLETE, 0, 0)
    ]  # fmt: skip
    assert sorted(targets(api)) == sorted(2 * ["/repos", "/repos/1", "/repos/2"])
    assert page.asked() == ["all"] * 4 + ["new"] * 2
