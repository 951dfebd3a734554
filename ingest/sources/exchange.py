"""One try of a request: where it may go, which redirects it follows, what came back.

Nothing but base_url's origin (scheme, host and port) is ever asked, whatever a link or a redirect says, and
credentials are put on at the last moment.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx
from msgspec.structs import replace

from ingest.config.model import Timeout
from ingest.errors import SourceChanged
from ingest.redaction import Redactor
from ingest.sources import body
from ingest.sources.auth import Credentials
from ingest.sources.clients import MAX_CONNECTIONS
from ingest.sources.links import SHOWN, origin, resolved
from ingest.sources.request import Request

MAX_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
BREAKING = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # what a header may not hold (RFC 9110, 5.5)

_UNANSWERED = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


class Response(NamedTuple):
    status: int
    request: Request  # that was asked last, after redirects
    sent: Request  # the same with its credentials
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    asked_at: float  # seconds since 1970, by our clock
    answered_at: float


class Exchange:
    """Asks one origin."""

    def __init__(self, client_of: Callable[[str], httpx.AsyncClient], base_url: str, redactor: Redactor) -> None:
        """`client_of`: the client for a URL."""
        self._client_of, self._redactor = client_of, redactor
        self._origin = origin(base_url)

    def toward(self, url: str) -> "Exchange":
        """Asks another origin."""
        return Exchange(self._client_of, url, self._redactor)

    async def send(self, request: Request, credentials: Credentials, timeout: Timeout, max_body: int) -> Response:
        """The answer, redirects followed. What the credentials need to be made is not on the clock.

        Raises SourceChanged for a URL that we may not ask and a body that is too large; TimeoutError,
        httpx.TransportError and body.Broken for what a later try may mend; and what `Credentials.prepare` raises.
        """
        asked, left = request, timeout.total
        for _ in range(MAX_REDIRECTS + 1):
            self._check(asked.url)
            sent = await credentials.prepare(asked)
            began = time.monotonic()
            async with asyncio.timeout(left):
                response = await self._hop(asked, sent, timeout, max_body)
            left -= time.monotonic() - began
            if response.status not in REDIRECTS:
                return response
            target = response.headers.get("location")
            if not target:
                raise SourceChanged(f"{self._shown(asked)}: a redirect ({response.status}) to nowhere")
            if request.method != "GET":
                raise SourceChanged(f"{self._shown(asked)}: a redirect ({response.status}); only GET is followed")
            asked = replace(asked, url=resolved(asked.url, target))
        raise SourceChanged(f"{self._shown(request)}: more than {MAX_REDIRECTS} redirects")

    async def _hop(self, request: Request, sent: Request, timeout: Timeout, max_body: int) -> Response:
        asked_at = time.time()
        response = await self._send(sent, timeout)
        try:
            content = await body.read(response, max_body)
        except body.TooLarge:
            raise SourceChanged(
                f"{self._shown(request)}: the body is over limits.max_body ({max_body} bytes);"
                " ask for smaller pages, or raise it"
            ) from None
        finally:
            await response.aclose()
        names = {name.lower(): value for name, value in response.headers.items()}
        return Response(response.status_code, request, sent, names, content, asked_at, time.time())

    async def _send(self, request: Request, timeout: Timeout) -> httpx.Response:
        """Sent again at once when a connection that was kept alive turns out to be closed: no fault of the API."""
        client = self._client_of(request.url)
        for _ in range(MAX_CONNECTIONS):
            opened = _Opened()
            try:
                return await client.send(self._wire(client, request, timeout, opened), stream=True)
            except _UNANSWERED:
                if not opened.reused:
                    raise
        return await client.send(self._wire(client, request, timeout, _Opened()), stream=True)

    def _wire(self, client: httpx.AsyncClient, request: Request, timeout: Timeout, opened: "_Opened") -> httpx.Request:
        for name, value in request.headers.items():
            if BREAKING.search(value):  # it came from an answer: the configuration holds none
                raise SourceChanged(f"{self._shown(request)}: a control character would stand in the header {name!r}")
        headers = [(name.encode(), value.encode()) for name, value in request.headers.items()]
        limits = httpx.Timeout(timeout.read, connect=timeout.connect)
        try:
            return client.build_request(
                request.method,
                request.url,
                headers=headers,
                content=request.body,
                timeout=limits,
                extensions={"trace": opened},
            )
        except httpx.InvalidURL as exc:
            raise SourceChanged(f"{self._shown(request)!r}: {self._redactor.scrub(str(exc))}") from None

    def _check(self, url: str) -> None:
        try:
            if origin(url) == self._origin:
                return
            reason = f"not {self._origin[0]}://{self._origin[1]}:{self._origin[2]}"
        except ValueError as exc:
            reason = str(exc)
        raise SourceChanged(f"refused to follow a link or redirect to {self._redactor.scrub(url)[:SHOWN]}: {reason}")

    def _shown(self, request: Request) -> str:
        return f"{request.method} {self._redactor.scrub(request.url)[:SHOWN]}"


class _Opened:
    """Learns from httpcore's trace whether a request went out on a connection that stood already."""

    def __init__(self) -> None:
        self._sent = self._connected = False

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        self._connected = self._connected or event.startswith("connection.connect")
        self._sent = self._sent or event.endswith("send_request_headers.started")

    @property
    def reused(self) -> bool:
        return self._sent and not self._connected
