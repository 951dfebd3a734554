"""Puts together what lists a stream: its requests, and above it the listing of its parents, where it has some."""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from ingest.config.model import Deletes, Source, Stream
from ingest.errors import ConfigError
from ingest.redaction import Redactor
from ingest.sources.auth.keyring import Keyring
from ingest.sources.bounds import placeholders
from ingest.sources.children import ChildSource
from ingest.sources.feed import FedSource
from ingest.sources.fetching import Fetched
from ingest.sources.http import HttpSource
from ingest.sources.incremental import Bounds, Stretch
from ingest.sources.parent import Parents
from ingest.sources.part import PartSource
from ingest.sources.shelf import Reader, Shelf
from ingest.sources.transport import Transport

OWN_SLACK, SLACK = 1.0, 60.0  # seconds that an answer may be old when a listing begins: of the stream, for its children


Listed = HttpSource | ChildSource | FedSource


class Parts(NamedTuple):
    """What the streams of one source share, references resolved. `where`: file:line:column of a key, for messages."""

    source: Source
    transport: Transport
    keyring: Keyring
    redactor: Redactor
    where: Callable[[str], str]


class Family:
    """The streams of one source that run in this process."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self.source = parts, parts.source
        above = {stream.parent.stream for stream in self.source.streams.values() if stream.parent is not None}
        self._shelves: dict[str, Shelf[Fetched]] = {name: Shelf(attrgetter("size")) for name in above}

    def stream(self, name: str) -> Listed:
        stream = self.source.streams[name]
        own = self._listing(name, stream, OWN_SLACK, strict=_concludes(stream))
        feed = stream.deletes.feed if stream.deletes is not None else None
        return own if feed is None else FedSource(own, self._feed(feed.stream), feed)

    def part(self, name: str, stretch: Stretch) -> PartSource:
        """That part of a stream. Raises ConfigError for one that has no positions."""
        configured = self.source.streams[name]
        stream = _beside(configured, schema_=configured.schema_, expect=None, conditional=False)
        if stream.incremental is None or not stream.incremental.of_records:
            raise ConfigError(
                f"{self._parts.where(f'streams.{name}')}: no `incremental` with a `field`, so no positions"
            )
        own = self._listing(name, stream, OWN_SLACK, strict=False, stretch=stretch)
        return PartSource(own, Bounds(stream.incremental, placeholders(self.source, stream), stretch), stretch)

    def _feed(self, name: str) -> HttpSource:
        return self._requests(name, _beside(self.source.streams[name]), None, as_sent=True)

    def _requests(
        self,
        name: str,
        stream: Stream,
        others: Reader[Fetched] | None,
        *,
        as_sent: bool,
        stretch: Stretch | None = None,
    ) -> HttpSource:
        _, transport, keyring, redactor, where = self._parts
        at = where(f"streams.{name}")
        return HttpSource(
            self.source,
            stream,
            transport,
            keyring,
            redactor,
            at,
            as_sent=as_sent,
            others=others,
            configured=self.source.streams[name],
            stretch=stretch,
        )

    def _listing(
        self,
        name: str,
        stream: Stream,
        slack: float,
        *,
        strict: bool,
        as_sent: bool = False,
        stretch: Stretch | None = None,
    ) -> HttpSource | ChildSource:
        """`strict`: deletes are concluded from what it does not list."""
        shelf = self._shelves.get(name) if stretch is None else None
        others = None if shelf is None else Reader(shelf, 0.0 if strict else slack)
        own = self._requests(name, stream, others, as_sent=as_sent, stretch=stretch)
        if stream.parent is None:
            return own
        above = self.source.streams[stream.parent.stream]
        several = above.parent is not None or len(above.id) > 1
        return ChildSource(
            stream,
            own,
            self._above(stream.parent.stream, above, strict=strict),
            Parents(placeholders(self.source, stream), joined_ids=several),
            side_by_side=self.source.limits.concurrency,
        )

    def _above(self, name: str, stream: Stream, *, strict: bool) -> HttpSource | ChildSource:
        return self._listing(name, _beside(stream, conditional=False), SLACK, strict=strict, as_sent=True)


def _beside(stream: Stream, **more: object) -> Stream:
    """The stream as it is listed for another: what its own listing finds gone, and which of its records are in order,
    is for itself to say."""
    soft = stream.deletes.soft if stream.deletes is not None else None
    return stream.model_copy(update={"deletes": soft and Deletes(soft=soft), "schema_": None, **more})


def _concludes(stream: Stream) -> bool:
    return stream.deletes is not None and stream.deletes.sweep is not None
