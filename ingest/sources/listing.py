"""One listing of one stream: which request comes next, what its answer means, and the cursor that stands for it.

Pure: no request is made here, and time is passed in. No listing ends by accident: each page says why there is no next
one, and a request or a page that repeats is an error.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec.structs import replace

from ingest.config.model import NextUrl, Source, Stream
from ingest.errors import ConfigError, SourceChanged
from ingest.sources import Notice, Page
from ingest.sources.auth import Credentials, encoded
from ingest.sources.cursor import Cursor, Listing, decode, fingerprint
from ingest.sources.incremental import Bounds, Progress
from ingest.sources.pagination import Received, Stop, Token, paginator, unread_pages
from ingest.sources.placement import Placement, Put
from ingest.sources.records import Read, RecordReader
from ingest.sources.request import Request
from ingest.sources.template import Template


class State(NamedTuple):
    """Where a listing stands before its next request."""

    listing: Listing
    progress: Progress
    resumed: bool = False  # the first request since the cursor was loaded, with a token saved by an earlier run


class Lister:
    """The rules of one stream; holds no state of a listing.

    `scrub` takes secrets out of a text."""

    def __init__(
        self,
        source: Source,
        stream: Stream,
        template: Template,
        credentials: Credentials,
        scrub: Callable[[str], str],
    ) -> None:
        self._stream, self._template = stream, template
        self._credentials, self._scrub = credentials, scrub
        self._paginator = paginator(stream.paginate, source.base_url)
        self._keep = stream.paginate.keep_params if isinstance(stream.paginate, NextUrl) else ()
        self._bounds = Bounds(stream.incremental) if stream.incremental else None
        self._reader = RecordReader(stream)
        self._fingerprint = fingerprint(source, stream, scrub)

    def start(self, saved: bytes | None, now: int) -> State:
        """Go on where the cursor stands: in the middle of its listing, or with a new one. `now`: microseconds of 1970.

        Raises ConfigError for a cursor that does not fit the configuration."""
        cursor = None if saved is None else decode(saved)
        bounds = self._bounds
        high_water = self._position(cursor.high_water) if cursor else None
        if cursor is None or cursor.listing is None or cursor.fingerprint != self._fingerprint:
            window = (bounds.since(high_water) if bounds else None, None)
            return State(Listing(_text(now), window, self._paginator.first()), Progress(high_water))
        listing, url = cursor.listing, cursor.listing.page.url
        if url is not None:
            listing = replace(listing, page=replace(listing.page, url=self._template.absolute(url)))
        reached, last = self._position(listing.reached), self._position(listing.order_seen)
        return State(listing, Progress(high_water, reached, last, listing.disorder), resumed=True)

    def restart(self, state: State, now: int) -> State | None:
        """The API does not know the saved page token: the same window from its start, once. None: none was saved."""
        if not state.resumed:
            return None
        return State(
            Listing(_text(now), state.listing.window, self._paginator.first()), Progress(state.progress.high_water)
        )

    def request(self, listing: Listing) -> Request:
        """What to ask. Raises SourceChanged when the listing has gone on for too long."""
        paginate = self._stream.paginate
        if listing.n >= paginate.max_pages:
            raise SourceChanged(
                f"incomplete: paginate.max_pages ({listing.n}) reached, and the API says that there is more"
            )
        if listing.empty > paginate.max_empty_pages:
            raise SourceChanged(
                f"incomplete: {listing.empty} empty pages in a row, more than paginate.max_empty_pages, and no end"
            )
        since, until = listing.window
        values = {"window.start": since, "window.end": until, "cursor": since}
        puts = [*self._bounds_sent(since), *self._paginator.puts(listing.page)]
        return self._template.request(values, puts, listing.page.url, self._keep)

    def _bounds_sent(self, since: str | None) -> Sequence[Put]:
        incremental = self._stream.incremental
        if incremental is None or incremental.since is None or since is None:
            return ()
        return (Put(Placement(param=incremental.since.param), since),)

    def take(self, received: Received | None, state: State, asked: int, now: int) -> tuple[Page, State]:
        """What an answer means (None: the API said that there is nothing), and where the listing stands after it.

        It was asked for at `asked` and came at `now`, microseconds since 1970."""
        records, refused, skipped, changed = self._read(received)
        count = 0 if received is None else len(received.records)
        if count > 1 and len(refused) == count and not state.listing.read_any:
            raise SourceChanged(f"no record of the first page is good; the first: {refused[0].error}")
        bounds = self._bounds
        progress = bounds.advance(state.progress, records, asked, now) if bounds else state.progress
        here = state.listing
        after = self._paginator.after(here.page, received) if received else self._paginator.nothing(here.page, here.n)
        if bounds is not None and bounds.ends_feed(progress, records):
            after = Stop("a page older than what is known")
        listing = self._next(state.listing, progress, after, count)
        page = Page(
            records=records,
            refused=refused,
            cursor=self._cursor(progress, listing, after, now),
            remember_from=bounds.remember_from(progress) if bounds else None,
            remember_all=bounds is None or bounds.lists_everything,
            stop=after.reason if isinstance(after, Stop) else None,
            skipped=skipped,
            notices=(*self._notices(received, state, progress), *_changed(changed)),
        )
        return page, State(listing, progress)

    def _position(self, shown: str | int | None) -> int | None:
        if self._bounds is None:
            return None
        try:
            return self._bounds.parse(shown)
        except ValueError as exc:
            raise ConfigError(
                f"the saved cursor stands at {shown!r}, which does not fit the `incremental` of now: change that back,"
                " or start over with `ingest checkpoints reset`"
            ) from exc

    def _notices(self, received: Received | None, state: State, progress: Progress) -> Iterator[Notice]:
        if progress.disorder and not state.progress.disorder:
            yield Notice(
                "disorder",
                "a record came before its turn, in spite of `order: asc`: the mark moves at the end of the listing",
            )
        if received is None:
            return
        paginate = self._stream.paginate
        if paginate.type == "none" and (sign := unread_pages(received)):
            yield Notice("looks_paginated", f"one page was read, but {sign}: there may be more; set `paginate`")
        if state.listing.page.moved and self._paginator.first().number is not None:
            yield Notice("total_moved", "the declared total changed while it was listed: rows may have been skipped")
        size = getattr(paginate, "size", None)
        if size is not None and paginate.end == "short" and not state.listing.n and 0 < len(received.records) < size:
            yield Notice("capped", f"the first page has {len(received.records)} rows although {size} were asked for")
        if size is not None and state.listing.n == 1 and received.records and state.listing.page.rows < size:
            yield Notice(
                "capped", f"the API gives {state.listing.page.rows} rows a page although {size} were asked for"
            )

    def _read(self, received: Received | None) -> Read:
        if received is None:
            return Read([], [], 0)
        return self._reader.read_all(received.records, clean=received.body.clean)

    def _next(self, listing: Listing, progress: Progress, after: Token | Stop, count: int) -> Listing:
        bounds = self._bounds
        return replace(
            listing,
            page=after if isinstance(after, Token) else listing.page,
            n=listing.n + 1,
            empty=0 if count else listing.empty + 1,
            reached=bounds.show(progress.reached) if bounds else None,
            order_seen=bounds.show(progress.last) if bounds else None,
            disorder=progress.disorder,
            read_any=listing.read_any or count > 0,
        )

    def _cursor(self, progress: Progress, listing: Listing, after: Token | Stop, now: int) -> bytes:
        if isinstance(after, Stop) and self._bounds is not None:
            progress = self._bounds.finish(progress)
        return Cursor(
            fingerprint=self._fingerprint,
            updated_at=_text(now),
            high_water=self._bounds.show(progress.high_water) if self._bounds else None,
            listing=None if isinstance(after, Stop) else self._fit_to_save(listing),
        ).encode()

    def _fit_to_save(self, listing: Listing) -> Listing | None:
        """Without our secrets. None where one cannot be taken off: a crash then repeats the window."""
        page, ours = listing.page, self._credentials
        url = None if page.url is None else self._template.relative(ours.strip(page.url))
        params = {name: value for name, value in page.params.items() if ours.strip(f"?{encoded([(name, value)])}")}
        texts = [url or "", page.token or "", *page.keys, *params.values()]
        fit = all(self._scrub(text) == text for text in texts)
        return replace(listing, page=replace(page, url=url, params=params)) if fit else None


def _changed(count: int) -> Iterator[Notice]:
    if count:
        held = "held NaN or bytes that are not UTF-8, and were mended: see `decode`"
        yield Notice("repaired", f"{count} of a page's records {held}")


def _text(now: int) -> str:
    return datetime.fromtimestamp(now / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
