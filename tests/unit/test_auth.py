"""Credentials are on every try, and nowhere else: not in saved cursors, errors, logs, notices or dead letters."""

import base64
import io
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
import structlog

from checkpoints import StreamId
from ingest import logging
from ingest.config.model import Auth
from ingest.errors import IngestError
from ingest.redaction import Redactor
from ingest.report import Outcome, Report
from ingest.sources import Page
from ingest.sources.auth.static import credentials
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.listings import Answer, Request
from tests.unit.sources import PAGING, QUICK, ids, list_all, opened, read, read_until_it_fails, reply, say, targets

SECRET = "s3cr3t/k&y+=caf\u00e9 canary"
QUOTED = quote(SECRET, safe="")
NEXT_URL = PAGING["next_url"]

SCHEMES: Mapping[str, Mapping[str, Any]] = {
    "bearer": {"auth": {"bearer": "${env:CANARY}"}},
    "basic": {"auth": {"basic": {"user": "me", "password": "${env:CANARY}"}}},
    "api_key header": {"auth": {"api_key": {"in": "header", "name": "X-Api-Key", "value": "${env:CANARY}"}}},
    "api_key query": {"auth": {"api_key": {"in": "query", "name": "key", "value": "${env:CANARY}"}}},
    "api_key cookie": {"auth": {"api_key": {"in": "cookie", "name": "sid", "value": "${env:CANARY}"}}},
    "params": {"params": {"key": "${env:CANARY}"}},
    "headers": {"headers": {"X-Key": "Token ${env:CANARY}"}},
}
IN_QUERY = ["api_key query", "params"]


@pytest.fixture(autouse=True)
def canary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", SECRET)


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        running.serve("events", numbered(6), page_size=2)
        yield running


def sent(request: Request, scheme: str) -> str | list[str] | None:
    """The credentials of a request, as it carried them."""
    if scheme in IN_QUERY:
        pairs = [pair.partition("=") for pair in request.target.partition("?")[2].split("&")]
        return [value for name, _, value in pairs if name == "key"]
    names = {"api_key header": "x-api-key", "api_key cookie": "cookie", "headers": "x-key"}
    return request.headers.get(names.get(scheme, "authorization"), "").encode("latin-1").decode()


EXPECTED: Mapping[str, str | list[str]] = {
    "bearer": f"Bearer {SECRET}",
    "basic": "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode(),
    "api_key header": SECRET,
    "api_key query": [QUOTED],
    "api_key cookie": f"sid={SECRET}",
    "params": [QUOTED],
    "headers": f"Token {SECRET}",
}


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_credentials_are_on_every_try_of_every_page(api: FakeApi, scheme: str) -> None:
    api.misbehave([faults.status(503), faults.ok, faults.redirect("/events?token=t2"), faults.reset])
    assert len(ids(await list_all(api.url, NEXT_URL, SCHEMES[scheme]))) == 6
    assert len(api.requests) >= 5
    assert [sent(request, scheme) for request in api.requests] == [EXPECTED[scheme]] * len(api.requests)


@pytest.mark.parametrize("scheme", IN_QUERY)
async def test_a_key_that_the_api_repeats_in_its_links_is_sent_exactly_once(api: FakeApi, scheme: str) -> None:
    links = [f"/events?key={QUOTED}&page=2", f"/events?page=3&key={QUOTED}&key=old", "/events?page=4", None]
    say(api, [reply(json.dumps({"data": [{"id": n}], "next": link})) for n, link in enumerate(links)])
    async with opened(api.url, NEXT_URL, SCHEMES[scheme]) as source:
        [first] = await read(source, pages=1)
        await read(source, first.cursor)
    assert all(sent(request, scheme) == [QUOTED] for request in api.requests)
    assert targets(api)[1:] == [f"/events?page={n}&key={QUOTED}" for n in (2, 3, 4)]
    assert "?page=2" in first.cursor.decode()


async def test_a_token_that_the_api_puts_into_its_links_under_another_name_is_taken_off(api: FakeApi) -> None:
    link = f"/events?access_token={QUOTED}&page=2"
    say(api, [reply(json.dumps({"data": [{"id": 1}], "next": link})), reply('{"data":[{"id":2}]}')])
    async with opened(api.url, NEXT_URL, SCHEMES["bearer"]) as source:
        [first] = await read(source, pages=1)
        assert ids(await read(source, first.cursor)) == ["2"]
    assert targets(api) == ["/events", "/events?page=2"]
    assert_clean(first.cursor.decode())


async def test_the_other_parameters_of_a_link_keep_every_byte() -> None:
    url = "http://h/e?a=%zz&key=x&b=1+2%20%E9&c&=&key&d=%6b"
    assert credentials(None, {"key": "new-secret-value"}).strip(url) == "http://h/e?a=%zz&b=1+2%20%E9&c&=&d=%6b"


async def test_a_place_that_cannot_be_saved_without_a_secret_is_not_saved(api: FakeApi) -> None:
    link = f"/events?state=abc-{QUOTED}-def"
    say(api, [reply(json.dumps({"data": [{"id": 1}], "next": link})), reply('{"data":[{"id":2}]}')])
    async with opened(api.url, NEXT_URL, SCHEMES["bearer"]) as source:
        pages = await read(source)
        assert ids(pages) == ["1", "2"]
        assert "listing" not in json.loads(pages[0].cursor)
    assert_clean(pages[0].cursor.decode())


async def test_a_secret_in_the_query_of_the_path_is_a_parameter_of_ours(api: FakeApi) -> None:
    say(api, [reply(json.dumps({"data": [], "next": f"/events?key={QUOTED}&page=2"})), reply('{"data":[]}')])
    keys = {**NEXT_URL, "path": "/events?a=1&key=${env:CANARY}"}
    async with opened(api.url, keys) as source:
        [first] = await read(source, pages=1)
        await read(source, first.cursor)
    assert [target.count("key=") for target in targets(api)] == [1, 1]
    assert targets(api)[0].startswith("/events?a=1&key=")
    assert_clean(first.cursor.decode())


def test_a_short_value_is_not_taken_for_a_secret_under_another_name() -> None:
    auth = Auth.model_validate({"bearer": "${env:X}"}).model_copy(update={"bearer": "2"})
    url = "http://h/e?page=2"
    assert credentials(auth, {}).strip(url) == url


async def test_a_configured_cookie_and_a_cookie_of_ours_are_sent_together(api: FakeApi) -> None:
    await list_all(api.url, {**NEXT_URL, "headers": {"Cookie": "lang=en"}}, SCHEMES["api_key cookie"])
    assert sent(api.requests[0], "api_key cookie") == f"lang=en; sid={SECRET}"


async def test_the_streams_credentials_stand_in_for_the_sources(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER", "other-secret")
    await list_all(api.url, {**NEXT_URL, "auth": {"bearer": "${env:OTHER}"}}, SCHEMES["basic"])
    assert sent(api.requests[0], "bearer") == "Bearer other-secret"


async def test_a_refused_credential_is_not_tried_again(api: FakeApi) -> None:
    api.misbehave([faults.status(401)])
    async with opened(api.url, NEXT_URL, SCHEMES["bearer"]) as source:
        await read_until_it_fails(source)
    assert len(api.requests) == 1


# ---- the canary


def leaked(text: str) -> list[str]:
    raw = SECRET.encode()
    forms = [SECRET, QUOTED, json.dumps(SECRET)[1:-1], base64.b64encode(raw).decode().rstrip("="), SECRET[:12]]
    forms.append(base64.b64encode(f"me:{SECRET}".encode()).decode()[4:-4])
    return [form for form in forms if form in text]


def assert_clean(text: str) -> None:
    assert not leaked(text), text


def echo(status: int, body: str = "you sent {secret}", **headers: str) -> faults.Fault:
    """An answer that repeats what it should not have kept."""
    content = body.replace("{secret}", SECRET).replace("{quoted}", QUOTED).encode()
    quoted = {name: value.replace("{quoted}", QUOTED) for name, value in headers.items()}
    return faults.status(status, content, **quoted)


def link(url: str) -> faults.Fault:
    return faults.link(url.replace("{quoted}", QUOTED))


def cut_through_the_secret(answer: Answer) -> Answer:
    return faults.error_body({"error": "x" * 170 + SECRET})(answer)


FAILURES: Mapping[str, faults.Fault] = {
    "refused": echo(403),
    "refused with a header": echo(401, content_type="text/{quoted}"),
    "unavailable": echo(503),
    "rate limited": echo(429, retry_after="99999"),
    "no JSON": echo(200),
    "no list": echo(200, '{"{secret}":[1],"error":"{secret}"}'),
    "no list, cut short": cut_through_the_secret,
    "reset": faults.reset,
    "truncated": faults.truncated,
    "foreign link": link("http://127.0.0.2:1/x?key={quoted}"),
    "foreign redirect": echo(302, location="http://127.0.0.2:1/{quoted}"),
    "too many redirects": echo(302, location="/events?q={quoted}"),
    "link that is no URL": link("http://[{quoted}"),
    "link that is no URL, cut short": link(f"http://[{'y' * 275}{SECRET}"),
    "link that cannot be asked": link("/\x7f?x={quoted}"),
    "link in a circle": link("/events?limit=2&q={quoted}#1"),
    "body too large": faults.error_body({"x": "y" * 5000}),
    "silence": lambda answer: Answer(answer.request, body=b"{}", pause=60.0),
    "empty later": faults.empty,
}


@pytest.mark.parametrize("failing", FAILURES)
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_no_failure_shows_a_secret(api: FakeApi, scheme: str, failing: str) -> None:
    redactor, lines = Redactor(), io.StringIO()
    before = structlog.get_config()
    logging.configure(redactor, form="json", level="debug", stream=lines)
    api.misbehave(itertools.chain([faults.ok], itertools.repeat(FAILURES[failing])))
    above = {
        **SCHEMES[scheme],
        "timeout": {"total": "200ms" if failing == "silence" else "60s"},
        "limits": {"max_body": "4KB"},
        "retry": {**QUICK, "attempts": 2},
    }
    report = Report(StreamId("api", "events"))
    pages: list[Page] = []
    try:
        async with opened(api.url, NEXT_URL, above, redactor=redactor) as source:
            with pytest.raises(IngestError) as failure:
                async for page in source.pages(None, report):
                    pages.append(page)
    finally:
        report.end(Outcome.FAILED, str(failure.value))
        structlog.configure(**before)
    assert pages
    assert_clean("".join(page.cursor.decode() for page in pages))
    assert_clean(str(failure.value))
    assert_clean(lines.getvalue())
