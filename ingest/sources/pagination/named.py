"""`link`, `next_url`, `cursor`, `object`: the answer names the next page, and a listing ends where it names none."""

from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ingest.config import model
from ingest.errors import SourceChanged
from ingest.paths import Root
from ingest.sources.links import links, resolved
from ingest.sources.pagination.counting import counts, parts
from ingest.sources.pagination.received import Received
from ingest.sources.pagination.token import LEFT_OUT, Stop, Token
from ingest.sources.placement import Placement, Put


class NextLink:
    """`link` and `next_url`: a URL, resolved against that of the answer (RFC 3986)."""

    def __init__(self, config: model.LinkHeader | model.NextUrl, base_url: str) -> None:
        self._config, self._base = config, urlsplit(base_url)

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
        url = resolved(received.url, target)
        if self._config.rebase:
            url = urlunsplit(urlsplit(url)._replace(scheme=self._base.scheme, netloc=self._base.netloc))
        count = len(received.records)
        counted = token.counted or counts(parts(received.url), parts(url), count)
        return Token(url=url, rows=token.rows + count, counted=counted)

    def nothing(self, token: Token, n: int) -> Stop:
        return Stop("no content")

    def behind(self, token: Token) -> Stop:
        return Stop(LEFT_OUT)


class CursorToken:
    """`cursor`: a token. One that goes into a body may be any JSON, and stays what it is."""

    def __init__(self, config: model.CursorToken) -> None:
        self._config, self._where = config, Placement.of(config)

    def first(self) -> Token:
        return Token(token=self._config.first)

    def puts(self, token: Token) -> Sequence[Put]:
        if token.token is None:
            return ()
        return (Put(self._where, msgspec.Raw(token.token.encode()) if token.json else token.token),)

    def after(self, token: Token, received: Received) -> Token | Stop:
        config = self._config
        found, json = received.find_json(config.from_) if self._where.body else (received.find(config.from_), False)
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
        count = len(received.records)
        before = {} if token.token is None else {"": token.token}
        ours = config.from_.root is Root.LAST  # what a row has does not count rows, though it may be a number
        counted = token.counted or (not ours and counts(before, {"": found}, count))
        return Token(token=found, json=json, rows=token.rows + count, counted=counted)

    def nothing(self, token: Token, n: int) -> Stop:
        return Stop("no content")

    def behind(self, token: Token) -> Stop:
        return Stop(LEFT_OUT)


class ObjectToken:
    """`object`: an object, each of whose keys becomes a parameter of the next request."""

    def __init__(self, config: model.ObjectToken) -> None:
        self._config = config

    def first(self) -> Token:
        return Token()

    def puts(self, token: Token) -> Sequence[Put]:
        return [Put(Placement(param=name), value) for name, value in token.params.items()]

    def after(self, token: Token, received: Received) -> Token | Stop:
        found = received.find_object(self._config.from_)
        if not found:
            return Stop(f"nothing at {self._config.from_}")
        if self._config.end == "empty" and not received.records:
            return Stop("empty page")
        count = len(received.records)
        counted = token.counted or counts(token.params, found, count)
        return Token(params=found, rows=token.rows + count, counted=counted)

    def nothing(self, token: Token, n: int) -> Stop:
        return Stop("no content")

    def behind(self, token: Token) -> Stop:
        return Stop(LEFT_OUT)
