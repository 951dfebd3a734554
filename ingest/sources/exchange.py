"""One try of a request: where it may go, which redirects it follows, what came back.

Links and redirects are followed only where the rules of `hosts.py` let us go, and credentials are put on at the last
moment, for those alone who may have them.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx
from msgspec.structs import replace

from ingest.config.model import Timeout
from ingest.errors import ConfigError, SourceChanged
from ingest.redaction import MASK, Redactor
from ingest.retry import http_date
from ingest.sources import body
from ingest.sources.auth import Credentials
from ingest.sources.hosts import Hosts, Standing, origin
from ingest.sources.links import SHOWN, resolved
from ingest.sources.public import NotPublic
from ingest.sources.request import Request
from ingest.tls import tls_failure

MAX_REDIRECTS = 3
RESENT = 8  # times that a request is sent again at once because its kept connection was closed
SKEW = 30.0  # seconds by which clocks may differ before the API's counts
AHEAD = 86_400.0  # seconds by which a clock may be ahead of ours: one that is more says nothing
REDIRECTS = (301, 302, 303, 307, 308)
BREAKING = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # what a header may not hold (RFC 9110, 5.5)

_UNANSWERED = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


class Response(NamedTuple):
    status: int
    request: Request  # that was asked last, after redirects
    sent: Request | None  # the same with its credentials; None: it went without them
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    asked_at: float  # seconds since 1970, by our clock
    answered_at: float
    redirects: int = 0  # requests that were followed to this one

    @property
    def skew(self) -> float:
        """Seconds by which the API's clock is ahead of ours, as far as it matters and can be.

        One that is years ahead would let rows of the future move the mark, past all rows until then. An answer carries
        the time at which it was made, and a cached one its age (RFC 9110, 6.6.1; RFC 9111, 5.1)."""
        made_at = http_date(self.headers.get("date", ""))
        if made_at is None:
            return 0.0
        age = self.headers.get("age", "")
        sent_at = made_at + (int(age) if age.isdecimal() and len(age) < 10 else 0)
        if sent_at > self.answered_at + SKEW:
            return ahead if (ahead := sent_at - self.answered_at) <= AHEAD else 0.0
        return sent_at - self.asked_at if sent_at < self.asked_at - SKEW else 0.0


ClientOf = Callable[[str, Standing], httpx.AsyncClient]
"""The client for a URL, where we have that standing."""

Trace = Callable[[Request, Response], None]
"""Is told every request as it went out, with what came back; redirects one by one."""


class Exchange:
    """Asks where the rules allow it."""

    def __init__(self, client_of: ClientOf, hosts: Hosts, redactor: Redactor, trace: Trace | None = None) -> None:
        self._client_of, self._hosts, self._redactor, self._trace = client_of, hosts, redactor, trace
        self.home = hosts.home

    def toward(self, url: str) -> "Exchange":
        """Asks one origin, which the configuration names, and nothing else."""
        there = Standing.HOME if origin(url) == self._hosts.home else Standing.NAMED
        return Exchange(lambda url, _: self._client_of(url, there), Hosts(url), self._redactor, self._trace)

    def quiet(self) -> "Exchange":
        """Asks the same, and lets nobody see what comes with a good status: it may hold a secret that is new."""
        trace = self._trace
        if trace is None:
            return self

        def masked(sent: Request, answer: Response) -> None:
            kind = {name: value for name, value in answer.headers.items() if name == "content-type"}
            good = 200 <= answer.status < 400  # a redirect may bring a cookie, or a token in its target
            trace(sent, answer._replace(headers=kind, body=MASK.encode()) if good else answer)

        return Exchange(self._client_of, self._hosts, self._redactor, masked)

    async def send(self, request: Request, credentials: Credentials, timeout: Timeout, max_body: int) -> Response:
        """The answer, redirects followed. What the credentials need to be made is not on the clock.

        Raises SourceChanged for a URL that we may not ask and a body that is too large, ConfigError where TLS fails for
        good; TimeoutError, httpx.TransportError and body.Broken for what a later try may mend; and what
        `Credentials.prepare` raises.
        """
        asked, left, standing = request, timeout.total, Standing.HOME
        for redirects in range(MAX_REDIRECTS + 1):
            standing = min(standing, self._standing(asked.url))  # whoever sends us on from elsewhere gets us no further
            if standing is Standing.FOREIGN:
                sent = self._bare(asked, credentials)
            else:
                sent = await self._prepared(asked, credentials)
                if sent.url != asked.url:
                    self._standing(sent.url)  # as the client reads it, whatever was put into it
            began = time.monotonic()
            async with asyncio.timeout(left):
                response = await self._hop(asked, sent, standing, timeout, max_body)
            left -= time.monotonic() - began
            if response.status not in REDIRECTS:
                return response._replace(redirects=redirects) if redirects else response
            target = response.headers.get("location")
            if not target:
                raise SourceChanged(f"{self._shown(asked)}: a redirect ({response.status}) to nowhere")
            if request.method != "GET":
                raise SourceChanged(f"{self._shown(asked)}: a redirect ({response.status}); only GET is followed")
            following = resolved(asked.url, target)
            if _in_the_clear(following) and not _in_the_clear(asked.url):
                raise SourceChanged(f"{self._shown(asked)}: a redirect ({response.status}) from https to http")
            asked = replace(asked, url=following)
        raise SourceChanged(f"{self._shown(request)}: more than {MAX_REDIRECTS} redirects")

    async def _prepared(self, request: Request, credentials: Credentials) -> Request:
        try:
            return await credentials.prepare(request)
        except httpx.InvalidURL as exc:  # what signs a URL takes it apart
            raise self._invalid(request, exc) from None

    def _bare(self, request: Request, credentials: Credentials) -> Request:
        """For a host that gets no credentials: no header, no parameter and no body of ours."""
        if request.method != "GET" or request.body is not None:
            raise SourceChanged(
                f"{self._shown(request)}: the configured request does not go to a host that gets no credentials;"
                " where it may, name it in `auth_hosts`"
            )
        return Request(credentials.strip(request.url))

    async def _hop(
        self, request: Request, sent: Request, standing: Standing, timeout: Timeout, max_body: int
    ) -> Response:
        asked_at = time.time()
        try:
            response = await self._send(sent, standing, timeout)
            try:
                content = await body.read(response, max_body)
            finally:
                await response.aclose()
        except body.TooLarge:
            raise SourceChanged(
                f"{self._shown(request)}: the body is over limits.max_body ({max_body} bytes);"
                " ask for smaller pages, or raise it"
            ) from None
        except NotPublic as exc:
            raise SourceChanged(
                f"{self._shown(request)}: {exc}, which is no public address: what only a wildcard of `allow_hosts`"
                " allows must not lead there; name the host itself"
            ) from None
        except (httpx.TransportError, ssl.SSLError) as exc:  # httpcore lets an alert out as it is
            if failure := tls_failure(exc):
                raise ConfigError(f"{self._shown(request)}: {failure}") from exc
            if isinstance(exc, httpx.TransportError):
                raise
            raise httpx.ReadError(str(exc)) from exc
        names = {name.lower(): value for name, value in response.headers.items()}
        shown = None if standing is Standing.FOREIGN else sent
        answer = Response(response.status_code, request, shown, names, content, asked_at, time.time())
        if self._trace is not None:
            self._trace(sent, answer)
        return answer

    async def _send(self, request: Request, standing: Standing, timeout: Timeout) -> httpx.Response:
        """Sent again at once when a connection that was kept alive turns out to be closed: no fault of the API."""
        client = self._client_of(request.url, standing)
        for _ in range(RESENT):
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
            raise self._invalid(request, exc) from None

    def _invalid(self, request: Request, exc: httpx.InvalidURL) -> SourceChanged:
        return SourceChanged(f"{self._shown(request)!r}: {self._redactor.scrub(str(exc))}")

    def _standing(self, url: str) -> Standing:
        try:
            return self._hosts.standing(url)
        except ValueError as exc:
            shown = self._redactor.scrub(url)[:SHOWN]
            raise SourceChanged(f"refused to follow a link or redirect to {shown}: {exc}") from None

    def _shown(self, request: Request) -> str:
        return f"{request.method} {self._redactor.scrub(request.url)[:SHOWN]}"


def _in_the_clear(url: str) -> bool:
    return url[:5].lower() == "http:"


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
