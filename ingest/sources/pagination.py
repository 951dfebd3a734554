"""Which page comes next, and why there is none. Pure: no request is made here.

A listing ends on an explicit signal: the absence of a token, an empty page or a declared total; never on a short page
unless the stream says so. Tokens are opaque text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import urljoin

import msgspec

from ingest.config import model
from ingest.errors import SourceChanged
from ingest.paths import JsonPath, Root
from ingest.sources.answers import Answer, Undecodable, scalar


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the next request needs. One of `url`, `token`, `number` is set, or none of them for a single page."""

    url: str | None = None
    token: str | None = None
    number: int | None = None  # page number, or offset
    rows: int = 0  # received in this listing before this page
    total: int | None = None  # as declared by the page before
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
        """The scalar at the path; None where it is absent, null, empty or false. Raises SourceChanged for anything else."""
        if path.root is Root.HEADER:
            return self.headers.get(str(path.steps[0]).lower()) or None
        try:
            if path.root is Root.LAST:
                found = Answer(self.records[-1]).first(path.steps) if self.records else None
            else:
                found = self.body.first(path.steps)
            text = scalar(found)
        except TypeError:
            raise SourceChanged(f"`{path}` is an object or a list; a token is text or a number") from None
        except Undecodable as exc:
            raise SourceChanged(f"`{path}` cannot be read: {exc}") from exc
        return None if text in (None, "", "false") else text


class Paginator(Protocol):
    def first(self) -> Token: ...
    def params(self, token: Token) -> Mapping[str, str]:
        """Parameters of the request for this page."""

    def after(self, token: Token, received: Received) -> Token | Stop:
        """The page that follows the one asked with `token`. Raises SourceChanged when the answer contradicts itself."""


class SinglePage:
    def first(self) -> Token:
        return Token()

    def params(self, token: Token) -> Mapping[str, str]:
        return {}

    def after(self, token: Token, received: Received) -> Token | Stop:
        return Stop("single page")


_LINK = re.compile(r"<([^>]*)>((?:\s*;\s*[^\s=;,]+\s*(?:=\s*(?:\"[^\"]*\"|[^\s;,]*))?)*)")
_REL = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,]*))", re.IGNORECASE)


def links(header: str) -> dict[str, str]:
    """RFC 8288: relation → target. A link with several relations counts for each."""
    found: dict[str, str] = {}
    for target, parameters in _LINK.findall(header):
        match = _REL.search(parameters)
        for relation in "".join(match.groups("") if match else ()).lower().split():
            found.setdefault(relation, target)
    return found


class NextLink:
    """`link` and `next_url`: the answer names the next page's URL, resolved against its own (RFC 3986)."""

    def __init__(self, config: model.LinkHeader | model.NextUrl) -> None:
        self._config = config

    def first(self) -> Token:
        return Token()

    def params(self, token: Token) -> Mapping[str, str]:
        return {}

    def after(self, token: Token, received: Received) -> Token | Stop:
        if isinstance(self._config, model.LinkHeader):
            target = links(received.headers.get("link", "")).get(self._config.rel.lower())
            missing = f'no Link with rel="{self._config.rel}"'
        else:
            target = received.find(self._config.from_)
            missing = f"no URL at {self._config.from_}"
        if target is None:
            return Stop(missing)
        if self._config.end == "empty" and not received.records:
            return Stop("empty page")
        return Token(url=urljoin(received.url, target), rows=token.rows + len(received.records))


class CursorToken:
    def __init__(self, config: model.CursorToken) -> None:
        self._config = config

    def first(self) -> Token:
        return Token(token=self._config.first)

    def params(self, token: Token) -> Mapping[str, str]:
        return {} if token.token is None else {self._config.param: token.token}

    def after(self, token: Token, received: Received) -> Token | Stop:
        config = self._config
        found = received.find(config.from_)
        more = self._more(received)
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

    def _more(self, received: Received) -> bool | None:
        """None: not configured, or the answer does not say."""
        path = self._config.more
        if path is None or (path.root is Root.BODY and received.body.first(path.steps) is None):
            return None
        return received.find(path) not in (None, "0")


class Counted:
    """`page` and `offset`: we count, and the API says when it is over."""

    def __init__(self, config: model.PageNumber | model.Offset) -> None:
        self._config = config
        self._by_page = isinstance(config, model.PageNumber)
        self._declared = config.total_pages if isinstance(config, model.PageNumber) else config.total

    def first(self) -> Token:
        return Token(number=self._config.start if isinstance(self._config, model.PageNumber) else 0)

    def params(self, token: Token) -> Mapping[str, str]:
        params = {self._config.param: str(token.number)}
        if self._config.size_param is not None and self._config.size is not None:
            params[self._config.size_param] = str(self._config.size)
        return params

    def after(self, token: Token, received: Received) -> Token | Stop:
        count = len(received.records)
        rows = token.rows + count
        total = self._total(received)
        moved = token.moved or (token.total is not None and total is not None and total != token.total)
        if self._config.end == "short" and self._config.size is not None and count < self._config.size:
            return Stop(f"short page ({count} of {self._config.size})")
        done = self._pages_done(token) if self._by_page else rows
        if self._config.end in ("auto", "total") and total is not None and not moved and done >= total:
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
