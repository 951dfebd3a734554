"""What is shown and kept of an exchange holds no secret, neither one of ours nor one that its name tells."""

import base64
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ingest.redaction import Redactor
from ingest.sources.exchange import Response
from ingest.sources.recording import shown
from ingest.sources.request import Request
from ingest.telltale import masked, tells
from tests.harness.fake_api import FakeApi
from tests.unit.sources import failure, reply, say

NEW = "n3w-cr3dential"


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


def exchange(sent: Request, response: bytes = b"", **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return str(shown(sent, Response(200, sent, sent, named, response, 0.0, 0.0), Redactor()))


def test_a_body_that_is_no_utf8_is_kept_without_secrets() -> None:
    redactor = Redactor()
    redactor.add("s3cr3t-key")
    sent = Request("GET", "http://api.example.com/events", {}, None)
    body = 'name="Müller";key="s3cr3t-key"'.encode("latin-1")
    kept = shown(sent, Response(200, sent, sent, {}, body, 0.0, 0.0), redactor)["response"]["body_base64"]
    assert base64.b64decode(kept) == 'name="Müller";key="***"'.encode("latin-1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{{"access_token":"{NEW}","expires_in":3600}}', '{"access_token":"***","expires_in":3600}'),
        (f'{{ "idToken" : "{NEW}\\"x" , "n": 1 }}', '{ "idToken" : "***" , "n": 1 }'),
        (f'{{"a":{{"Refresh-Token":"{NEW}"}},"pin":1}}', '{"a":{"Refresh-Token":"***"},"pin":1}'),
        ('{"client_secret":123456,"secret":null}', '{"client_secret":"***","secret":null}'),
        (rf'{{"raw":"{{\"api_token\":\"{NEW}\",\"n\":1}}"}}', r'{"raw":"{\"api_token\":\"***\",\"n\":1}"}'),
        (f'{{"next":"https://x/y?page=2&access_token={NEW}"}}', '{"next":"https://x/y?page=2&access_token=***"}'),
        (f"grant_type=password&password={NEW}&user=u", "grant_type=password&password=***&user=u"),
        (f"<r><s:sessionToken a='b'>{NEW}</s:sessionToken></r>", "<r><s:sessionToken a='b'>***</s:sessionToken></r>"),
        (f"<apiKey><![CDATA[{NEW}]]></apiKey>", "<apiKey>***</apiKey>"),
        (f"https://x/y;jsessionid={NEW}?page=2", "https://x/y;jsessionid=***?page=2"),
        (f"https://x/y?api%5Fkey={NEW}#id_token={NEW}", "https://x/y?api%5Fkey=***#id_token=***"),
    ],
)  # fmt: skip
def test_what_stands_behind_the_name_of_a_credential_is_masked_and_all_else_stays(text: str, expected: str) -> None:
    assert masked(text) == expected
    assert masked(expected) == expected


@pytest.mark.parametrize(
    "name",
    ["token", "next_token", "nextPageToken", "page_token", "continuationToken", "nextSyncToken", "$skiptoken",
     "deltatoken", "cursor", "key", "session_id", "sid", "token_type", "password_changed_at", "keywords"],
)  # fmt: skip
def test_what_asks_for_the_next_page_and_what_is_no_credential_stays(name: str) -> None:
    assert not tells(name)
    text = f'{{"{name}":"{NEW}","next":"/x?{name}={NEW}"}}'
    assert masked(text) == text


def test_headers_that_bring_or_send_credentials_are_masked() -> None:
    sent = Request(
        f"https://api.example.com/x?access_token={NEW}&page=2",
        "POST",
        {"authorization": f"Bearer {NEW}", "cookie": f"sid={NEW}", "x-csrf-token": NEW, "accept": "*/*"},
        f"refresh_token={NEW}&grant_type=refresh_token".encode(),
    )
    answer = {
        "set_cookie": f"sid={NEW}; Path=/",
        "x_subject_token": NEW,
        "location": f"/cb?id_token={NEW}&a=1",
        "age": "5",
    }
    text = exchange(sent, f'{{"id_token":"{NEW}"}}'.encode(), **answer)
    assert NEW not in text
    for kept in ("'Bearer ***'", "page=2", "'*/*'", "grant_type=refresh_token", "/cb?id_token=***&a=1", "'age': '5'"):
        assert kept in text


@pytest.mark.parametrize("status", [200, 403])
async def test_an_answer_in_a_message_is_masked_too(api: FakeApi, status: int) -> None:
    say(api, [reply(f'{{"access_token":"{NEW}","hint":"see docs"}}', status)])
    _, error = await failure(api.url)
    assert "see docs" in str(error)
    assert NEW not in str(error)
