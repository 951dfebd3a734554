"""The one way out: every request to an API passes here.

Nothing but base_url's origin is ever asked, redirects are followed by hand and only there, credentials are put on each
try anew, bodies are bounded, and what may succeed later is tried again: with full jitter, never before the server's own
Retry-After, within a budget.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx

from ingest.config.model import Retry, Timeout
from ingest.errors import RateLimited, SourceChanged, SourceRefused, SourceUnavailable
from ingest.redaction import Redactor
from ingest.retry import asked_wait, backoff
from ingest.sources import Watch
from ingest.sources.answers import Undecodable
from ingest.sources.auth import Credentials

T = TypeVar("T")

MAX_REDIRECTS = 3
MAX_CONNECTIONS = 8
SHOWN = 200  # bytes of a body in a message
USER_AGENT = "ingest/0.1"


class Response(NamedTuple):
    status: int
    url: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class Limits(NamedTuple):
    timeout: Timeout
    retry: Retry
    max_body: int  # bytes, decompressed


class _Again(Exception):
    """This try failed, a later one may not. `wait`: seconds that the server asked for."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises ValueError for what is no http(s) URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or "\\" in url:
        raise ValueError(f"{url!r} is no plain http(s) URL")
    return parts.scheme, parts.hostname.lower(), parts.port or (443 if parts.scheme == "https" else 80)


class Transport:
    """Made by `open_transport`. One per source."""

    def __init__(self, client: httpx.AsyncClient, base_url: str, redactor: Redactor) -> None:
        self._client = client
        self._origin = origin(base_url)
        self._redactor = redactor

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        credentials: Credentials,
        limits: Limits,
        watch: Watch,
        decode: Callable[[Response], T],
    ) -> T:
        """GET until `decode` accepts a 2xx. `decode` raises Undecodable for a body that a later try may give whole.

        Raises SourceRefused for a status that is no matter of time, RateLimited when the server asks for a longer wait than
        `max_wait`, SourceUnavailable when tries or budget are used up, SourceChanged for a URL that we may not ask.
        """
        began = time.monotonic()
        asked = 0.0  # seconds of waits that the server asked for: bounded by max_wait, not by the budget
        attempt = 0
        while True:
            attempt += 1
            try:
                return decode(await self._once(url, headers, credentials, limits, watch))
            except Undecodable as exc:
                reason, wait = f"a 2xx that is no JSON: {exc}", None
            except _Again as exc:
                reason, wait = str(exc), exc.wait
            retry = limits.retry
            delay = backoff(attempt, retry.base, retry.cap)
            what = f"GET {self.shown(url)}, attempt {attempt} of {retry.attempts}: {self._redactor.scrub(reason)}"
            if wait is not None:
                if wait > retry.max_wait:
                    raise RateLimited(f"{what}; the API asks for {wait:.0f} s, more than retry.max_wait", retry_after=wait)
                asked += wait
                delay += wait
            spent = time.monotonic() - began - asked
            if attempt >= retry.attempts or spent + delay - (wait or 0.0) > retry.budget:
                raise SourceUnavailable(f"{what}; giving up after {time.monotonic() - began:.1f} s", retry_after=wait)
            watch.retrying(attempt, delay, what)
            await asyncio.sleep(delay)

    def shown(self, url: str) -> str:
        return self._redactor.scrub(url)

    async def _once(
        self, url: str, headers: Mapping[str, str], credentials: Credentials, limits: Limits, watch: Watch
    ) -> Response:
        started = time.monotonic()
        try:
            async with asyncio.timeout(limits.timeout.total):
                response = await self._follow(url, headers, credentials, limits)
        except TimeoutError as exc:
            raise _Again(f"no complete answer within {limits.timeout.total:.0f} s") from exc
        except (httpx.TransportError, httpx.DecodingError) as exc:
            raise _Again(f"{type(exc).__name__}: {exc}") from exc
        watch.requested(time.monotonic() - started)
        if 200 <= response.status < 300:
            return response
        said = self._said(response)
        if response.status in limits.retry.statuses:
            raise _Again(said, asked_wait(response.headers, limits.retry.wait_headers, time.time()))
        raise SourceRefused(f"GET {self.shown(url)}: {said}{_hint(response.status)}", response.status)

    async def _follow(
        self, url: str, headers: Mapping[str, str], credentials: Credentials, limits: Limits
    ) -> Response:
        for _ in range(MAX_REDIRECTS + 1):
            self._check(url)
            response = await self._exchange(url, headers, credentials, limits)
            if response.status not in (301, 302, 303, 307, 308):
                return response
            url = urljoin(url, response.headers.get("location", ""))
        raise SourceChanged(f"GET {self.shown(url)}: more than {MAX_REDIRECTS} redirects")

    async def _exchange(
        self, url: str, headers: Mapping[str, str], credentials: Credentials, limits: Limits
    ) -> Response:
        asked_url, sent = credentials.apply(url, headers)
        timeout = httpx.Timeout(limits.timeout.read, connect=limits.timeout.connect)
        request = self._client.build_request("GET", asked_url, headers=sent, timeout=timeout)
        response = await self._client.send(request, stream=True)
        try:
            body = await self._body(response, limits.max_body)
        finally:
            await response.aclose()
        names = {name.lower(): value for name, value in response.headers.items()}
        return Response(response.status_code, url, names, body)

    async def _body(self, response: httpx.Response, max_body: int) -> bytes:
        declared = response.headers.get("content-length", "")
        if "content-encoding" not in response.headers and declared.isdigit() and int(declared) <= max_body:
            return await response.aread()
        parts, size = [], 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > max_body:
                raise SourceChanged(
                    f"GET {self.shown(str(response.request.url))}: the body is over limits.max_body ({max_body} bytes);"
                    " ask for smaller pages, or raise it"
                )
        return b"".join(parts)

    def _check(self, url: str) -> None:
        try:
            if origin(url) == self._origin:
                return
            raise ValueError(f"{self.shown(url)} is not on {self._origin[0]}://{self._origin[1]}:{self._origin[2]}")
        except ValueError as exc:
            raise SourceChanged(f"refused to follow a link or redirect to another host: {self._redactor.scrub(str(exc))}") from exc

    def _said(self, response: Response) -> str:
        kind = response.headers.get("content-type", "no content type")
        text = self._redactor.scrub(response.body.decode("utf-8", "replace"))[:SHOWN]
        return f"{response.status} ({kind}, {len(response.body)} bytes): {text}"


def _hint(status: int) -> str:
    hints = {401: "; check `auth`", 403: "; check `auth` and what it may read", 404: "; check `base_url` and `path`"}
    return hints.get(status, "")


@asynccontextmanager
async def open_transport(base_url: str, redactor: Redactor) -> AsyncIterator[Transport]:
    limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
    headers = {"accept": "application/json", "accept-encoding": "gzip", "user-agent": USER_AGENT}
    async with httpx.AsyncClient(headers=headers, limits=limits, follow_redirects=False, trust_env=False) as client:
        yield Transport(client, base_url, redactor)
