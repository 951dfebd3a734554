"""A login gives a token, which goes where it is wanted until it ends."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from ingest.errors import SourceChanged, SourceRefused, SourceUnavailable
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer
from tests.harness.listings import Request as Asked
from tests.unit.sources import PAGING, Timeless, ids, opened, opened_twice, read, read_until_it_fails, reply, say

NEXT_URL = PAGING["next_url"]
LOGIN = {"path": "/login", "json": {"user": "reader", "password": "${env:PASSWORD}"}}
HEADER = {"header": "X-Session"}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "correct horse")
    monkeypatch.setenv("KEY", "key-of-the-source")


class Door:
    """Gives `session-1`, `session-2`, … and lets in whoever shows the newest one, wherever it is."""

    def __init__(self) -> None:
        self.logins: list[Asked] = []
        self.newest = ""

    def login(self, request: Asked) -> Answer:
        self.logins.append(request)
        self.newest = f"session-{len(self.logins)}"
        cookies = f"a=b; Expires=Wed, 21 Oct 2065 07:28:00 GMT, sid={self.newest}; Path=/; HttpOnly, c=d"
        headers = (("x-session", self.newest), ("set-cookie", cookies))
        return Answer(request, headers=headers, body=json.dumps({"data": {"token": self.newest}}).encode())

    def events(self, request: Asked) -> Answer:
        shown = [request.headers.get("x-session"), request.headers.get("cookie"), request.query.get("session")]
        if not any(self.newest and text is not None and self.newest in text for text in shown):
            return Answer(request, status=401, body=b"{}")
        number = int(request.query.get("page", "0"))
        following = f"/events?page={number + 1}" if number < 2 else None
        return Answer(request, body=json.dumps({"data": [{"id": number}], "next": following}).encode())


@pytest.fixture
def door() -> Door:
    return Door()


@pytest_asyncio.fixture
async def api(door: Door) -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        running.routes |= {"/login": door.login, "/events": door.events}
        yield running


def session(**keys: Any) -> Mapping[str, Any]:
    return {"auth": {"session": {"login": LOGIN, "token": "$.data.token", "send": HEADER, **keys}}}


@pytest.mark.parametrize("token", ["$.data.token", "header.X-Session", "cookie.sid"])
@pytest.mark.parametrize(
    ("send", "shown"),
    [
        ({"header": "X-Session"}, ("x-session", "session-1")),
        ({"header": "X-Session", "value": "Token {token}!"}, ("x-session", "Token session-1!")),
        ({"cookie": "sid"}, ("cookie", "sid=session-1")),
        ({"query": "session"}, None),
    ],
)
async def test_one_login_gives_the_token_of_every_page_of_every_stream(
    api: FakeApi, door: Door, token: str, send: Mapping[str, str], shown: tuple[str, str] | None
) -> None:
    async with opened_twice(api.url, NEXT_URL, session(token=token, send=send)) as streams:
        for stream in streams:
            assert ids(await read(stream)) == ["0", "1", "2"]
    assert len(door.logins) == 1
    assert json.loads(door.logins[0].body) == {"user": "reader", "password": "correct horse"}
    pages = [request for request in api.requests if request.path == "/events"]
    assert len(pages) == 6
    for page in pages:
        assert page.query.get("session") == "session-1" if shown is None else page.headers[shown[0]] == shown[1]


async def test_a_cookie_goes_back_as_it_came(api: FakeApi, door: Door) -> None:
    above = {"auth": {"session": {"login": LOGIN, "token": "cookie.sid"}}, "headers": {"Cookie": "lang=en"}}
    async with opened(api.url, NEXT_URL, above) as source:
        await read(source)
    assert api.requests[-1].headers["cookie"] == "lang=en; sid=session-1"


async def test_a_login_carries_the_headers_and_parameters_of_the_source_and_its_own(api: FakeApi, door: Door) -> None:
    login = {"method": "PUT", "path": "/login", "form": {"p": "${env:PASSWORD}", "n": 1}, "params": {"b": 2}}
    login |= {"headers": {"X-B": "2"}}
    above = {"params": {"a": 1, "key": "${env:KEY}"}, "headers": {"X-A": "1", "X-Key": "${env:KEY}"}}
    async with opened(api.url, NEXT_URL, {**above, **session(login=login)}) as source:
        await read(source)
    [asked] = door.logins
    assert (asked.method, asked.target) == ("PUT", "/login?a=1&b=2&key=key-of-the-source")
    assert asked.body == b"p=correct%20horse&n=1"
    assert [asked.headers[name] for name in ("x-a", "x-b", "x-key")] == ["1", "2", "key-of-the-source"]
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"


async def test_a_session_that_is_refused_is_begun_anew_and_the_same_page_is_asked_for_again(
    api: FakeApi, door: Door
) -> None:
    async with opened(api.url, NEXT_URL, session()) as source:
        [first] = await read(source, pages=1)
        door.newest = "session-0"
        assert ids(await read(source, first.cursor)) == ["1", "2"]
    assert len(door.logins) == 2
    assert [request.target for request in api.requests] == [
        *("/login", "/events", "/events?page=1", "/login", "/events?page=1", "/events?page=2")
    ]


async def test_a_session_that_is_refused_as_soon_as_it_begins_fails_the_stream(api: FakeApi, door: Door) -> None:
    say(api, [reply("{}", 401)])
    async with opened(api.url, NEXT_URL, session()) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceRefused)
    assert len(door.logins) == 2


async def test_a_session_is_begun_anew_when_its_time_is_up(api: FakeApi, door: Door) -> None:
    time = Timeless()
    async with opened(api.url, NEXT_URL, session(ttl="30m"), clock=time.clock) as source:
        await read(source)
        time.hands += 1799
        await read(source)
        assert len(door.logins) == 1
        time.hands += 2
        await read(source)
    assert len(door.logins) == 2


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_a_login_that_is_refused_says_so_and_is_not_tried_again(api: FakeApi, status: int) -> None:
    say(api, [reply('{"error":"no"}', status)], "/login")
    async with opened(api.url, NEXT_URL, session()) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceRefused)
    assert f"no session: POST {api.url}/login: {status}" in str(error)
    assert str(error).endswith("look at `auth.session.login`")
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    ("token", "body"),
    [
        ("$.token", '{"data":{}}'),
        ("$.data", '{"data":{"token":"hidden-token"}}'),
        ("cookie.other", "{}"),
        ("header.x-y", ""),
    ],
)
async def test_a_login_without_a_token_says_where_it_was_looked_for_and_nothing_of_what_came(
    api: FakeApi, token: str, body: str
) -> None:
    say(api, [reply(body, set_cookie="sid=hidden-token")], "/login")
    async with opened(api.url, NEXT_URL, session(token=token)) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceChanged)
    assert f"/login answered 200 without a token at `auth.session.token: {token}`" in str(error)
    assert "hidden" not in str(error)


async def test_a_broken_answer_to_a_login_is_tried_again_and_not_shown(api: FakeApi) -> None:
    say(api, [reply('{"data":{"token":"hidden-token"')], "/login")
    async with opened(api.url, NEXT_URL, session()) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceUnavailable)
    assert "attempt 3 of 3: the body cannot be read" in str(error)
    assert "hidden" not in str(error)


async def test_a_token_may_be_all_that_the_answer_holds(api: FakeApi, door: Door) -> None:
    door.newest = "plain-session"
    say(api, [reply("plain-session\n", content_type="text/plain")], "/login")
    async with opened(api.url, NEXT_URL, session(token="$")) as source:
        assert ids(await read(source)) == ["0", "1", "2"]
