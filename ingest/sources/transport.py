"""The one way out: every request to an API passes here.

What may succeed later is tried again: with full jitter, never before the time that the server asked for, within a
budget. When a try may leave is the gate's affair. Credentials are put on each try anew, and no message shows one.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import httpx

from ingest.config import model
from ingest.config.model import Retry, Source, Timeout
from ingest.config.references import Where, nowhere
from ingest.config.rules import Action
from ingest.errors import ConfigError, SourceRefused, SourceUnavailable, Unreadable
from ingest.redaction import Redactor
from ingest.retry import asked_wait, backoff
from ingest.sources import Watch, links
from ingest.sources.answers import Undecodable
from ingest.sources.auth import Credentials
from ingest.sources.body import Broken
from ingest.sources.clients import AnyClients, Clients
from ingest.sources.clock import SYSTEM, Clock
from ingest.sources.conditional import NOT_MODIFIED, is_conditional
from ingest.sources.exchange import Exchange, Response, Trace
from ingest.sources.gate import Gate, Told, Turn
from ingest.sources.hosts import Hosts
from ingest.sources.request import Request
from ingest.sources.rules import Ruled, Rules
from ingest.sources.waiter import too_long
from ingest.telltale import masked
from ingest.tls import UnfitFile

T = TypeVar("T")

SHOWN = 200  # characters of a body in a message
NO_CONNECTION = "; is it up, and is that its address?"


class Limits(NamedTuple):
    timeout: Timeout
    retry: Retry
    max_body: int  # bytes, decompressed
    stream: str = ""  # for messages: whose request it is
    rules: Rules = Rules()  # what answers mean that are not what they seem


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

    def __init__(
        self, exchange: Exchange, redactor: Redactor, clock: Clock = SYSTEM, gate: Gate | None = None
    ) -> None:
        """`gate`: absent, one of its own, with the limits that hold where none are configured."""
        self._exchange = exchange
        self._redactor, self.clock = redactor, clock
        self._gate = gate or Gate("", model.Limits(), clock=clock)
        self._beside: Gate | None = None  # counts what we send, without letting it through
        self._elsewhere = False  # what it asks is not below base_url

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
        than `max_wait`, SourceUnavailable when tries or budget are used up or the API counts as down, Unreadable where
        no answer could be read, SourceChanged for a URL we may not ask, and what `credentials` raise. A 401 is answered
        once with what `Credentials.renew` finds.
        Raises Ruled for an answer that means something to whoever asked, whatever its status.
        """
        began = self.clock.monotonic()
        spent = 0.0  # seconds of the budget: neither what the server asked us to wait nor what the gate did
        renewed = False
        attempt = 0
        while True:
            attempt += 1
            turn = self._gate.turn(limits.stream, watch, limits.retry, partial(self.shown, request))
            try:
                return await self._try(turn, request, credentials, limits, watch, decode)
            except _Again as exc:
                reason, wait = str(exc), exc.wait
                unavailable = Unreadable if isinstance(exc.__cause__, Undecodable) else SourceUnavailable
                hint = NO_CONNECTION if isinstance(exc.__cause__, httpx.ConnectError) else ""
            except _Unauthorized as exc:
                if renewed or not await credentials.renew(exc.sent):
                    raise exc.refusal from None
                renewed, attempt = True, attempt - 1
                continue
            retry = limits.retry
            what = f"{self.shown(request)}, attempt {attempt} of {retry.attempts}: {self._redactor.scrub(reason)}"
            own = backoff(attempt, retry.base, retry.cap)
            if wait is not None and wait > retry.max_wait:
                raise too_long(what, wait, retry, self.clock)
            now = self.clock.monotonic()
            spent += now - turn.departed_at + own
            if attempt >= retry.attempts or spent > retry.budget:
                down = self._gate.used_up(began, wait or 0.0)
                raise unavailable(f"{what}; giving up after {now - began:.1f} s{hint}", retry_after=down or wait)
            watch.retrying(attempt, own + (wait or 0.0), what)
            await self.clock.sleep(own + (wait or 0.0))

    def toward(self, url: str) -> "Transport":
        """The same for one other origin, which the configuration names, such as that of a token endpoint."""
        exchange = self._exchange.toward(url)
        counts = exchange.home == self._exchange.home
        other = self._with(exchange.quiet(), (self._beside or self._gate) if counts else None)
        other._elsewhere = True
        return other

    def aside(self) -> "Transport":
        """The same for what has to go out while requests of ours wait for it, such as for a token: it does not queue
        behind them."""
        return self._with(self._exchange.quiet(), self._beside or self._gate)

    def _with(self, exchange: Exchange, beside: Gate | None) -> "Transport":
        other = Transport(exchange, self._redactor, self.clock)
        other._beside = beside
        return other

    def shown(self, request: Request) -> str:
        """For messages: GET https://…, without secrets."""
        return f"{request.method} {self._redactor.scrub(request.url)[: links.SHOWN]}"

    async def _try(
        self,
        turn: Turn,
        request: Request,
        credentials: Credentials,
        limits: Limits,
        watch: Watch,
        decode: Callable[[Response], T],
    ) -> T:
        if self._beside is not None:
            self._beside.owe(1)
        async with turn:
            try:
                response = await self._once(request, credentials, limits)
            except _Again as exc:
                turn.failed(unreachable=isinstance(exc.__cause__, httpx.ConnectError | httpx.ConnectTimeout))
                raise
            watch.requested(response.answered_at - response.asked_at)
            action = limits.rules.match(response)
            good = _is_good(request, response.status) and action not in ("retry", "rate_limited")
            now = self.clock.wall() + response.skew
            wait = asked_wait(response.headers, limits.retry.wait_headers, now, succeeded=good)
            self._gate.owe(response.redirects)
            status = 429 if action == "rate_limited" else response.status
            await turn.answered(Told(status, response.headers, wait, now))
        if action is not None:
            raise self._ruled(action, response, wait)
        if response.status in limits.retry.statuses:
            raise _Again(self._said(response), wait)
        if not good:
            hint = "" if self._elsewhere else _hint(response.status)
            said = f"{self.shown(request)}: {self._said(response)}{hint}"
            refusal = SourceRefused(said, response.status)
            if response.status == 401 and response.sent is not None:
                raise _Unauthorized(response.sent, refusal)
            raise refusal
        try:
            return decode(response)
        except Undecodable as exc:
            said = _described(response) if isinstance(exc, Unshown) else self._said(response)
            raise _Again(f"the body cannot be read ({exc}): {said}", wait) from exc

    async def _once(self, request: Request, credentials: Credentials, limits: Limits) -> Response:
        try:
            return await self._exchange.send(request, credentials, limits.timeout, limits.max_body)
        except TimeoutError as exc:
            raise _Again(f"no complete answer within timeout.total ({limits.timeout.total:g} s)") from exc
        except (httpx.TransportError, httpx.DecodingError, Broken) as exc:
            raise _Again(f"{type(exc).__name__}: {exc}") from exc

    def _ruled(self, action: Action, response: Response, wait: float | None) -> Exception:
        said = f"`errors` says {action}: {self._said(response)}"
        if action in ("retry", "rate_limited"):
            return _Again(said, wait)
        said = f"{self.shown(response.request)}: {said}"
        if action == "refresh_auth" and response.sent is not None:
            return _Unauthorized(response.sent, SourceRefused(said, response.status))
        return Ruled(action, said, response.status)

    def _said(self, response: Response) -> str:
        text = masked(self._redactor.scrub(response.body[: 10 * SHOWN].decode("utf-8", "replace")))[:SHOWN]
        return self._redactor.scrub(f"{_described(response)}: {text!r}")


def _is_good(request: Request, status: int) -> bool:
    return 200 <= status < 300 or (status == NOT_MODIFIED and is_conditional(request))


def _described(response: Response) -> str:
    kind = response.headers.get("content-type", "no content type")
    return f"{response.status} ({kind}, {len(response.body)} bytes)"


def _hint(status: int) -> str:
    hints = {401: "; check `auth`", 403: "; check `auth` and what it may read", 404: "; check `base_url` and `path`"}
    return hints.get(status, "")


@asynccontextmanager
async def open_transport(
    source: Source,
    redactor: Redactor,
    clock: Clock = SYSTEM,
    where: Where = nowhere,
    gate: Gate | None = None,
    *,
    clients: AnyClients | None = None,
    trace: Trace | None = None,
) -> AsyncIterator[Transport]:
    """`clients`: in place of those that ask the API. Raises ConfigError for hosts and certificates that cannot be used.
    """
    try:
        hosts = Hosts(source.base_url, source.allow_hosts, source.auth_hosts)
        clients = clients or Clients(source.tls, hosts)
    except UnfitFile as exc:
        raise ConfigError(f"{where(f'tls.{exc.key}')}: {exc}") from exc
    except ValueError as exc:
        raise ConfigError(f"{where('allow_hosts')}: {exc}") from exc
    try:
        yield Transport(Exchange(clients.of, hosts, redactor, trace), redactor, clock, gate)
    finally:
        await clients.aclose()
