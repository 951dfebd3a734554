"""What `errors` says about an answer counts before anything else: the first rule that matches, and 2xx too."""

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from ingest.cli import show
from ingest.config.loader import parse
from ingest.errors import SourceChanged, SourceRefused, SourceUnavailable
from ingest.report import Outcome
from ingest.sources.rules import Rules
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.listings import Answer, Request, Style
from tests.unit.polling import poll
from tests.unit.sources import (
    PAGING,
    Watching,
    configured,
    cursor,
    failure,
    ids,
    list_all,
    opened,
    page,
    read,
    read_until_it_fails,
    reply,
    say,
    targets,
)

ALL = [row["id"] for row in numbered(10)]


def rule(do: str, **when: Any) -> dict[str, Any]:
    return {"errors": [{"when": when, "do": do}]}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


# ---- which rule matches


class Told(NamedTuple):
    status: int = 200
    body: bytes = b'{"error":{"code":7,"none":null,"zero":0,"text":"slow down"},"list":[],"data":[1]}'
    headers: Mapping[str, str] = {"x-left": "0", "x-empty": ""}


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({"status": 200}, True),
        ({"status": [500, 200]}, True),
        ({"status": 404}, False),
        ({"has": "$.error"}, True),
        ({"has": "error.code"}, True),
        ({"has": "$.error.none"}, False),
        ({"has": "$.error.zero"}, True),
        ({"has": "$.list"}, True),
        ({"has": "$.absent"}, False),
        ({"has": "header.X-Left"}, True),
        ({"has": "header.X-Right"}, False),
        ({"header": {"X-LEFT": "0"}}, True),
        ({"header": {"X-Left": 0}}, True),
        ({"header": {"X-Left": "1"}}, False),
        ({"header": {"X-Right": "0"}}, False),
        ({"where": "error.code == `7`"}, True),
        ({"where": "contains(error.text, 'slow')"}, True),
        ({"where": "error.zero"}, True),
        ({"where": "error.none"}, False),
        ({"where": "list"}, False),
        ({"where": "length(data) > `1`"}, False),
        ({"where": "contains(absent, 'x')"}, False),
        ({"status": 200, "has": "$.error", "header": {"X-Left": "0"}, "where": "error"}, True),
        ({"status": 200, "has": "$.error", "header": {"X-Left": "0"}, "where": "absent"}, False),
        ({"status": 201, "has": "$.error"}, False),
    ],
)
def test_everything_that_is_written_must_hold(when: Mapping[str, Any], holds: bool) -> None:
    _, stream = configured(keys=rule("fail", **when))
    assert Rules(stream.errors or ()).match(Told()) == ("fail" if holds else None)


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b'{"error":NaN', b"[" * 5000])
def test_a_body_that_is_no_json_has_nothing(body: bytes) -> None:
    _, stream = configured(
        keys={"errors": [{"when": {"has": "$.error"}, "do": "end"}, {"when": {"where": "@"}, "do": "end"}]}
    )
    assert Rules(stream.errors or ()).match(Told(body=body)) is None


def test_the_first_rule_that_matches_counts_and_a_stream_has_its_own() -> None:
    text = """
version: 1
sources:
  api:
    base_url: https://x.example
    errors: [{when: {status: 409}, do: skip}, {when: {status: [409, 410]}, do: end}]
    defaults: {records: $, path: /x}
    streams: {one: {}, two: {errors: [{when: {status: 410}, do: fail}]}}
"""
    source = parse(text).config.sources["api"]
    assert [Rules(source.errors).match(Told(status=status)) for status in (409, 410, 411)] == ["skip", "end", None]
    assert source.streams["one"].errors is None
    assert Rules(source.streams["two"].errors or ()).match(Told(status=409)) is None


# ---- what it does


@pytest.mark.parametrize("do", ["retry", "rate_limited"])
async def test_an_error_with_status_200_is_tried_again(api: FakeApi, do: str) -> None:
    api.serve("events", numbered(10), page_size=5)
    api.misbehave([faults.ok, faults.error_body({"error": "busy"})])
    watch = Watching()
    async with opened(api.url, {**PAGING["next_url"], **rule(do, has="$.error")}) as source:
        assert ids(await read(source, watch=watch)) == ALL
    assert [f"`errors` says {do}: 200" in reason for _, _, reason in watch.retries] == [True]
    assert any(notice.kind == "slowed_down" for notice in watch.notices) == (do == "rate_limited")
    api.misbehave(itertools.repeat(faults.error_body({"error": "busy"})))
    _, error = await failure(api.url, {**PAGING["next_url"], **rule(do, has="$.error")})
    assert isinstance(error, SourceUnavailable)


async def test_what_the_answer_asks_to_wait_is_waited_for_a_rule_too(api: FakeApi) -> None:
    say(api, [reply('{"error":1}', x_ratelimit_reset="0.01"), page(1)])
    watch = Watching()
    async with opened(api.url, rule("rate_limited", has="$.error")) as source:
        await read(source, watch=watch)
    assert watch.retries[0][1] >= 0.01


@pytest.mark.parametrize("status", [200, 404, 503])
async def test_fail_fails_at_once_whatever_the_status(api: FakeApi, status: int) -> None:
    say(api, [reply('{"error":"no"}', status)])
    pages, error = await failure(api.url, rule("fail", has="$.error"))
    assert isinstance(error, SourceRefused)
    assert f"GET {api.url}/events: `errors` says fail: {status} " in str(error)
    assert (pages, len(api.requests)) == ([], 1)


async def test_fail_restarts_no_window(api: FakeApi) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=4)
    async with opened(api.url, {**PAGING["cursor"], **rule("fail", status=404)}) as source:
        [first] = await read(source, pages=1)
        api.misbehave([faults.status(404)])
        _, error = await read_until_it_fails(source, first.cursor)
    assert isinstance(error, SourceRefused)
    assert len(api.requests) == 2


@pytest.mark.parametrize(
    ("style", "more", "left"),
    [
        ("page", {"size_param": "limit", "size": 3}, [*ALL[:3], *ALL[6:]]),
        ("offset", {"size_param": "limit", "size": 3}, [*ALL[:3], *ALL[6:]]),
        ("offset", {"size_param": "limit", "size": 4, "overlap": 2}, [*ALL[:4], *ALL[6:]]),
        ("offset", {}, ALL[:3]),
        ("cursor", {}, ALL[:3]),
        ("next_url", {}, ALL[:3]),
        ("link", {}, ALL[:3]),
        ("object", {}, ALL[:3]),
        ("keyset", {}, ALL[:3]),
    ],
)
async def test_skip_leaves_a_page_out_and_goes_on_where_it_can(
    api: FakeApi, style: Style, more: dict[str, Any], left: list[str]
) -> None:
    api.serve("events", numbered(10), style=style, page_size=4 if "overlap" in more else 3)
    api.misbehave([faults.ok, faults.status(403)])
    paginate = PAGING[style]["paginate"]
    paginate = {**({"type": paginate} if isinstance(paginate, str) else paginate), **more}
    watch = Watching()
    async with opened(api.url, {**PAGING[style], "paginate": paginate, **rule("skip", status=403)}) as source:
        pages = await read(source, watch=watch)
    assert list(dict.fromkeys(ids(pages))) == left
    assert sum(one.gaps for one in pages) == 1
    assert [notice.kind for notice in watch.notices if notice.kind == "gap"] == ["gap"]
    assert "403" in watch.notices[0].message


async def test_a_gap_is_counted_shown_and_leaves_the_stream_complete(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.serve("events", numbered(9), style="page", page_size=3)
    api.misbehave([faults.ok, faults.status(403)])
    report = await poll(tmp_path / "ingest.db", api.url, {**PAGING["page"], **rule("skip", status=403)})
    assert (report.outcome, report.gaps, report.events) == (Outcome.COMPLETE, 1, 6)
    show.reports([report], as_json=False, scrub=str)
    assert "3 (1 left out)" in capsys.readouterr().out
    show.reports([report], as_json=True, scrub=str)
    assert json.loads(capsys.readouterr().out)[0]["gaps"] == 1


async def test_a_listing_of_gaps_alone_comes_to_an_end(api: FakeApi) -> None:
    say(api, [reply("", 403)])
    pages, error = await failure(
        api.url, {"paginate": {"type": "page", "max_empty_pages": 5}, **rule("skip", status=403)}
    )
    assert isinstance(error, SourceChanged)
    assert "max_empty_pages" in str(error)
    assert len(pages) == 6


async def test_a_listing_that_was_left_behind_a_gap_goes_on_there(api: FakeApi) -> None:
    api.serve("events", numbered(9), style="page", page_size=3)
    api.misbehave([faults.status(403)])
    async with opened(api.url, {**PAGING["page"], **rule("skip", status=403)}) as source:
        [gap] = await read(source, pages=1)
        rest = await read(source, gap.cursor)
    assert ids(rest) == ALL[3:9]
    assert cursor(gap)["listing"]["doubt"] == "`errors` says skip to status 403"


@pytest.mark.parametrize("style", PAGING)
async def test_end_completes_the_listing(api: FakeApi, style: Style) -> None:
    api.serve("events", numbered(10), style=style, page_size=3)
    api.misbehave([faults.ok, faults.status(404)])
    incremental = {"type": "timestamp", "field": "updated_at"}
    pages = await list_all(api.url, {**PAGING[style], "incremental": incremental, **rule("end", status=404)})
    assert (ids(pages), pages[-1].stop, pages[-1].gaps) == (ALL[:3], "`errors` says end to status 404", 1)
    assert cursor(pages[-1])["high_water"] == numbered(10)[2]["updated_at"]


async def test_no_delete_is_concluded_from_a_listing_with_a_gap(api: FakeApi) -> None:
    keys = {**PAGING["page"], "deletes": {"sweep": {"every": "1d"}}}
    api.serve("events", numbered(9), style="page", page_size=3)
    for do, ends in (("skip", False), ("end", False), ("retry", True)):
        api.misbehave([faults.ok, faults.status(403)])
        pages = await list_all(api.url, {**keys, **rule(do, status=403)})
        assert pages[-1].sweep is not None
        assert pages[-1].sweep.ends == ends


async def test_restart_listing_begins_again_where_the_listing_began(api: FakeApi) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=4)
    api.misbehave([faults.ok, faults.status(409)])
    incremental = {"type": "integer", "field": "amount", "since": {"param": "from", "first": 5}}
    keys = {**PAGING["cursor"], "incremental": incremental, **rule("restart_listing", status=409)}
    watch = Watching()
    async with opened(api.url, keys) as source:
        pages = await read(source, watch=watch)
    assert ids(pages) == [*ALL[:4], *ALL]
    assert targets(api)[2] == targets(api)[0] == "/events?from=5"
    assert [restart.count("409") for restart in watch.restarts] == [1]


async def test_a_listing_is_begun_again_three_times_at_most(api: FakeApi) -> None:
    api.serve("events", numbered(10), style="cursor", page_size=4)
    api.misbehave([faults.ok, faults.status(409)] * 20)
    _, error = await failure(api.url, {**PAGING["cursor"], **rule("restart_listing", status=409)})
    assert isinstance(error, SourceChanged)
    assert "begun again 3 times" in str(error)
    assert len(api.requests) == 8


async def test_rules_are_about_listings_and_not_about_the_probe(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "the-secret-token")
    say(api, [reply('{"error":null,"me":1}')], "/me")
    say(api, [page(1)])
    above = {"auth": {"bearer": "${env:SECRET}", "probe": {"path": "/me"}}, **rule("end", where="me")}
    assert ids(await list_all(api.url, {}, above)) == ["1"]


# ---- refresh_auth


class Tokens:
    """Hands out tokens, and answers 200 with an error to those it no longer likes."""

    def __init__(self, api: FakeApi, bad: int) -> None:
        self.given, self._bad = 0, bad
        api.routes["/token"] = self.token
        api.routes["/events"] = self.events

    def token(self, request: Request) -> Answer:
        self.given += 1
        body = json.dumps({"access_token": f"token-number-{self.given}", "expires_in": 3600}).encode()
        return Answer(request, body=body)

    def events(self, request: Request) -> Answer:
        number = int(request.headers["authorization"].rsplit("-", 1)[1])
        return Answer(request, body=b'{"error":"expired"}' if number <= self._bad else b'{"data":[{"id":1}]}')


@pytest.fixture
def oauth(monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> dict[str, Any]:
    monkeypatch.setenv("SECRET", "the-client-secret")
    keys = {"token_url": f"{api.url}/token", "grant": "client_credentials", "client_id": "me"}
    auth = {"oauth2": {**keys, "client_secret": "${env:SECRET}"}}
    return {"auth": auth, **rule("refresh_auth", status=200, has="$.error")}


async def test_a_credential_that_an_answer_calls_bad_is_refreshed_and_the_request_goes_out_again(
    api: FakeApi, oauth: dict[str, Any]
) -> None:
    tokens = Tokens(api, bad=1)
    assert ids(await list_all(api.url, {}, oauth)) == ["1"]
    assert tokens.given == 2


async def test_a_fresh_credential_that_is_called_bad_too_fails_the_stream(api: FakeApi, oauth: dict[str, Any]) -> None:
    tokens = Tokens(api, bad=9)
    _, error = await failure(api.url, {}, oauth)
    assert isinstance(error, SourceRefused)
    assert "`errors` says refresh_auth: 200" in str(error)
    assert tokens.given == 2
    assert "token-number" not in str(error)


async def test_a_credential_that_cannot_be_refreshed_fails_the_stream(api: FakeApi) -> None:
    say(api, [reply('{"error":1}')])
    _, error = await failure(api.url, rule("refresh_auth", has="$.error"))
    assert isinstance(error, SourceRefused)
    assert len(api.requests) == 1
