"""A listing counts only when the API says, before it and after it, that we are let in."""

import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import pytest_asyncio

from ingest.errors import SourceRefused, SourceUnavailable
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.issuer import Issuer
from tests.harness.listings import Answer
from tests.harness.listings import Request as Asked
from tests.unit.sources import PAGING, Watching, ids, opened, read, read_until_it_fails, reply, say, targets

NEXT_URL = PAGING["next_url"]
ROWS = [row["id"] for row in numbered(6)]
PROBE = {"probe": {"path": "/me"}}
BEARER = {"bearer": "${env:KEY}"}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "secret-key")


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        running.serve("events", numbered(6), page_size=2)
        yield running


PAGES = ["/events", "/events?token=t2", "/events?token=t4"]


async def test_the_probe_is_asked_before_a_listing_and_before_it_counts_as_complete(api: FakeApi) -> None:
    say(api, [reply("")], "/me")
    above = {"auth": {**BEARER, **PROBE}, "headers": {"X-A": "1"}, "params": {"a": "b", "key": "${env:KEY}"}}
    async with opened(api.url, {**NEXT_URL, "headers": {"X-B": "2"}}, above) as source:
        assert ids(await read(source)) == ROWS
    probes = [request for request in api.requests if request.path == "/me"]
    assert [request.path for request in api.requests] == ["/me", "/events", "/events", "/events", "/me"]
    assert {request.target for request in probes} == {"/me?a=b&key=secret-key"}
    assert all(request.headers["authorization"] == "Bearer secret-key" for request in probes)
    assert all(request.headers["x-a"] == "1" for request in probes)


async def test_without_a_probe_nothing_is_asked_but_the_pages(api: FakeApi) -> None:
    async with opened(api.url, NEXT_URL, {"auth": BEARER}) as source:
        assert not await source.enter(Watching())
        await read(source)
    assert targets(api) == PAGES


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (reply("{}", 401), SourceRefused),
        (reply("{}", 403), SourceRefused),
        (reply("{}", 404), SourceRefused),
        (reply("", 302, location="/login"), SourceRefused),
        (reply("{}", 503), SourceUnavailable),
    ],
)
async def test_nothing_is_listed_while_the_probe_does_not_answer_2xx(
    api: FakeApi, answer: Callable[[Asked], Answer], kind: type[Exception]
) -> None:
    say(api, [answer], "/me")
    say(api, [reply("<html>log in</html>")], "/login")
    async with opened(api.url, NEXT_URL, {"auth": {**BEARER, **PROBE}}) as source:
        with pytest.raises(kind, match="/me"):
            await source.enter(Watching())
        pages, error = await read_until_it_fails(source)
    assert isinstance(error, kind)
    assert str(error).startswith("ingest.yaml:7:9: `auth.probe`") or kind is SourceUnavailable
    assert pages == []
    assert not [target for target in targets(api) if target.startswith("/events")]


async def test_a_probe_that_is_refused_is_no_refused_page_token(api: FakeApi) -> None:
    say(api, [reply(""), reply(""), reply("{}", 404)], "/me")
    async with opened(api.url, NEXT_URL, {"auth": {**BEARER, **PROBE}}) as source:
        [first] = await read(source, pages=1)
        await source.enter(Watching())
        watch = Watching()
        with pytest.raises(SourceRefused):
            await read(source, first.cursor, watch)
    assert watch.restarts == []


async def test_a_listing_does_not_end_where_the_probe_is_refused_in_the_end(api: FakeApi) -> None:
    say(api, [reply(""), reply("{}", 401)], "/me")
    async with opened(api.url, NEXT_URL, {"auth": {**BEARER, **PROBE}}) as source:
        pages, error = await read_until_it_fails(source)
    assert isinstance(error, SourceRefused)
    assert ids(pages) == ROWS[:4]
    assert all(page.stop is None for page in pages)


class Forgetful:
    """An API that answers 200 with nothing to a token that has ended, and says so at /me alone."""

    def __init__(self, api: FakeApi, issuer: Issuer, ends: Mapping[int, str]) -> None:
        self._issuer, self._ends, self._count = issuer, ends, itertools.count()
        self._listing = api.serve("listed", numbered(6), page_size=2)
        api.routes |= {"/token": issuer.token, "/me": issuer.guarded(reply("{}")), "/events": self.events}

    def events(self, request: Asked) -> Answer:
        self._issuer.good.discard(self._ends.get(next(self._count), ""))
        if request.headers["authorization"].removeprefix("Bearer ") in self._issuer.good:
            return self._listing.answer(request)
        return Answer(request, body=json.dumps({"data": [], "next": None}).encode())


def oauth2(api: FakeApi) -> Mapping[str, Any]:
    client = {"token_url": f"{api.url}/token", "client_id": "client", "client_secret": "${env:KEY}"}
    return {"auth": {"oauth2": client, **PROBE}}


async def test_a_listing_whose_credential_ended_is_read_again_with_a_fresh_one(api: FakeApi) -> None:
    issuer = Issuer(client_secret="secret-key")
    Forgetful(api, issuer, {1: "access-token-0001"})
    watch = Watching()
    async with opened(api.url, NEXT_URL, oauth2(api)) as source:
        pages = await read(source, watch=watch)
    assert ids(pages) == [*ROWS[:2], *ROWS]
    assert [page.stop is not None for page in pages] == [False, False, False, True]
    assert watch.restarts == ["`auth.probe` found us let in no longer, and there are fresh credentials now"]
    assert targets(api).count("/token") == 2


async def test_a_listing_that_an_earlier_run_began_is_read_again_from_its_start(api: FakeApi) -> None:
    issuer = Issuer(client_secret="secret-key")
    Forgetful(api, issuer, {1: "access-token-0001"})
    async with opened(api.url, NEXT_URL, oauth2(api)) as source:
        [first] = await read(source, pages=1)
        assert ids(await read(source, first.cursor)) == ROWS


async def test_a_listing_whose_credential_ends_again_and_again_fails(api: FakeApi) -> None:
    issuer = Issuer(client_secret="secret-key")
    Forgetful(api, issuer, {1: "access-token-0001", 3: "access-token-0002"})
    async with opened(api.url, NEXT_URL, oauth2(api)) as source:
        pages, error = await read_until_it_fails(source)
    assert isinstance(error, SourceRefused)
    assert "twice at the end of a listing" in str(error)
    assert all(page.stop is None for page in pages)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_credential_that_has_ended_before_a_listing_is_renewed(api: FakeApi, status: int) -> None:
    issuer = Issuer(client_secret="secret-key")
    Forgetful(api, issuer, {})
    guarded = issuer.guarded(reply("{}"))
    asked = itertools.count()

    def me(request: Asked) -> Answer:
        return Answer(request, status=status, body=b"{}") if next(asked) == 0 else guarded(request)

    api.routes["/me"] = me
    async with opened(api.url, NEXT_URL, oauth2(api)) as source:
        assert ids(await read(source)) == ROWS
    assert targets(api).count("/token") == 2
