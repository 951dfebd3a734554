"""Exchanges with an API as files: written without secrets while they happen, answered from again without the API.

{request: {method, url, headers, body}, response: {status, headers, body}}; what is no UTF-8 is `body_base64`
"""

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from ingest.errors import ConfigError
from ingest.redaction import MASK, Redactor
from ingest.sources.exchange import Response
from ingest.sources.hosts import Standing
from ingest.sources.request import Request
from ingest.telltale import masked, masked_headers

PACKED = ("content-encoding", "transfer-encoding", "content-length")  # a body is kept unpacked


def shown(sent: Request, response: Response, redactor: Redactor) -> dict[str, Any]:
    """One exchange as it may be looked at: without secrets."""
    return {
        "request": {
            "method": sent.method,
            "url": _told(sent.url, redactor),
            "headers": _scrubbed(sent.headers, redactor),
            **({} if sent.body is None else _body(sent.body, redactor)),
        },
        "response": {
            "status": response.status,
            "headers": _scrubbed(response.headers, redactor),
            **_body(response.body, redactor),
        },
    }


def _scrubbed(headers: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    kept = {name: redactor.scrub(value) for name, value in headers.items() if name not in PACKED}
    return masked_headers(kept)


def _told(text: str, redactor: Redactor) -> str:
    """Without the secrets that we know, and those that only their names tell."""
    return masked(redactor.scrub(text))


def _body(body: bytes, redactor: Redactor) -> dict[str, str]:
    try:
        return {"body": _told(body.decode(), redactor)}
    except UnicodeDecodeError:
        text = _told(body.decode("latin-1"), redactor)
        return {"body_base64": base64.b64encode(text.encode("latin-1")).decode()}


class Deferred:
    """Hands every exchange on when the next one comes, and the last one when it is closed: a token that an answer holds
    is a secret only once it was read."""

    def __init__(self, *then: Callable[[Request, Response], None]) -> None:
        self._then = then
        self._held: tuple[Request, Response] | None = None

    def __call__(self, sent: Request, response: Response) -> None:
        self.close()
        self._held = sent, response

    def close(self) -> None:
        if self._held is None:
            return
        held, self._held = self._held, None
        for then in self._then:
            then(*held)


def _bare(url: str) -> str:
    """Without the parameters that are masked: which of them a link repeats depends on secrets that are not kept."""
    parts = urlsplit(url.replace(quote(MASK, safe=""), MASK))
    kept = [pair for pair in parts.query.split("&") if pair.partition("=")[2] != MASK]
    return urlunsplit(parts._replace(query="&".join(kept)))


class Recorder:
    """Writes every exchange into a folder: 001.json, 002.json, …"""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        self._folder, self._redactor = folder, redactor
        self.count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, sent: Request, response: Response) -> None:
        self.count += 1
        text = json.dumps(shown(sent, response, self._redactor), indent=2, ensure_ascii=False)
        (self._folder / f"{self.count:03}.json").write_text(text + "\n", encoding="utf-8")


class Recording(httpx.AsyncBaseTransport):
    """Answers from a folder: each request gets the answers that the same one got, in their order, the last one again
    and again. Two requests are the same where method, URL and body are, secrets aside."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        """Raises ConfigError where there is nothing to answer from."""
        self._folder, self._redactor = folder, redactor
        self._answers: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        files = sorted(folder.glob("*.json"))
        if not files:
            raise ConfigError(f"{folder} holds no recorded exchange; `ingest preview --save {folder}` writes some")
        for file in files:
            try:
                one = json.loads(file.read_text(encoding="utf-8"))
                request, answer = one["request"], one["response"]
                body = request.get("body", request.get("body_base64", ""))
                self._answers.setdefault((request["method"], _bare(request["url"]), body), []).append(answer)
            except (ValueError, KeyError, TypeError) as exc:
                raise ConfigError(f"{file} is no recorded exchange: {exc}") from exc

    def of(self, url: str, standing: Standing) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self)

    async def aclose(self) -> None:
        pass

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = _body(request.content, self._redactor)
        key = request.method, _bare(_told(str(request.url), self._redactor)), "".join(body.values())
        answers = self._answers.get(key)
        if answers is None:
            raise ConfigError(f"{self._folder} holds no answer to {key[0]} {key[1]}")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        content = (
            base64.b64decode(answer["body_base64"]) if "body_base64" in answer else answer.get("body", "").encode()
        )
        return httpx.Response(answer["status"], headers=answer["headers"], content=content)
