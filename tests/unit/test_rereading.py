"""A mounted secret that is renewed is used by the next request, without a restart."""

import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog

from ingest import logging
from ingest.config.loader import parse
from ingest.config.references import files, resolve
from ingest.config.rereading import Files
from ingest.redaction import Redactor
from ingest.sources.auth.keyring import Reading, open_keyring
from ingest.sources.request import Request as Asked
from ingest.sources.transport import open_transport
from tests.harness.fake_api import FakeApi
from tests.harness.issuer import Issuer
from tests.harness.listings import Answer, Request
from tests.unit.sources import PAGING, ids, opened, read, reply, say
from tests.unit.test_signing import ED25519, P256, check, pem

NEXT_URL = PAGING["next_url"]
OLD, NEW = "the-old-secret", "the-new-secret-of-today"


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (path := tmp_path / "secret").write_text(f"{OLD}\n")
    return path


def changing(api: FakeApi, change: Callable[[], object], pages: int = 3) -> None:
    """Pages of one row each; while the first is answered, `change` happens."""

    def answer(request: Request) -> Answer:
        number = int(request.query.get("page", "0"))
        if number == 0:
            change()
        following = f"/events?page={number + 1}" if number + 1 < pages else None
        return Answer(request, body=json.dumps({"data": [{"id": number}], "next": following}).encode())

    api.routes["/events"] = answer


def write(path: Path, content: bytes | None) -> None:
    path.unlink() if content is None else path.write_bytes(content)


WAYS: Mapping[str, tuple[Mapping[str, Any], Callable[[Request], str | None]]] = {
    "bearer": ({"auth": {"bearer": "${file:F}"}}, lambda request: request.headers["authorization"]),
    "basic": ({"auth": {"basic": {"user": "u", "password": "${file:F}"}}}, lambda r: r.headers["authorization"]),
    "key": ({"auth": {"api_key": {"in": "query", "name": "k", "value": "${file:F}"}}}, lambda r: r.query.get("k")),
    "hmac": (
        {"auth": {"hmac": {"key": "${file:F}", "sign": "{host}", "header": "X-S"}}},
        lambda request: request.headers["x-s"],
    ),
    "jwt": ({"auth": {"jwt": {"key": "${file:F}", "alg": "HS256"}}}, lambda request: request.headers["authorization"]),
    "header": ({"headers": {"X-Key": "Key ${file:F}"}}, lambda request: request.headers["x-key"]),
    "parameter": ({"params": {"key": "${file:F}"}}, lambda request: request.query.get("key")),
}


def referring(keys: Mapping[str, Any], path: Path) -> Any:
    return json.loads(json.dumps(keys).replace("${file:F}", f"${{file:{path}}}"))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_a_secret_that_changes_amid_a_listing_is_used_from_the_next_request_on(
    api: FakeApi, secret: Path, way: str, own: bool
) -> None:
    keys, shown = referring(WAYS[way][0], secret), WAYS[way][1]
    changing(api, lambda: secret.write_text(NEW))
    async with opened(api.url, {**NEXT_URL, **keys} if own else NEXT_URL, {} if own else keys) as source:
        assert ids(await read(source)) == ["0", "1", "2"]
    first, second, third = (shown(request) for request in api.requests)
    assert first != second == third
    if way in ("header", "parameter", "key"):
        assert [text.removeprefix("Key ") for text in (first or "", second or "")] == [OLD, NEW]


async def test_a_secret_that_kubernetes_renews_is_used(api: FakeApi, tmp_path: Path) -> None:
    for name, text in (("..1", OLD), ("..2", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "token").symlink_to("..data/token")

    def renew() -> None:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    changing(api, renew)
    async with opened(api.url, NEXT_URL, referring(WAYS["bearer"][0], tmp_path / "token")) as source:
        await read(source)
    assert [request.headers["authorization"] for request in api.requests] == [
        *(f"Bearer {OLD}", f"Bearer {NEW}", f"Bearer {NEW}")
    ]


async def test_a_secret_that_is_refused_and_has_changed_meanwhile_is_tried_again(api: FakeApi, secret: Path) -> None:
    def answer(request: Request) -> Answer:
        if request.headers["authorization"] == f"Bearer {NEW}":
            return Answer(request, body=b'{"data":[{"id":1}]}')
        secret.write_text(NEW)
        return Answer(request, status=401, body=b"{}")

    api.routes["/events"] = answer
    async with opened(api.url, NEXT_URL, referring(WAYS["bearer"][0], secret)) as source:
        assert ids(await read(source)) == ["1"]
    assert len(api.requests) == 2


@pytest.mark.parametrize("bad", [b"", b"a\nb", b"\xff", None])
async def test_while_a_changed_secret_is_no_good_the_one_before_is_used(
    api: FakeApi, secret: Path, bad: bytes | None
) -> None:
    contents = iter([bad, NEW.encode()])
    changing(api, lambda: write(secret, next(contents)), pages=2)
    lines, before = io.StringIO(), structlog.get_config()
    logging.configure(Redactor(), form="json", stream=lines)
    try:
        async with opened(api.url, NEXT_URL, referring(WAYS["bearer"][0], secret)) as source:
            await read(source)
            await read(source)
    finally:
        structlog.configure(**before)
    shown = [request.headers["authorization"].removeprefix("Bearer ") for request in api.requests]
    assert shown == [OLD, OLD, OLD, NEW]
    assert lines.getvalue().count("a secret that changed cannot be read; the one before is used") == 1


async def test_a_changed_key_that_does_not_fit_leaves_the_one_before(api: FakeApi, secret: Path) -> None:
    write(secret, pem(ED25519).encode())
    changing(api, lambda: write(secret, pem(P256).encode()))
    jwt = {"key": "${file:F}", "alg": "EdDSA"}
    async with opened(api.url, NEXT_URL, referring({"auth": {"jwt": jwt}}, secret)) as source:
        assert ids(await read(source)) == ["0", "1", "2"]
    for request in api.requests:
        check("EdDSA", request.headers["authorization"].removeprefix("Bearer "))


async def test_a_client_secret_that_changed_fetches_the_next_token(api: FakeApi, secret: Path) -> None:
    issuer = Issuer(client_secret=OLD)
    api.routes["/token"] = issuer.token

    def change() -> None:
        secret.write_text(NEW)
        issuer.client_secret = NEW

    changing(api, change)
    oauth2 = {"token_url": f"{api.url}/token", "client_id": "client", "client_secret": "${file:F}"}
    async with opened(api.url, NEXT_URL, referring({"auth": {"oauth2": oauth2}}, secret)) as source:
        assert ids(await read(source)) == ["0", "1", "2"]
    assert [form["client_secret"] for form in issuer.forms] == [OLD, NEW]


async def test_a_password_that_changed_logs_in_anew(api: FakeApi, secret: Path) -> None:
    say(api, [reply('{"token":"session-1"}'), reply('{"token":"session-2"}')], "/login")
    changing(api, lambda: secret.write_text(NEW))
    login = {"path": "/login", "json": {"password": "${file:F}"}}
    session = {"login": login, "token": "$.token", "send": {"header": "X-S"}}
    async with opened(api.url, NEXT_URL, referring({"auth": {"session": session}}, secret)) as source:
        await read(source)
    logins = [json.loads(request.body)["password"] for request in api.requests if request.path == "/login"]
    assert logins == [OLD, NEW]


async def test_the_tokens_of_two_ways_in_stay_masked_when_one_of_them_changes(
    api: FakeApi, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "password-of-the-other")
    say(api, [reply('{"token":"session-of-file-1"}'), reply('{"token":"session-of-file-2"}')], "/file")
    say(api, [reply('{"token":"session-of-other"}')], "/other")

    def session(path: str, password: str) -> Any:
        login = {"path": path, "json": {"password": password}}
        return {"session": {"login": login, "token": "$.token", "send": {"header": "X-S"}}}

    streams = {
        name: {"path": "/events", "records": "$.data", "auth": session(path, password)}
        for name, path, password in (("a", "/file", f"${{file:{secret}}}"), ("b", "/other", "${env:PASSWORD}"))
    }
    redactor = Redactor()
    part = parse(json.dumps({"version": 1, "sources": {"api": {"base_url": api.url, "streams": streams}}}))
    unresolved = part.config.sources["api"]
    source = resolve(unresolved, redactor)
    again = Reading(files(unresolved), lambda secrets: resolve(unresolved, secrets))
    async with (
        open_transport(source, redactor) as transport,
        open_keyring("api", source, transport, redactor, None, again) as keyring,
    ):
        first, other = (keyring.credentials(source.streams[name]) for name in ("a", "b"))
        asked = Asked(f"{api.url}/events")
        shown = [(await ours.prepare(asked)).headers["x-s"] for ours in (first, other)]
        write(secret, NEW.encode())
        shown += [(await ours.prepare(asked)).headers["x-s"] for ours in (first, other)]
    assert shown == ["session-of-file-1", "session-of-other", "session-of-file-2", "session-of-other"]
    assert redactor.scrub(" ".join(shown[1:])) == "*** *** ***"


async def test_secrets_that_change_often_are_masked_and_take_no_more_memory(api: FakeApi, secret: Path) -> None:
    redactor = Redactor()
    keys = referring(WAYS["bearer"][0], secret)
    changing(api, lambda: None, pages=1)
    known = set()
    async with opened(api.url, NEXT_URL, keys, redactor=redactor) as source:
        for number in range(10):
            write(secret, f"secret-number-{number}".encode())
            await read(source)
            assert redactor.scrub(f"secret-number-{number}") == "***"
            known.add(len(redactor._renewed))
    assert redactor.scrub("secret-number-8") == "***"
    assert redactor.scrub("secret-number-7") != "***"
    assert max(known) == 2


def test_a_file_that_is_rewritten_with_the_same_text_has_changed_and_an_untouched_one_has_not(secret: Path) -> None:
    looked = Files([secret, secret.with_name("nothing")])
    assert not looked.changed()
    (other := secret.with_name("other")).write_text(f"{OLD}\n")
    other.rename(secret)
    assert looked.changed()
    assert not looked.changed()
    secret.with_name("nothing").write_text("there now")
    assert looked.changed()
