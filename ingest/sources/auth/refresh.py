"""Access tokens by the grant `refresh_token`, where each use may give another refresh token and end the one before.

take the lease → look for what others saved → ask → save → use. One process at a time asks; what it gets is saved before
it is used, by compare-and-set: a process that was frozen past its lease cannot put an old token over a newer one. A
crash between the issuer's answer and the save loses the new token: some issuers take the one before it for a while,
others want a person to log in again.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from checkpoints import Lease
from ingest.config.auth import OAuth2
from ingest.errors import SourceRefused, SourceUnavailable, StoreUnavailable, Superseded
from ingest.retry import backoff
from ingest.sources.auth import State
from ingest.sources.auth.errands import Errands
from ingest.sources.auth.oauth2 import Client, Grant, ask
from ingest.sources.auth.renewed import Token, renew_at
from ingest.sources.auth.vault import Kept, Vault
from ingest.sources.request import Request

log = structlog.get_logger()
T = TypeVar("T")

LEASE_MARGIN = 30.0  # seconds of the lease beyond the longest try
ASK_EVERY = 0.2  # seconds between looks while another process has the lease
ROUNDS = 3  # times that a refused refresh token is looked up again, as another one may have been saved
SAVE_TRIES = 12  # with the back-off below, some half a minute
SAVE_BASE, SAVE_CAP = 0.1, 5.0  # seconds


class _Found(Exception):
    """Another process has fetched a token meanwhile: there is nothing to ask for."""

    def __init__(self, token: Token) -> None:
        self.token = token


@dataclass
class RefreshToken:
    oauth2: OAuth2
    errands: Errands
    state: State

    def __post_init__(self) -> None:
        assert self.oauth2.refresh_token is not None
        self._first = self.oauth2.refresh_token
        self._vault = Vault(self.state.tokens, self._first, self.oauth2.token_url, self.oauth2.client_id)
        self._unsaved: tuple[int, Kept] | None = None  # what was got and could not be saved yet, with its predecessor

    async def obtain(self, refused: str | None) -> Token:
        for left in reversed(range(ROUNDS)):
            if self._unsaved is not None:
                return self._token(await self._save(*self._unsaved))
            showing = _Showing(self, refused)
            try:
                grant = await ask(self.errands, self.oauth2.token_url, showing)
                return self._token(await self._save(showing.version, self._kept(grant, showing.refresh)))
            except _Found as found:
                return found.token
            except SourceRefused:
                version, _ = await self._load()
                if version == showing.version or not left:
                    raise
            finally:
                await showing.release()
        raise AssertionError

    async def look(self, refused: str | None) -> tuple[int, str]:
        """The version and the refresh token given last. Raises _Found where its access token is still good."""
        version, kept = await self._load()
        if kept is None:
            return version, self._first
        token = self._token(kept)
        if kept.access != refused and token.renew_at > self.errands.monotonic():
            raise _Found(token)
        return version, kept.refresh

    @property
    def lease_name(self) -> str:
        return self._vault.name

    def _kept(self, grant: Grant, used: str) -> Kept:
        now = self.errands.transport.clock.wall()
        until = None if grant.life is None else now + grant.life
        return Kept(grant.refresh or used, grant.access, until, grant.life)

    def _token(self, kept: Kept) -> Token:
        if kept.until is None or kept.life is None:
            return Token(kept.access)
        ends = self.errands.monotonic() + kept.until - self.errands.transport.clock.wall()
        return Token(kept.access, renew_at(ends - kept.life, kept.life, self.oauth2.leeway))

    async def _load(self) -> tuple[int, Kept | None]:
        version, kept = await self._vault.load()
        if kept is not None:
            self._learn(version, kept)
        return version, kept

    async def _save(self, version: int, kept: Kept) -> Kept:
        """What is saved now: `kept`, or what another process saved before us. Raises StoreUnavailable; `kept` is then
        remembered, as nothing else may work any more."""
        self._unsaved = version, kept
        self._learn(version + 1, kept)
        try:
            while not await _patiently(partial(self._vault.replace, version, kept)):
                version, theirs = await _patiently(self._load)
                if theirs is not None:
                    kept = theirs
                    break
        except asyncio.CancelledError:
            log.error("a new refresh token was not saved: someone may have to log in again", source=self.errands.source)
            raise
        self._unsaved = None
        return kept

    def _learn(self, version: int, kept: Kept) -> None:
        self.errands.redactor.renew(f"{self._vault.name} {version % 2}", kept.refresh)


class _Showing(Client):
    """The refresh token of this moment, looked up for every try under the lease that lets one process ask."""

    def __init__(self, grant: RefreshToken, refused: str | None) -> None:
        super().__init__(grant.oauth2)
        self._grant, self._refused = grant, refused
        self._leases, self._holder = grant.state.leases, grant.state.holder
        self._lease: Lease | None = None
        self._ttl = grant.errands.limits.timeout.total + LEASE_MARGIN
        self.version, self.refresh = 0, ""

    async def prepare(self, request: Request) -> Request:
        await self._own()
        self.version, self.refresh = await self._grant.look(self._refused)
        return self.put(request, {"refresh_token": self.refresh})

    async def release(self) -> None:
        if self._lease is not None:
            with suppress(StoreUnavailable):  # then it ends by itself
                await self._leases.release(self._lease)

    async def _own(self) -> None:
        if self._lease is not None:
            with suppress(Superseded):
                return await self._leases.renew(self._lease, self._ttl)
        patience = math.ceil(2 * self._ttl / ASK_EVERY)
        for _ in range(patience):
            self._lease = await self._leases.acquire(self._grant.lease_name, self._holder, self._ttl)
            if self._lease is not None:
                return None
            await self._grant.look(self._refused)
            await self._grant.errands.transport.clock.sleep(ASK_EVERY)
        holder = await self._leases.holder(self._grant.lease_name)
        raise SourceUnavailable(f"another process has been at fetching a token for {2 * self._ttl:.0f} s: {holder}")


async def _patiently(act: Callable[[], Awaitable[T]]) -> T:
    for attempt in range(1, SAVE_TRIES):
        try:
            return await act()
        except StoreUnavailable as exc:
            log.warning("cannot save a new refresh token yet; it is not used until then", error=str(exc))
            await asyncio.sleep(backoff(attempt, SAVE_BASE, SAVE_CAP))
    return await act()
