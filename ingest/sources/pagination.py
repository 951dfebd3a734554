"""Which page comes next, and why there is none. Pure: no request is made here.

A listing ends on an explicit signal: the absence of a token, an empty page or a declared total; never on a short page
unless the stream says so. Tokens are opaque text.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ingest.config import model
from ingest.errors import SourceChanged
from ingest.paths import JsonPath, Root
from ingest.sources.answers import Answer, Undecodable, scalar
from ingest.sources.links import links, resolved
from ingest.sources.placement import Placement, Put


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the next request needs. One of `url`, `token`, `number` is set, or none of them for a single page."""

    url: str | None = None
    token: str | None = None
    number: int | None = None  # page number, or offset
    rows: int = 0  # received in this listing before this page
    total: int | None = None  # as declared last
    moved: bool = False  # the declared total changed during the listing: it no longer ends it


class Stop(msgspec.Struct, frozen=True):
    """The listing is complete, and this is why."""

    reason: str


class Received(msgspec.Struct):
    """One answer, as far as paging cares."""

    url: str  # that was asked
    headers: Mapping[str, str]  # names in lower case
    body: Answer
    records: Sequence[bytes]

    def find(self, path: JsonPath) -> str | None:
        """The token at the path: None where it is absent, null, empty or false.

        Raises SourceChanged for what is neither text nor a number."""
        if path.root is Root.HEADER:
            text = self.headers.get(str(path.steps[0]).lower(), "")
            return None if text.lower() in ("", "false") else text
        found = self._at(path)
        try:
            return None if found == b"false" else scalar(found) or None
        except TypeError:
            raise SourceChanged(f"`{path}` is an object or a list; a token is text or a number") from None
        except (Undecodable, UnicodeDecodeError) as exc:
            raise SourceChanged(f"`{path}` cannot be read: {exc}") from exc

    def flag(self, path: JsonPath) -> bool | None:
        """What the answer says at the path; None: nothing."""
        if path.root is Root.HEADER:
            text = self.headers.get(str(path.steps[0]).lower())
        else:
            text = None if self._at(path) in (None, b"null") else self.find(path) or "false"
        return None if text is None else text.strip().lower() not in ("", "0", "false")

    def _at(self, path: JsonPath) -> bytes | None:
        try:
            if path.root is not Root.LAST:
                found = self.body.first(path.steps)
            else:
                found = Answer(self.records[-1]).first(path.steps) if self.records else None
        except Undecodable as exc:
            raise SourceChanged(f"`{path}` cannot be read: {exc}") from exc
        return None if found is None else bytes(found)


class Paginator(Protocol):
    def first(self) -> Token: ...
    def puts(self, token: Token) -> Sequence[Put]:
        """What the request for this page carries besides."""

    def after(self, token: Token, received: Received) -> Token | Stop:
        """The page that follows the one asked with `token`. Raises SourceChanged when the answer contradicts itself."""


class SinglePage:
    def first(self) -> Token:
        return Token()

    def puts(self, token: Token) -> Sequence[Put]:
        return ()

    def after(self, token: Token, received: Received) -> Token | Stop:
        return Stop("single page")


class NextLink:
    """`link` and `next_url`: the answer names the next page's URL, resolved against its own (RFC 3986)."""

    def __init__(self, config: model.LinkHeader | model.NextUrl) -> None:
        self._config = config

    def first(self) -> Token:
        return Token()

    def puts(self, token: Token) -> Sequence[Put]:
        return ()

    def after(self, token: Token, received: Received) -> Token | Stop:
        if isinstance(self._config, model.LinkHeader):
            target = links(received.headers.get("link", "")).get(self._config.rel.lower()) or None
            missing = f'no Link with rel="{self._config.rel}"'
        else:
            target = received.find(self._config.from_)
            missing = f"no URL at {self._config.from_}"
        if target is None:
            return Stop(missing)
        if self._config.end == "empty" and not received.records:
            return Stop("empty page")
        return Token(url=resolved(received.url, target), rows=token.rows + len(received.records))


class CursorToken:
    def __init__(self, config: model.CursorToken) -> None:
        self._config, self._where = config, Placement.of(config)

    def first(self) -> Token:
        return Token(token=self._config.first)

    def puts(self, token: Token) -> Sequence[Put]:
        return () if token.token is None else (Put(self._where, token.token),)

    def after(self, token: Token, received: Received) -> Token | Stop:
        config = self._config
        found = received.find(config.from_)
        more = None if config.more is None else received.flag(config.more)
        if more is False:
            return Stop(f"{config.more} is false")
        if config.end == "empty" and not received.records:
            return Stop("empty page")
        if found is None:
            if more:
                raise SourceChanged(f"{config.more} says that there is more, but there is no token at {config.from_}")
            return Stop(f"no token at {config.from_}")
        if config.end == "repeat" and found == token.token:
            return Stop("the token was repeated")
        return Token(token=found, rows=token.rows + len(received.records))


class Counted:
    """`page` and `offset`: we count, and the API says when it is over."""

    def __init__(self, config: model.PageNumber | model.Offset) -> None:
        self._config, self._where = config, Placement.of(config)
        self._by_page = isinstance(config, model.PageNumber)
        self._declared = config.total_pages if isinstance(config, model.PageNumber) else config.total

    def first(self) -> Token:
        return Token(number=self._config.start if isinstance(self._config, model.PageNumber) else 0)

    def puts(self, token: Token) -> Sequence[Put]:
        place = Put(self._where, token.number or 0)
        if self._config.size_param is None or self._config.size is None:
            return (place,)
        return place, Put(Placement(param=self._config.size_param), self._config.size)

    def after(self, token: Token, received: Received) -> Token | Stop:
        count = len(received.records)
        rows = token.rows + count
        declared = self._total(received)
        total = token.total if declared is None else declared
        moved = token.moved or (token.total is not None and total != token.total)
        if self._config.end == "short" and self._config.size is not None and count < self._config.size:
            return Stop(f"short page ({count} of {self._config.size})")
        done = self._pages_done(token) if self._by_page else rows
        if self._config.end in ("auto", "total") and declared is not None and not moved and done == total:
            return Stop(f"total reached ({done} of {total})")
        if not count:
            return self._empty(done, total)
        number = (token.number or 0) + (1 if self._by_page else count)
        return Token(number=number, rows=rows, total=total, moved=moved)

    def _empty(self, done: int, total: int | None) -> Stop:
        if self._config.end == "total" and total is not None and done < total:
            raise SourceChanged(f"an empty page after {done} of {total} declared by {self._declared}")
        return Stop("empty page")

    def _pages_done(self, token: Token) -> int:
        start = self._config.start if isinstance(self._config, model.PageNumber) else 0
        return (token.number or 0) - start + 1

    def _total(self, received: Received) -> int | None:
        if self._declared is None:
            return None
        text = received.find(self._declared)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise SourceChanged(f"{self._declared} is {text[:40]!r}, no count") from None


def paginator(config: model.AnyPaginate) -> Paginator:
    if isinstance(config, model.SinglePage):
        return SinglePage()
    if isinstance(config, (model.LinkHeader, model.NextUrl)):
        return NextLink(config)
    if isinstance(config, model.CursorToken):
        return CursorToken(config)
    return Counted(config)


_SIGNS = ("next", "next_url", "nextLink", "@odata.nextLink", "next_page", "nextPageToken", "next_cursor", "has_more")


def unread_pages(received: Received) -> str | None:
    """What in an answer says that there is another page, for streams that read one only; None: nothing known."""
    if links(received.headers.get("link", "")).get("next"):
        return 'the answer has a Link with rel="next"'
    for name in _SIGNS:
        found = received.body.first((name,))
        if found is not None and bytes(found) not in (b"null", b"false", b'""', b"[]", b"{}", b"0"):
            return f"the answer has `{name}`"
    return None
