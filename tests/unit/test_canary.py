"""No secret comes out anywhere, be it configured, fetched or made, whatever an API answers and repeats."""

import base64
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import pytest_asyncio
import structlog
from prometheus_client import generate_latest

from checkpoints import StreamId
from ingest import logging
from ingest.errors import IngestError
from ingest.redaction import Redactor
from ingest.report import Outcome, Report
from ingest.sources import Page
from ingest.sources.auth import State
from tests.contract.states import open_state
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.unit.sources import PAGING, QUICK, opened

SECRET = "c0nfigured/s&cret+=café canary"
ACCESS, NEXT_REFRESH, SESSION = "acc3ss-t0ken-canary", "r0tated-refr3sh-canary", "s3ssion-t0ken-canary"
SECRETS = (SECRET, ACCESS, NEXT_REFRESH, SESSION)

KINDS: Mapping[str, Mapping[str, Any]] = {
    "oauth2 in the body": {"oauth2": {"client_secret": "${env:CANARY}"}},
    "oauth2 as basic": {"oauth2": {"client_secret": "${env:CANARY}", "send_as": "basic"}},
    "oauth2 refresh": {"oauth2": {"grant": "refresh_token", "refresh_token": "${env:CANARY}"}},
    "session header": {"session": {"token": "$.token", "send": {"header": "X-Session"}}},
    "session query": {"session": {"token": "header.X-Session", "send": {"query": "session"}}},
    "session cookie": {"session": {"token": "cookie.sid"}},
    "jwt": {"jwt": {"key": "${env:CANARY}", "alg": "HS256"}},
    "hmac": {"hmac": {"key": "${env:CANARY}", "sign": "{target}{body}", "header": "X-Signature"}},
}
GIVING = {"oauth2": "/token", "session": "/login"}
LOGIN = {"path": "/login", "json": {"user": "me", "password": "${env:CANARY}"}, "params": {"k": "${env:CANARY}"}}


def auth(kind: str, url: str) -> Mapping[str, Any]:
    [(name, keys)] = KINDS[kind].items()
    more: dict[str, Any] = {}
    if name == "oauth2":
        more = {"token_url": f"{url}/token", "client_id": "client"}
    elif name == "session":
        more = {"login": LOGIN}
    return {"auth": {name: {**more, **keys}, "probe": {"path": "/me"}}}


@pytest.fixture(autouse=True)
def canary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", SECRET)


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        running.routes |= {"/token": give, "/login": give, "/me": lambda request: Answer(request, body=b"{}")}
        yield running


def give(request: Request) -> Answer:
    body = {"access_token": ACCESS, "refresh_token": NEXT_REFRESH, "expires_in": 3600, "token": SESSION}
    headers = (("x-session", SESSION), ("set-cookie", f"sid={SESSION}; HttpOnly"))
    return Answer(request, headers=headers, body=json.dumps(body).encode())


def listing(request: Request) -> Answer:
    """Two good pages, one with a dead letter; the next link repeats what we showed."""
    if "page=2" in request.target:
        return Answer(request, body=b'{"data":[{"id":2}],"next":"/events?page=3"}')
    link = f"/events?page=2&{urlencode({'shown': shown(request)})}"
    return Answer(request, body=json.dumps({"data": [{"id": 1}, {"id": {}}], "next": link}).encode())


def shown(request: Request) -> str:
    """What of a request may be a credential, alone as it stands there."""
    text = request.headers.get("authorization") or request.headers.get("x-session") or request.headers.get("cookie", "")
    return text.removeprefix("Bearer ").removeprefix("sid=") or request.query.get("session", "nothing")


def everything(request: Request) -> bytes:
    lines = [f"{request.method} {request.target}", *(f"{name}: {value}" for name, value in request.headers.items())]
    return "\n".join([*lines, "", request.body.decode(), SECRET]).encode()


def echo(status: int, **headers: str) -> Callable[[Request], Answer]:
    """An answer that repeats the whole request, and the configured secret besides."""

    def answer(request: Request) -> Answer:
        quoted = quote(f"{request.target} {shown(request)} {SECRET}")
        named = tuple((name.replace("_", "-"), value.replace("{all}", quoted)) for name, value in headers.items())
        return Answer(request, status=status, headers=named, body=everything(request))

    return answer


def half(request: Request) -> Answer:
    """A good answer that ends amid a token, or amid what we showed."""
    body = json.dumps({"data": [{"id": everything(request).decode()}]}).encode()
    if request.path in GIVING.values():
        body = give(request).body or b""
    return Answer(request, body=body[: body.rindex(b"canary") + 6])


def broken(request: Request) -> Answer:
    """A token or a page's link with a control character in it."""
    tokens = {
        "access_token": f"{ACCESS}\n",
        "token": f"{SESSION}\r",
        "data": [],
        "next": f"/events?\x7f{shown(request)}",
    }
    headers = (("x-session", f"{SESSION}\x7f"), ("set-cookie", f"sid={SESSION}\x01"))
    return Answer(request, headers=headers, body=json.dumps(tokens).encode())


FAILURES: Mapping[str, Callable[[Request], Answer]] = {
    "400": echo(400),
    "401": echo(401, www_authenticate="Bearer error={all}"),
    "403": echo(403, content_type="text/{all}"),
    "500": echo(500),
    "429": echo(429, retry_after="99999"),
    "no JSON": echo(200),
    "an error with 200": lambda r: Answer(r, body=json.dumps({"error": everything(r).decode()}).encode()),
    "no list, no token": lambda r: Answer(r, body=json.dumps({everything(r).decode(): [1]}).encode()),
    "half an answer": half,
    "a redirect elsewhere": echo(302, location="http://127.0.0.2:1/{all}"),
    "a redirect in a circle": echo(302, location="/events?q={all}"),
    "a redirect to what is no URL": echo(302, location="http://[{all}"),
    "a reset": lambda r: Answer(r, cut=0.0),
    "too much": lambda r: Answer(r, body=everything(r) * 50),
    "a control character": broken,
}


def forms(secret: str) -> list[str]:
    raw = secret.encode()
    found = [secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], secret[:9]]
    return [*found, base64.b64encode(raw).decode().rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("=")]


def assert_clean(text: str) -> None:
    leaked = [form for secret in SECRETS for form in forms(secret) if form in text]
    assert not leaked, f"{leaked}: {text}"


async def failed(api: FakeApi, kind: str, tmp_path: Path) -> tuple[list[Page], Exception, str]:
    """What came before the failure, the failure, and all that was logged."""
    redactor, lines = Redactor(), io.StringIO()
    before = structlog.get_config()
    logging.configure(redactor, form="json", level="debug", stream=lines)
    above = {**auth(kind, api.url), "limits": {"max_body": "8KB"}, "retry": {**QUICK, "attempts": 2}}
    report = Report(StreamId("api", "events"))
    pages: list[Page] = []
    try:
        async with open_state(f"sqlite:///{tmp_path / 'ingest.db'}") as state:
            keeping = State(state.tokens, state.leases, "host:1:x")
            async with opened(api.url, PAGING["next_url"], above, redactor=redactor, state=keeping) as source:
                with pytest.raises(IngestError) as failure:
                    async for page in source.pages(None, report):
                        pages.append(page)
        report.end(Outcome.FAILED, str(failure.value))
    finally:
        structlog.configure(**before)
    return pages, failure.value, lines.getvalue()


def assert_nothing_leaked(pages: list[Page], error: BaseException, lines: str, tmp_path: Path) -> None:
    assert_clean("".join(page.cursor.decode() for page in pages))
    assert_clean(str([str(refused.error) for page in pages for refused in page.refused]))
    assert_clean(str(error))
    assert_clean(lines)
    assert_clean(generate_latest().decode())
    saved = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert not [secret for secret in SECRETS if secret.encode() in saved]


@pytest.mark.parametrize("failing", FAILURES)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_api_that_fails_shows_no_secret(api: FakeApi, kind: str, failing: str, tmp_path: Path) -> None:
    answers = iter([listing, listing])
    api.routes["/events"] = lambda request: next(answers, FAILURES[failing])(request)
    pages, error, lines = await failed(api, kind, tmp_path)
    assert len(pages) >= 2
    assert_nothing_leaked(pages, error, lines, tmp_path)


@pytest.mark.parametrize("failing", FAILURES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.split(" ")[0] in GIVING])
async def test_a_login_or_token_endpoint_that_fails_shows_no_secret(
    api: FakeApi, kind: str, failing: str, tmp_path: Path
) -> None:
    api.routes["/events"] = FAILURES["401"]  # where what was given can be shown
    api.routes[GIVING[kind.split(" ")[0]]] = FAILURES[failing]
    pages, error, lines = await failed(api, kind, tmp_path)
    assert pages == []
    assert_nothing_leaked(pages, error, lines, tmp_path)


@pytest.mark.parametrize("failing", ["401", "500", "a redirect elsewhere"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_probe_that_fails_shows_no_secret(api: FakeApi, kind: str, failing: str, tmp_path: Path) -> None:
    api.routes |= {"/events": listing, "/me": FAILURES[failing]}
    pages, error, lines = await failed(api, kind, tmp_path)
    assert pages == []
    assert_nothing_leaked(pages, error, lines, tmp_path)
