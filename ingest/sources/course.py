"""How far a listing has come, told by what it listed: the mark, the order, and where an API gives no more. Pure."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from ingest.config.model import Stream
from ingest.errors import SourceChanged
from ingest.sources import SourceRecord
from ingest.sources.bounds import next_start
from ingest.sources.cursor import Listing
from ingest.sources.incremental import Bounds, Progress
from ingest.sources.opening import State, keys_of, keyset_of, leaves_nothing, position
from ingest.sources.page import Read
from ingest.sources.pagination import Keyset, Overlapping, Paginator, Received, Stop, Token
from ingest.sources.times import rfc3339


class Reading(Protocol):
    def __call__(self, received: Received, *, start: int = 0, end: int | None = None) -> Read:
        """Some of the records of an answer."""


class Course:
    """The rules of one stream. `bounds`: None where the cursor is no field of its records."""

    def __init__(self, stream: Stream, pages: Paginator, bounds: Bounds | None, read: Reading) -> None:
        self._stream, self._paginator, self._bounds, self._read = stream, pages, bounds, read
        self._start_at = next_start(stream)
        self._takes_tokens = stream.incremental is not None and stream.incremental.type == "token"
        self._by_keys = keyset_of(stream, pages)

    @property
    def lists_everything(self) -> bool:
        """Every run does, since the API cannot be asked for less."""
        if self._bounds is not None:
            return self._bounds.lists_everything
        return not self._takes_tokens and self._by_keys is None

    def advance(
        self,
        state: State,
        received: Received | None,
        listed: Sequence[SourceRecord],
        new: Sequence[SourceRecord],
        asked: int,
        now: int,
    ) -> Progress:
        aside, bounds = state.listing.aside, self._bounds
        if not aside and self._by_keys is not None and received is not None:
            state = state._replace(progress=self._with_keys(self._by_keys, state, received, listed, asked))
        if bounds is not None and not (aside and self._stream.paginate.listing_cap is None):
            progress = bounds.advance(state.progress, new, asked, now, position(self._bounds, state.listing.end))
            return replace(progress, high_water=state.progress.high_water) if aside else progress
        if aside:
            return state.progress
        if self._start_at is None or received is None or (mark := received.find(self._start_at)) is None:
            return state.progress
        return replace(state.progress, mark=mark)

    def _with_keys(
        self, keyset: Keyset, state: State, received: Received, listed: Sequence[SourceRecord], asked: int
    ) -> Progress:
        """The next run begins behind the last row before the first that has not settled. Where the mark is not where
        the page began, that one was on a page before."""
        progress, rows, bounds = state.progress, received.records, self._bounds
        if state.listing.page.keys != (() if progress.mark is None else keys_of(progress.mark)):
            return progress
        if bounds is not None and not all(bounds.settled(one, asked) for one in listed):
            read = (self._read(received, start=n, end=n + 1).listed for n in range(len(rows)))
            rows = rows[
                : next(
                    (n for n, found in enumerate(read) if any(not bounds.settled(one, asked) for one in found)),
                    len(rows),
                )
            ]
        keys = keyset.keys(replace(received, records=rows)) if rows else None
        return progress if keys is None else replace(progress, mark=msgspec.json.encode(keys).decode())

    def new(self, listed: Sequence[SourceRecord], received: Received | None, token: Token) -> Sequence[SourceRecord]:
        """Without those that an overlap repeats: they say nothing about the order."""
        rules = self._paginator
        if self._bounds is None or received is None or not isinstance(rules, Overlapping):
            return listed
        if not (known := rules.known(token, received)):
            return listed
        return self._read(received, start=known).listed

    def finish(self, progress: Progress, listing: Listing) -> Progress:
        if self._bounds is None or listing.aside:
            return progress
        return self._bounds.finish(progress, position(self._bounds, listing.end))

    def rows(self, page: Token, after: Token | Stop, count: int) -> int:
        """How many have come since the listing began, or began again. `count`: on the page."""
        if isinstance(self._paginator, Overlapping):
            return after.rows if isinstance(after, Token) else (page.number or 0) + count
        return page.rows + count

    def cut_off(self, listing: Listing, progress: Progress, after: Token | Stop, rows: int) -> str | Stop | None:
        """The lower bound to begin again at, where the API gives no more rows of one listing; Stop: that is where it
        ends. None: there may be more.

        Raises SourceChanged where that would be where it began."""
        cap, bounds = self._stream.paginate.listing_cap, self._bounds
        if cap is None or bounds is None or rows < cap:
            return None
        if progress.disorder:
            raise SourceChanged(f"incomplete: after {rows} rows (`listing_cap`) no place to begin again: see `order`")
        bound = None if progress.reached is None else bounds.since(progress.reached, again=False)
        if bound is None or bound == listing.window[0]:
            raise SourceChanged(
                f"incomplete: {rows} rows, a whole `listing_cap`, have one value of the incremental field ({bound}),"
                " and the API gives no more of them; ask it for fewer: a finer `format`, a filter in `params`"
            )
        return Stop("the upper bound") if leaves_nothing(self._bounds, bound, listing) else bound

    def listed_again(self, here: Listing, progress: Progress, new: Sequence[SourceRecord]) -> int:
        """Of the last rows of a listing that must be counted: those that come again where it begins again."""
        if self._bounds is None or progress.reached is None or not here.whole:
            return 0
        return self._bounds.listed_again(progress.reached, new, position(self._bounds, here.reached), here.again)

    def remember_from(self, progress: Progress, records: Sequence[SourceRecord], after: Token | Stop) -> int | None:
        """Rows that the next page will list again are behind the mark, where that moves with every page."""
        field = self._stream.incremental.field if self._stream.incremental else None
        if self._by_keys is not None and field is not None and not self._by_keys.leads_with(field):
            return None  # the next run may begin anywhere among these times
        lowest = self._bounds.remember_from(progress) if self._bounds else None
        if lowest is None or isinstance(after, Stop) or not isinstance(self._paginator, Overlapping):
            return lowest
        return min([lowest, *(record.position for record in records if record.position is not None)])

    def asked_at(self, listing: Listing, asked: int) -> Listing:
        """Its window ends no later than the API's own clock allows; what comes after is for the next run."""
        end = position(self._bounds, listing.end)
        if end is None or self._bounds is None or end <= self._bounds.ceiling(asked):
            return listing
        return replace(listing, end=rfc3339(self._bounds.ceiling(asked)), follows=False)
