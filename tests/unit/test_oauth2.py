"""An access token is fetched once for all who need it, in time, and sent to nobody but the API."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import pytest_asyncio

from ingest import metrics
from ingest.errors import SourceChanged, SourceRefused, SourceUnavailable
from ingest.redaction import Redactor
from ingest.sources.auth import Credentials
from ingest.sources.auth.keyring import open_keyring
from ingest.sources.auth.renewed import Place
from ingest.sources.request import Request
from ingest.sources.transport import open_transport
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.issuer import Issuer
from tests.harness.listings import Answer
from tests.harness.listings import Request as Asked
from tests.unit.sources import (
    PAGING,
    QUICK,
    Timeless,
    Watching,
    configured,
    ids,
    opened,
    opened_twice,
    read,
    read_until_it_fails,
    reply,
    say,
    targets,
)

NEXT_URL = PAGING["next_url"]
ROWS = [row["id"] for row in numbered(6)]
TOKENS = ["access-token-0001", "access-token-0002", "access-token-0003"]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "client-secret")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApi]:
    """The token endpoint, on an origin of its own."""
    async with FakeApi() as running:
        yield running


@pytest.fixture
def issuer(server: FakeApi) -> Issuer:
    made = Issuer()
    server.routes["/token"] = made.token
    return made


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


def oauth2(server: FakeApi, **keys: Any) -> Mapping[str, Any]:
    given = {"token_url": f"{server.url}/token", "client_id": "client", "client_secret": "${env:CLIENT_SECRET}"}
    return {"auth": {"oauth2": {**given, **keys}}}


def pages(api: FakeApi, issuer: Issuer, ends: Mapping[int, str] = {}) -> None:
    """Six rows on three pages, for whoever has a token that works. `ends`: before which request which one ends."""
    listing = api.serve("listed", numbered(6), page_size=2)
    count = itertools.count()

    def answer(request: Asked) -> Answer:
        issuer.good.discard(ends.get(next(count), ""))
        return issuer.guarded(listing.answer)(request)

    api.routes["/events"] = answer


@asynccontextmanager
async def credentials(above: Mapping[str, Any]) -> AsyncIterator[Credentials]:
    source, _ = configured(above=above)
    async with (
        open_transport(source, Redactor()) as transport,
        open_keyring("api", source, transport, Redactor()) as keyring,
    ):
        yield keyring.credentials(source.streams["events"])


def bearers(api: FakeApi) -> list[str]:
    return [request.headers.get("authorization", "").removeprefix("Bearer ") for request in api.requests]


# ---- how a token is asked for


@pytest.mark.parametrize("send_as", ["body", "basic"])
async def test_a_token_is_fetched_once_and_shown_with_every_page_of_every_stream(
    api: FakeApi, issuer: Issuer, server: FakeApi, send_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.client_id, issuer.client_secret = "cli:ent ä", "s:ecret&ö/+ "
    monkeypatch.setenv("CLIENT_SECRET", issuer.client_secret)
    pages(api, issuer)
    above = oauth2(
        server, client_id=issuer.client_id, scopes=["read", "list"], send_as=send_as, params={"audience": 1.5}
    )
    async with opened_twice(api.url, NEXT_URL, above) as streams:
        found = await asyncio.gather(*(read(stream) for stream in streams))
    assert [ids(listed) for listed in found] == [ROWS, ROWS]
    assert bearers(api) == [TOKENS[0]] * 6
    [form], [asked] = issuer.forms, issuer.asked
    rest = {"grant_type": "client_credentials", "scope": "read list", "audience": "1.5"}
    client = {"client_id": issuer.client_id, "client_secret": issuer.client_secret}
    assert form == ({**rest, **client} if send_as == "body" else rest)
    assert (asked.method, asked.headers["accept"]) == ("POST", "application/json")
    assert ("authorization" in asked.headers) == (send_as == "basic")


async def test_nothing_but_the_client_is_shown_to_the_token_endpoint(
    api: FakeApi, issuer: Issuer, server: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "another-secret")
    pages(api, issuer)
    above = {"headers": {"X-Key": "${env:KEY}", "X-Team": "t"}, "params": {"key": "${env:KEY}"}, **oauth2(server)}
    async with opened(api.url, {**NEXT_URL, "headers": {"Cookie": "sid=1"}}, above) as source:
        await read(source)
    [asked] = issuer.asked
    assert asked.target == "/token"
    assert set(asked.headers) == {
        *("host", "accept", "accept-encoding", "user-agent", "connection", "content-type", "content-length")
    }


async def test_a_token_endpoint_that_sends_us_elsewhere_is_not_followed(
    api: FakeApi, issuer: Issuer, server: FakeApi
) -> None:
    say(server, [reply("", 307, location=f"{api.url}/token")], "/token")
    async with opened(api.url, NEXT_URL, oauth2(server)) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceChanged)
    assert "only GET is followed" in str(error)
    assert api.requests == []


# ---- when it is fetched anew


@pytest.mark.parametrize(
    ("said", "leeway", "renewed_at"),
    [
        (1000, "60s", 940),
        (1000, 0, 1000),
        (100, "60s", 50),
        ("1000", "60s", 940),
        ("1000.5", "60s", 940.5),
        (None, "60s", None),
        ("soon", "60s", None),
        (0, "60s", None),
        (-5, "60s", None),
        (True, "60s", None),
        ("nan", "60s", None),
        (1e300, "60s", None),
    ],
)
async def test_a_token_is_fetched_anew_before_it_ends(
    api: FakeApi, issuer: Issuer, server: FakeApi, said: Any, leeway: str | int, renewed_at: float | None
) -> None:
    issuer.expires_in = said
    pages(api, issuer)
    time = Timeless()
    async with opened(api.url, NEXT_URL, oauth2(server, leeway=leeway), clock=time.clock) as source:
        await read(source)
        time.hands = 1e6 if renewed_at is None else renewed_at - 0.01
        await read(source)
        assert len(issuer.asked) == 1
        time.hands = time.hands + 0.02
        await read(source)
    assert len(issuer.asked) == (1 if renewed_at is None else 2)


async def test_a_token_that_ends_while_we_wait_is_fetched_anew_before_the_next_try(
    api: FakeApi, issuer: Issuer, server: FakeApi
) -> None:
    issuer.expires_in = 60
    say(api, [reply("", 429, retry_after="90"), reply('{"data":[]}')])
    time = Timeless()
    async with opened(api.url, {}, oauth2(server), clock=time.clock) as source:
        await read(source)
    assert bearers(api) == TOKENS[:2]


async def test_a_token_that_is_refused_is_fetched_anew_and_the_same_page_is_asked_for_again(
    api: FakeApi, issuer: Issuer, server: FakeApi
) -> None:
    pages(api, issuer, {1: TOKENS[0]})
    watch = Watching()
    async with opened(api.url, NEXT_URL, {**oauth2(server), "retry": {"attempts": 1}}) as source:
        assert ids(await read(source, watch=watch)) == ROWS
    assert bearers(api) == [TOKENS[0], TOKENS[0], TOKENS[1], TOKENS[1]]
    assert targets(api)[1] == targets(api)[2]
    assert watch.retries == []


async def test_a_token_that_is_refused_twice_fails_the_stream(api: FakeApi, issuer: Issuer, server: FakeApi) -> None:
    say(api, [reply("{}", 401)])
    async with opened(api.url, NEXT_URL, oauth2(server)) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceRefused)
    assert error.status == 401
    assert bearers(api) == TOKENS[:2]
    assert len(issuer.asked) == 2


async def test_a_request_is_refreshed_once_also_when_it_is_tried_again_in_between(
    api: FakeApi, issuer: Issuer, server: FakeApi
) -> None:
    say(api, [reply("", 401), reply("", 503), reply("", 401)])
    async with opened(api.url, NEXT_URL, oauth2(server)) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceRefused)
    assert (len(api.requests), len(issuer.asked)) == (3, 2)


async def test_streams_that_are_refused_together_fetch_one_token(api: FakeApi, issuer: Issuer, server: FakeApi) -> None:
    issuer.pause = 0.05
    pages(api, issuer, {0: TOKENS[0]})
    async with opened_twice(api.url, NEXT_URL, oauth2(server)) as streams:
        found = await asyncio.gather(*(read(stream) for stream in streams))
    assert [ids(listed) for listed in found] == [ROWS, ROWS]
    assert len(issuer.asked) == 2


async def test_a_token_that_was_refused_and_replaced_already_is_not_fetched_again(
    issuer: Issuer,
    server: FakeApi,
) -> None:
    async with credentials(oauth2(server)) as ours:
        first, second = [await ours.prepare(Request("http://api.example.com/events")) for _ in range(2)]
        assert await ours.renew(first)
        assert await ours.renew(second)
        assert len(issuer.asked) == 2
        third = await ours.prepare(Request("http://api.example.com/events"))
        assert third.headers["authorization"] == f"Bearer {TOKENS[1]}"
        assert await ours.renew(third)
    assert len(issuer.asked) == 3


async def test_a_stream_that_is_cut_short_does_not_cut_the_fetching_short(
    api: FakeApi, issuer: Issuer, server: FakeApi
) -> None:
    issuer.pause = 0.05
    pages(api, issuer)
    asked = asyncio.Event()

    def token(request: Asked) -> Answer:
        asked.set()
        return issuer.token(request)

    server.routes["/token"] = token
    async with opened_twice(api.url, NEXT_URL, oauth2(server)) as (one, other):
        cut = asyncio.create_task(read(one))
        whole = asyncio.create_task(read(other))
        await asked.wait()
        cut.cancel()
        assert ids(await whole) == ROWS
        assert await asyncio.wait([cut])
    assert cut.cancelled()
    assert len(issuer.asked) == 1


async def test_fetching_a_token_is_not_on_the_clock_of_the_request_that_waits_for_it(
    api: FakeApi, issuer: Issuer, server: FakeApi
) -> None:
    tries = iter([reply("", 503), reply("", 503), issuer.token])
    server.routes["/token"] = lambda request: next(tries)(request)
    pages(api, issuer)
    above = {**oauth2(server), "timeout": {"total": "5s"}, "retry": {"base": "8s", "cap": "8s"}}
    time = Timeless()
    async with opened(api.url, NEXT_URL, above, clock=time.clock) as source:
        assert ids(await read(source)) == ROWS


# ---- a token endpoint that fails


async def test_a_token_endpoint_is_tried_again_as_an_api_is(api: FakeApi, issuer: Issuer, server: FakeApi) -> None:
    tries = iter([reply("", 503), reply("<html>", 200), reply("", 429, retry_after="7"), issuer.token])
    server.routes["/token"] = lambda request: next(tries)(request)
    pages(api, issuer)
    time = Timeless()
    above = {**oauth2(server), "retry": {**QUICK, "attempts": 4}}
    async with opened(api.url, NEXT_URL, above, clock=time.clock) as source:
        assert ids(await read(source)) == ROWS
    assert 7 <= sum(time.slept) <= 7.1


async def test_a_token_endpoint_that_stays_away_makes_the_source_unavailable(
    api: FakeApi, issuer: Issuer, server: FakeApi
) -> None:
    say(server, [reply("", 503)], "/token")
    async with opened(api.url, NEXT_URL, oauth2(server)) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceUnavailable)
    assert f"POST {server.url}/token, attempt 3 of 3: 503" in str(error)
    assert (len(server.requests), len(api.requests)) == (3, 0)


@pytest.mark.parametrize(
    ("status", "body", "look"),
    [
        (400, '{"error":"invalid_client"}', "`client_id` and `client_secret`"),
        (401, '{"error":"invalid_client"}', "`client_id` and `client_secret`"),
        (400, '{"error":"invalid_scope"}', "`scopes`"),
        (403, "<html>no</html>", "`auth.oauth2`"),
        (404, "{}", "`auth.oauth2.token_url`"),
        (200, '{"error":"unauthorized_client","error_description":"no"}', "`client_id`, and which grants it may use"),
    ],
)
async def test_a_refused_client_is_not_tried_again_and_the_message_says_where_to_look(
    api: FakeApi, issuer: Issuer, server: FakeApi, status: int, body: str, look: str
) -> None:
    say(server, [reply(body, status)], "/token")
    async with opened(api.url, NEXT_URL, oauth2(server)) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceRefused)
    assert str(error).startswith(f"ingest.yaml:7:9: no access token: POST {server.url}/token")
    assert str(error).endswith(f"look at {look}")
    assert "base_url" not in str(error)
    assert (len(server.requests), len(api.requests)) == (1, 0)


async def test_a_refused_client_is_no_refused_page_token(api: FakeApi, issuer: Issuer, server: FakeApi) -> None:
    pages(api, issuer)
    async with opened(api.url, NEXT_URL, oauth2(server)) as source:
        [first] = await read(source, pages=1)
    say(server, [reply('{"error":"invalid_client"}', 400)], "/token")
    async with opened(api.url, NEXT_URL, oauth2(server)) as source:
        watch = Watching()
        with pytest.raises(SourceRefused, match="invalid_client"):
            await read(source, first.cursor, watch)
    assert watch.restarts == []
    assert len(server.requests) == 2


@pytest.mark.parametrize("body", ["{}", "[]", '{"access_token":""}', '{"access_token":5}'])
async def test_an_answer_without_a_token_says_so(api: FakeApi, issuer: Issuer, server: FakeApi, body: str) -> None:
    say(server, [reply(body)], "/token")
    async with opened(api.url, NEXT_URL, oauth2(server)) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceChanged)
    assert "there is no `access_token` in it; is `token_url` the token endpoint?" in str(error)


async def test_a_token_that_would_break_out_of_its_header_is_not_sent(
    api: FakeApi, issuer: Issuer, server: FakeApi
) -> None:
    say(server, [reply(json.dumps({"access_token": "a\r\nX-Evil: 1"}))], "/token")
    async with opened(api.url, NEXT_URL, oauth2(server)) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceChanged)
    assert "header" in str(error)
    assert api.requests == []


async def test_tokens_are_counted_by_what_came_of_them(api: FakeApi, issuer: Issuer, server: FakeApi) -> None:
    def counted() -> dict[str, float]:
        samples = [one for metric in metrics.tokens.collect() for one in metric.samples if one.name.endswith("_total")]
        return {one.labels["outcome"]: one.value for one in samples if one.labels["source"] == "api"}

    before = counted()
    pages(api, issuer)
    answers = {"fetched": issuer.token, "refused": reply("{}", 400), "unavailable": reply("", 503)}
    for answer in answers.values():
        server.routes["/token"] = answer
        async with opened(api.url, NEXT_URL, oauth2(server)) as source:
            with suppress(SourceRefused, SourceUnavailable):
                await read(source)
    after = counted()
    assert {outcome: after[outcome] - before.get(outcome, 0.0) for outcome in answers} == dict.fromkeys(answers, 1.0)


# ---- where a token goes


@pytest.mark.parametrize(
    ("place", "target", "headers"),
    [
        (Place("header", "authorization", "Token {token}!"), "/e?a=1", {"authorization": "Token t=;&1!"}),
        (Place("header", "x-session"), "/e?a=1", {"x-session": "t=;&1"}),
        (Place("query", "key"), "/e?a=1&key=t%3D%3B%261", {}),
        (Place("cookie", "sid"), "/e?a=1", {"cookie": "a=b; sid=t=;&1"}),
        (Place("cookie", "sid", "<{token}>"), "/e?a=1", {"cookie": "a=b; sid=<t=;&1>"}),
    ],
)
def test_a_token_is_found_where_it_was_put(place: Place, target: str, headers: Mapping[str, str]) -> None:
    given = {"cookie": "a=b"} if place.kind == "cookie" else {}
    sent = place.put(Request("http://h/e?a=1", headers=given), "t=;&1")
    assert (sent.url, sent.headers) == (f"http://h{target}", headers)
    assert place.found(sent) == "t=;&1"
    assert place.found(Request("http://h/e?a=1")) is None
