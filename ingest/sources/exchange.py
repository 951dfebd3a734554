"""One try of a request: where it may go, which redirects it follows, what came back.

Nothing but base_url's origin (scheme, host and port) is ever asked, whatever a link or a redirect says, and
credentials are put on at the last moment.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx

from ingest.config.model import Timeout
from ingest.errors import SourceChanged
from ingest.redaction import Redactor
from ingest.sources import body
from ingest.sources.auth import Credentials
from ingest.sources.links import SHOWN, origin, resolved

MAX_REDIRECTS = 3
MAX_CONNECTIONS = 8
REDIRECTS = (301, 302, 303, 307, 308)

_UNANSWERED = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


class Response(NamedTuple):
    status: int
    url: str  # that was asked last, without credentials
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    asked_at: float  # seconds since 1970, by our clock
    answered_at: float


class Exchange:
    """Asks one origin."""

    def __init__(self, client: httpx.AsyncClient, base_url: str, redactor: Redactor) -> None:
        self._client, self._redactor = client, redactor
        self._origin = origin(base_url)

    async def get(
        self, url: str, headers: Mapping[str, str], credentials: Credentials, timeout: Timeout, max_body: int
    ) -> Response:
        """The answer, redirects followed.

        Raises SourceChanged for a URL that we may not ask and a body that is too large, httpx.TransportError and
        body.Broken for what a later try may mend.
        """
        asked = url
        for _ in range(MAX_REDIRECTS + 1):
            self._check(asked)
            response = await self._hop(asked, headers, credentials, timeout, max_body)
            if response.status not in REDIRECTS:
                return response
            target = response.headers.get("location")
            if not target:
                raise SourceChanged(f"GET {self._shown(asked)}: a redirect ({response.status}) to nowhere")
            asked = resolved(asked, target)
        raise SourceChanged(f"GET {self._shown(url)}: more than {MAX_REDIRECTS} redirects")

    async def _hop(
        self, url: str, headers: Mapping[str, str], credentials: Credentials, timeout: Timeout, max_body: int
    ) -> Response:
        asked_at = time.time()
        response = await self._send(url, headers, credentials, timeout)
        try:
            content = await body.read(response, max_body)
        except body.TooLarge:
            raise SourceChanged(
                f"GET {self._shown(url)}: the body is over limits.max_body ({max_body} bytes);"
                " ask for smaller pages, or raise it"
            ) from None
        finally:
            await response.aclose()
        names = {name.lower(): value for name, value in response.headers.items()}
        return Response(response.status_code, url, names, content, asked_at, time.time())

    async def _send(
        self, url: str, headers: Mapping[str, str], credentials: Credentials, timeout: Timeout
    ) -> httpx.Response:
        """Sent again at once when a connection that was kept alive turns out to be closed: no fault of the API."""
        for _ in range(MAX_CONNECTIONS):
            opened = _Opened()
            try:
                return await self._client.send(self._request(url, headers, credentials, timeout, opened), stream=True)
            except _UNANSWERED:
                if not opened.reused:
                    raise
        return await self._client.send(self._request(url, headers, credentials, timeout, _Opened()), stream=True)

    def _request(
        self,
        url: str,
        headers: Mapping[str, str],
        credentials: Credentials,
        timeout: Timeout,
        opened: "_Opened",
    ) -> httpx.Request:
        full_url, full_headers = credentials.apply(url, headers)
        encoded = [(name.encode(), value.encode()) for name, value in full_headers.items()]
        limits = httpx.Timeout(timeout.read, connect=timeout.connect)
        try:
            return self._client.build_request(
                "GET", full_url, headers=encoded, timeout=limits, extensions={"trace": opened}
            )
        except httpx.InvalidURL as exc:
            raise SourceChanged(f"GET {self._shown(url)!r}: {self._redactor.scrub(str(exc))}") from None

    def _check(self, url: str) -> None:
        try:
            if origin(url) == self._origin:
                return
            reason = f"not {self._origin[0]}://{self._origin[1]}:{self._origin[2]}"
        except ValueError as exc:
            reason = str(exc)
        raise SourceChanged(f"refused to follow a link or redirect to {self._shown(url)}: {reason}")

    def _shown(self, url: str) -> str:
        return self._redactor.scrub(url)[:SHOWN]


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
