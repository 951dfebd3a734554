"""One listing of one stream: which request comes next, what its answer means, and the cursor that stands for it.

Pure: no request is made here, and time is passed in. No listing ends by accident: each page says why there is no next
one, and a request or a page that repeats is an error.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from ingest.config.model import Source, Stream
from ingest.errors import SourceChanged
from ingest.sources import Page, Refused, SourceRecord
from ingest.sources.auth import Credentials, Params, with_params
from ingest.sources.cursor import Cursor, Listing, decode, fingerprint
from ingest.sources.incremental import Bounds, Progress
from ingest.sources.pagination import Received, Stop, Token, paginator
from ingest.sources.records import RecordReader


class State(NamedTuple):
    """Where a listing stands before its next request."""

    listing: Listing
    progress: Progress
    resumed: bool = False  # the first request since the cursor was loaded, with a token saved by an earlier run


class Lister:
    """The rules of one stream; holds no state of a listing. `url` and `params`: of every request, secrets left out."""

    def __init__(self, source: Source, stream: Stream, url: str, params: Params, credentials: Credentials) -> None:
        self._stream, self._url, self._params, self._credentials = stream, url, params, credentials
        self._paginator = paginator(stream.paginate)
        self._bounds = Bounds(stream.incremental) if stream.incremental else None
        self._reader = RecordReader(stream)
        self._fingerprint = fingerprint(source, stream)

    def start(self, saved: bytes | None, now: int) -> State:
        """Go on where the cursor stands: in the middle of its listing, or with a new one. `now`: microseconds since 1970."""
        cursor = None if saved is None else decode(saved)
        bounds = self._bounds
        high_water = bounds.parse(cursor.high_water) if cursor and bounds else None
        if cursor is None or cursor.listing is None or cursor.fingerprint != self._fingerprint:
            window = (bounds.since(high_water) if bounds else None, None)
            return State(Listing(_text(now), window, self._paginator.first()), Progress(high_water))
        listing = cursor.listing
        if bounds is None:
            return State(listing, Progress(), resumed=True)
        reached, last = bounds.parse(listing.reached), bounds.parse(listing.order_seen)
        return State(listing, Progress(high_water, reached, last, listing.disorder), resumed=True)

    def restart(self, state: State, now: int) -> State | None:
        """The API no longer knows the saved page token: the same window from its start, once. None: it was done before."""
        if not state.resumed or state.listing.restarted:
            return None
        listing = Listing(_text(now), state.listing.window, self._paginator.first(), restarted=True)
        return State(listing, Progress(state.progress.high_water))

    def request(self, listing: Listing) -> str:
        """The URL to ask. Raises SourceChanged when the listing has gone on for too long."""
        if listing.n >= self._stream.paginate.max_pages:
            raise SourceChanged(f"max_pages ({listing.n}) reached, and the API says that there is more")
        if listing.empty > self._stream.paginate.max_empty_pages:
            raise SourceChanged(f"{listing.empty} empty pages in a row, and the API says that there is more")
        if listing.page.url is not None:
            return listing.page.url
        params = dict(self._params)
        incremental = self._stream.incremental
        if incremental is not None and incremental.since is not None and listing.window[0] is not None:
            params[incremental.since.param] = listing.window[0]
        params.update(self._paginator.params(listing.page))
        return with_params(self._url, params)

    def take(self, received: Received | None, state: State, now: int) -> tuple[Page, State]:
        """What an answer means (None: the API said that there is nothing), and where the listing stands after it."""
        records, refused, skipped = self._read(received)
        count = 0 if received is None else len(received.records)
        if count > 1 and len(refused) == count and not state.listing.read_any:
            raise SourceChanged(f"no record of the first page is good; the first: {refused[0].error}")
        progress = self._bounds.advance(state.progress, records, now) if self._bounds else state.progress
        after = Stop("no content") if received is None else self._paginator.after(state.listing.page, received)
        if self._bounds is not None and self._bounds.ends_feed(progress, records):
            after = Stop("a page older than what is known")
        listing = self._next(state.listing, progress, after, count)
        page = Page(
            records=records,
            refused=refused,
            cursor=self._cursor(progress, listing, after, now),
            remember_from=self._bounds.remember_from(progress) if self._bounds else None,
            remember_all=self._bounds is None,
            stop=after.reason if isinstance(after, Stop) else None,
            skipped=skipped,
        )
        return page, State(listing, progress)

    def _read(self, received: Received | None) -> tuple[list[SourceRecord], list[Refused], int]:
        records: list[SourceRecord] = []
        refused: list[Refused] = []
        if received is None:
            return records, refused, 0
        check = not received.body.strict or not _is_utf8(received.body.body)
        for raw in received.records:
            record = self._reader.read(raw, check=check)
            if isinstance(record, SourceRecord):
                records.append(record)
            elif record is not None:
                refused.append(record)
        return records, refused, len(received.records) - len(records) - len(refused)

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
        if listing.page.url is not None:
            listing = replace(listing, page=replace(listing.page, url=self._credentials.strip(listing.page.url)))
        return Cursor(
            fingerprint=self._fingerprint,
            updated_at=_text(now),
            high_water=self._bounds.show(progress.high_water) if self._bounds else None,
            listing=None if isinstance(after, Stop) else listing,
        ).encode()


class LoopGuard:
    """No request is made twice in a listing, and no two pages in a row hold the same ids. Remembers 8 bytes a request."""

    def __init__(self, *, has_ids: bool) -> None:
        self._has_ids = has_ids
        self._requests: set[bytes] = set()
        self._ids: tuple[str, ...] = ()

    def request(self, url: str) -> None:
        mark = blake2b(url.encode(), digest_size=8).digest()
        if mark in self._requests:
            raise SourceChanged(f"the listing goes in a circle: {urlsplit(url).path} asks again for a page that was read")
        self._requests.add(mark)

    def page(self, page: Page) -> None:
        ids = tuple(record.id for record in page.records) if self._has_ids else ()
        if ids and ids == self._ids:
            raise SourceChanged(f"the listing goes in a circle: two pages in a row have the same {len(ids)} ids")
        self._ids = ids


def texts(params: Mapping[str, object]) -> dict[str, str | list[str]]:
    """Configured parameters as they are sent: a list is repeated, a boolean in lower case."""
    return {n: [_scalar(v) for v in value] if isinstance(value, list) else _scalar(value) for n, value in params.items()}


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_utf8(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(now: int) -> str:
    return datetime.fromtimestamp(now / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
