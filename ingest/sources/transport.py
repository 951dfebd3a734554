"""The one way out: every request to an API passes here.

What may succeed later is tried again: with full jitter, never before the time that the server asked for, within a
budget. What an answer asked for holds for the next request too, be it a good one. Credentials are put on each try anew,
and no message shows one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

import httpx

from ingest.config.model import Retry, Source, Timeout
from ingest.config.references import Where, nowhere
from ingest.errors import ConfigError, RateLimited, SourceRefused, SourceUnavailable
from ingest.redaction import Redactor
from ingest.retry import asked_wait, backoff
from ingest.sources import Watch, links
from ingest.sources.answers import Undecodable
from ingest.sources.auth import Credentials
from ingest.sources.body import Broken
from ingest.sources.clients import Clients
from ingest.sources.exchange import Exchange, Response
from ingest.sources.hosts import Hosts
from ingest.sources.request import Request
from ingest.tls import UnfitFile

T = TypeVar("T")

SHOWN = 200  # characters of a body in a message


class Limits(NamedTuple):
    timeout: Timeout
    retry: Retry
    max_body: int  # bytes, decompressed


class Clock(NamedTuple):
    """Where time comes from; tests bring their own."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


SYSTEM = Clock()


class Unshown(Undecodable):
    """As Undecodable, for a body that no message may show: it may hold a secret that nobody knows yet."""


class _Again(Exception):
    """This try failed, a later one may not. `wait`: seconds that the server asked for."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class _Unauthorized(Exception):
    """The API answered 401 to `sent`. `refusal`: what that means where nothing fresher can be shown."""

    def __init__(self, sent: Request, refusal: SourceRefused) -> None:
        self.sent, self.refusal = sent, refusal


class Transport:
    """Made by `open_transport`. One per source."""

    def __init__(self, exchange: Exchange, redactor: Redactor, clock: Clock = SYSTEM) -> None:
        self._exchange = exchange
        self._redactor, self.clock = redactor, clock
        self._not_before = 0.0  # of the monotonic clock: what the last good answer asked for

    async def send(
        self,
        request: Request,
        credentials: Credentials,
        limits: Limits,
        watch: Watch,
        decode: Callable[[Response], T],
    ) -> T:
        """Ask until `decode` accepts a 2xx. `decode` raises Undecodable for a body that a later try may give whole.

        Raises SourceRefused for a status that is no matter of time, RateLimited when the server asks for a longer wait
        than `max_wait`, SourceUnavailable when tries or budget are used up, SourceChanged for a URL we may not ask, and
        what `credentials` raise. A 401 is answered once with what `Credentials.renew` finds.
        """
        await self._hold_back(request, limits.retry, watch)
        began = self.clock.monotonic()
        asked = 0.0  # seconds of waits that the server asked for: bounded by max_wait, not by the budget
        renewed = False
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._try(request, credentials, limits, watch, decode)
            except _Again as exc:
                reason, wait = str(exc), exc.wait
            except _Unauthorized as exc:
                if renewed or not await credentials.renew(exc.sent):
                    raise exc.refusal from None
                renewed, attempt = True, attempt - 1
                continue
            retry = limits.retry
            what = f"{self.shown(request)}, attempt {attempt} of {retry.attempts}: {self._redactor.scrub(reason)}"
            own = backoff(attempt, retry.base, retry.cap)
            self._bear(what, wait or 0.0, retry)
            spent = self.clock.monotonic() - began
            if attempt >= retry.attempts or spent - asked + own > retry.budget:
                raise SourceUnavailable(f"{what}; giving up after {spent:.1f} s", retry_after=wait)
            asked += wait or 0.0
            watch.retrying(attempt, own + (wait or 0.0), what)
            await self.clock.sleep(own + (wait or 0.0))

    def toward(self, url: str) -> "Transport":
        """The same for one other origin, which the configuration names, such as that of a token endpoint."""
        return Transport(self._exchange.toward(url), self._redactor, self.clock)

    def shown(self, request: Request) -> str:
        """For messages: GET https://…, without secrets."""
        return f"{request.method} {self._redactor.scrub(request.url)[: links.SHOWN]}"

    async def _try(
        self,
        request: Request,
        credentials: Credentials,
        limits: Limits,
        watch: Watch,
        decode: Callable[[Response], T],
    ) -> T:
        response = await self._once(request, credentials, limits)
        watch.requested(response.answered_at - response.asked_at)
        good = 200 <= response.status < 300
        wait = asked_wait(response.headers, limits.retry.wait_headers, self.clock.wall(), succeeded=good)
        if response.status in limits.retry.statuses:
            raise _Again(self._said(response), wait)
        if not good:
            said = f"{self.shown(request)}: {self._said(response)}{_hint(response.status)}"
            refusal = SourceRefused(said, response.status)
            if response.status == 401 and response.sent is not None:
                raise _Unauthorized(response.sent, refusal)
            raise refusal
        try:
            decoded = decode(response)
        except Undecodable as exc:
            said = _described(response) if isinstance(exc, Unshown) else self._said(response)
            raise _Again(f"no JSON ({exc}): {said}", wait) from exc
        if wait is not None:
            self._not_before = max(self._not_before, self.clock.monotonic() + wait)
        return decoded

    async def _once(self, request: Request, credentials: Credentials, limits: Limits) -> Response:
        try:
            return await self._exchange.send(request, credentials, limits.timeout, limits.max_body)
        except TimeoutError as exc:
            raise _Again(f"no complete answer within timeout.total ({limits.timeout.total:g} s)") from exc
        except (httpx.TransportError, httpx.DecodingError, Broken) as exc:
            raise _Again(f"{type(exc).__name__}: {exc}") from exc

    async def _hold_back(self, request: Request, retry: Retry, watch: Watch) -> None:
        wait = self._not_before - self.clock.monotonic()
        if wait > 0:
            what = f"{self.shown(request)}: held back, as the answer before it asked for"
            self._bear(what, wait, retry)
            watch.waiting(wait, what)
            await self.clock.sleep(wait)

    def _bear(self, what: str, wait: float, retry: Retry) -> None:
        """Raises RateLimited when the API asks for more patience than we have."""
        if wait > retry.max_wait:
            raise RateLimited(
                f"{what}; the API asks to come back in {wait:.0f} s{_at(self.clock.wall() + wait)}, longer than"
                f" retry.max_wait ({retry.max_wait:g} s)",
                retry_after=wait,
            )

    def _said(self, response: Response) -> str:
        text = self._redactor.scrub(response.body.decode("utf-8", "replace"))[:SHOWN]
        return self._redactor.scrub(f"{_described(response)}: {text!r}")


def _described(response: Response) -> str:
    kind = response.headers.get("content-type", "no content type")
    return f"{response.status} ({kind}, {len(response.body)} bytes)"


def _at(moment: float) -> str:
    try:
        return f" (at {datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ})"
    except (ValueError, OverflowError, OSError):
        return ""


def _hint(status: int) -> str:
    hints = {401: "; check `auth`", 403: "; check `auth` and what it may read", 404: "; check `base_url` and `path`"}
    return hints.get(status, "")


@asynccontextmanager
async def open_transport(
    source: Source, redactor: Redactor, clock: Clock = SYSTEM, where: Where = nowhere
) -> AsyncIterator[Transport]:
    """Raises ConfigError for hosts and certificates that cannot be used."""
    try:
        hosts = Hosts(source.base_url, source.allow_hosts, source.auth_hosts)
        clients = Clients(source.tls, hosts)
    except UnfitFile as exc:
        raise ConfigError(f"{where(f'tls.{exc.key}')}: {exc}") from exc
    except ValueError as exc:
        raise ConfigError(f"{where('allow_hosts')}: {exc}") from exc
    try:
        yield Transport(Exchange(clients.of, hosts, redactor), redactor, clock)
    finally:
        await clients.aclose()
