"""Credentials that end: fetched when they are first needed, anew before they end, and once when an API refuses them.

Streams that share them wait for one and the same request. A stream that is cut short meanwhile does not cut that short:
what comes back may be the only thing that still lets us in.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from msgspec.structs import replace

from ingest.sources.auth import with_params
from ingest.sources.auth.static import MIN_LENGTH, Static, without
from ingest.sources.request import Request

Obtain = Callable[[str | None], Awaitable["Token"]]
"""Fetches a token. Its argument: one that was refused, and must not come again."""

CLOSING = 5.0  # seconds that a request for a token may still take when everything ends


class Token(NamedTuple):
    text: str
    renew_at: float = math.inf  # of the monotonic clock


def renew_at(asked_at: float, life: float | None, leeway: float) -> float:
    """When a token is to be fetched anew that was asked for at `asked_at` and lives for `life` seconds (None: nobody
    knows). The leeway is at most half of its life."""
    return math.inf if life is None else asked_at + life - min(leeway, life / 2)


class Supply:
    """One token for all who ask. `learn` is told every token, to keep it out of what people read."""

    def __init__(self, obtain: Obtain, learn: Callable[[str], None], monotonic: Callable[[], float]) -> None:
        self._obtain, self._learn, self._monotonic = obtain, learn, monotonic
        self._token: Token | None = None
        self._before: Token | None = None
        self._fetching: asyncio.Task[Token] | None = None

    @property
    def known(self) -> Collection[str]:
        """The token of now and the one before it."""
        return {token.text for token in (self._token, self._before) if token is not None}

    @property
    def busy(self) -> bool:
        return self._fetching is not None and not self._fetching.done()

    async def current(self) -> str:
        token = self._token
        if token is None or self._monotonic() >= token.renew_at:
            token = await self._fetched(None)
        return token.text

    async def renew(self, refused: str | None) -> bool:
        """Whether there is another token now than the one that was refused."""
        token = self._token
        for _ in range(2):  # a request under way may bring the refused one, where it was made for another reason
            if token is None or token.text == refused:
                token = await self._fetched(refused)
        return token is not None and token.text != refused

    async def aclose(self) -> None:
        if self._fetching is not None:
            await asyncio.wait([self._fetching], timeout=CLOSING)
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
            if not self._fetching.cancelled():
                self._fetching.exception()  # looked at, so that asyncio does not complain of it

    async def _fetched(self, refused: str | None) -> Token:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch(refused), name="fetch a token")
        return await asyncio.shield(self._fetching)

    async def _fetch(self, refused: str | None) -> Token:
        token = await self._obtain(refused)
        self._learn(token.text)
        self._before, self._token = self._token, token
        return token


class Place(NamedTuple):
    """Where a token goes. `value`: the header's or cookie's, with `{token}` in it."""

    kind: Literal["header", "query", "cookie"]
    name: str  # in lower case, of a header
    value: str = "{token}"

    def put(self, request: Request, token: str) -> Request:
        if self.kind == "query":
            return replace(request, url=with_params(request.url, {self.name: token}))
        value = self.value.replace("{token}", token)
        if self.kind == "header":
            return replace(request, headers={**request.headers, self.name: value})
        cookies = [request.headers["cookie"]] if "cookie" in request.headers else []
        return replace(request, headers={**request.headers, "cookie": "; ".join([*cookies, f"{self.name}={value}"])})

    def found(self, sent: Request) -> str | None:
        """The token that `put` put there."""
        if self.kind == "query":
            return dict(parse_qsl(urlsplit(sent.url).query)).get(self.name)
        if self.kind == "header":
            shown = sent.headers.get(self.name)
        else:
            _, named, shown = sent.headers.get("cookie", "").rpartition(f"{self.name}=")
            shown = shown if named else None
        before, _, after = self.value.partition("{token}")
        return None if shown is None else shown.removeprefix(before).removesuffix(after)


class Renewed:
    """A token in its place, beside what stays the same."""

    def __init__(self, rest: Static, place: Place, supply: Supply) -> None:
        self._rest, self._place, self._supply = rest, place, supply

    async def prepare(self, request: Request) -> Request:
        token = await self._supply.current()
        bare = replace(request, url=self.strip(request.url))
        return self._place.put(self._rest.put(bare), token)

    async def renew(self, sent: Request) -> bool:
        return await self._supply.renew(self._place.found(sent))

    def strip(self, url: str) -> str:
        names = {self._place.name} if self._place.kind == "query" else set[str]()
        tokens = {token for token in self._supply.known if len(token) >= MIN_LENGTH}
        return without(self._rest.strip(url), names, tokens)
