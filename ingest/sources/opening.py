"""Where a listing begins: where the cursor stands, at another window, with a sweep, or again from its start. Pure."""

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ingest.config.incremental import UNFILTERED
from ingest.config.model import CursorToken, Stream
from ingest.errors import ConfigError
from ingest.sources import Notice, notices
from ingest.sources.bounds import bounds as sent_bounds
from ingest.sources.cursor import Cursor, Listing, Report, Round, Validators, decode
from ingest.sources.incremental import Bounds, Progress, Window, begun_again
from ingest.sources.pagination import Keyset, Paginator, Token, is_counted
from ingest.sources.placement import Placement
from ingest.sources.template import Template
from ingest.sources.times import MICROS, parse_rfc3339, rfc3339, stamp
from ingest.sources.whole import Past, Wholes

RESTARTED = "the API did not know a page token of it any more"
BEHIND = "behind which records without the incremental field may be missing (`on_null`)"
CUT_OFF = f"it reached `listing_cap`, {BEHIND}"
WENT_ON = f"it was left and went on at a cursor value, {BEHIND}"


class State(NamedTuple):
    """Where a listing stands before its next request."""

    listing: Listing
    progress: Progress
    resumed: bool = False  # the first request since the cursor was loaded, with a token saved by an earlier run
    told: Notice | None = None  # why it does not go on from the cursor
    past: Past = Past()
    failed: str | None = None  # the listing came to its end and cannot be believed; it begins again next time
    anew: bool = False  # what is asked now may be what was asked before: no circle
    validators: Validators | None = None  # of the answer before
    report: Report | None = None  # that is about to be read
    reordered: bool = False  # nothing came of the first report of this run


class Opening:
    """The rules of one stream. `bounds`: None where the cursor is no field of its records."""

    def __init__(
        self, stream: Stream, pages: Paginator, bounds: Bounds | None, wholes: Wholes, template: Template, shape: str
    ) -> None:
        """`shape`: the fingerprint of what shapes its listings."""
        self._stream, self._paginator, self._bounds, self._wholes = stream, pages, bounds, wholes
        self._template, self.fingerprint = template, shape
        self._start_goes = sent_bounds(stream)[0].where
        incremental = stream.incremental
        self._takes_tokens = incremental is not None and incremental.type == "token"
        self._by_keys = keyset_of(stream, pages)
        self._mark_of = mark_of(stream, pages)

    def start(self, saved: bytes | None, now: int, round: Round | None = None) -> State:
        """Go on where the cursor stands: in the middle of its listing, or with a new one. `now`: microseconds of 1970.
        `round`: that the listing is part of.

        Raises ConfigError for a cursor that does not fit the configuration."""
        cursor = None if saved is None else decode(saved)
        past = Past(cursor.rows, cursor.swept) if cursor else Past()
        if cursor is not None and self._has_expired(cursor, now):
            return self.start(None, now, round)._replace(past=past, told=notices.EXPIRED)
        high_water = position(self._bounds, cursor.high_water) if cursor else None
        mark = cursor.mark if cursor and self._is_ours(cursor) else None
        if cursor is None or cursor.listing is None or not self._goes_on(cursor, cursor.listing, round):
            opened = self._open_sweep if round is not None and round.aside else self._open
            state = opened(Progress(high_water, mark=mark), past, now)
            if cursor is not None and not state.listing.aside:
                state = state._replace(validators=cursor.validators)
            if cursor is not None and cursor.stands and self._begins_anew(high_water, mark):
                state = state._replace(told=notices.FOREIGN)
            return state if round is None else _within(round.started, state)
        listing, url = cursor.listing, cursor.listing.page.url
        if url is not None:
            listing = replace(listing, page=replace(listing.page, url=self._template.absolute(url)))
        if listing.job is not None and listing.job.url is not None:
            listing = replace(listing, job=replace(listing.job, url=self._template.absolute(listing.job.url)))
        reached, last = position(self._bounds, listing.reached), position(self._bounds, listing.order_seen)
        ceilings = [position(self._bounds, one) for one in (listing.first_ceiling, listing.ceiling)]
        progress = Progress(high_water, reached, last, listing.disorder, listing.mark or mark, *ceilings)
        if (bound := self._bound_instead(listing, progress)) is not None:
            begun = replace(self.beginning_at(bound, listing, WENT_ON), page=self.first_page(bound))
            begun = replace(begun, rows=listing.rows - listing.again, again=0)
            return State(begun, begun_again(progress), past=past, anew=True)
        return State(listing, progress, resumed=True, past=past)

    def _bound_instead(self, listing: Listing, progress: Progress) -> str | None:
        """A lower bound to begin at again instead of a saved page that is counted: while nobody read on, rows may have
        moved by any number of pages."""
        asks = self._bounds is not None and progress.reached is not None and not listing.aside
        stays = listing.job is not None or not is_counted(self._stream.paginate, listing.page)
        if not asks or stays or progress.disorder:
            return None
        ascending = self._stream.incremental is not None and self._stream.incremental.order == "asc"
        bound = self._bounds.since(progress.reached, again=False) if self._bounds and ascending else None
        return None if bound == listing.window[0] or leaves_nothing(self._bounds, bound, listing) else bound

    def _is_ours(self, cursor: Cursor) -> bool:
        """Whether its mark is what `incremental` of now starts a run with: a token is no key of a row."""
        if cursor.mark_of is None:
            return self._mark_of is not None and cursor.fingerprint == self.fingerprint
        return cursor.mark_of == self._mark_of

    def _begins_anew(self, high_water: int | None, mark: str | None) -> bool:
        """Whether nothing tells a stream that could go on where to."""
        if self._mark_of is not None:
            return mark is None
        return high_water is None and self._bounds is not None and not self._bounds.lists_everything

    def _goes_on(self, cursor: Cursor, listing: Listing, round: Round | None) -> bool:
        same = round is None or (round.started, round.aside) == (listing.round, listing.aside)
        return same and cursor.fingerprint == self.fingerprint

    def _has_expired(self, cursor: Cursor, now: int) -> bool:
        after = self._stream.incremental.expires_after if self._stream.incremental else None
        return after is not None and now - parse_rfc3339(cursor.updated_at, None) > after * MICROS

    def _open(self, progress: Progress, past: Past, now: int, *, again: bool = True) -> State:
        """A new listing. `again`: the first of a run, not the next window of one."""
        window = self._bounds.window(progress.high_water, now, again=again) if self._bounds else Window(self._first())
        if progress.mark is not None:
            window = Window(progress.mark)
        cut_short = self._bounds is not None and self._bounds.may_end_early(progress)
        whole = window.since is None and window.until is None and not cut_short
        listing = Listing(
            stamp(now),
            (window.since, window.until),
            self.first_page(window.since),
            end=None if window.end is None else rfc3339(window.end),
            follows=window.follows,
            whole=whole,
            sweep=whole and self._wholes.sweeps,
        )
        return State(listing, Progress(progress.high_water, mark=progress.mark), past=past, anew=True)

    def _open_sweep(self, progress: Progress, past: Past, now: int) -> State:
        listing = Listing(stamp(now), (None, None), self._paginator.first(), whole=True, sweep=True, aside=True)
        return State(listing, Progress(progress.high_water, mark=progress.mark), past=past, anew=True)

    def first_page(self, start: str | None) -> Token:
        """A token that starts a run where the one of a page goes is the token of the first page."""
        page, paginate = self._paginator.first(), self._stream.paginate
        if start is not None and self._by_keys is not None:
            return replace(page, keys=keys_of(start))
        if start is None or not self._takes_tokens or not isinstance(paginate, CursorToken):
            return page
        return replace(page, token=start) if Placement.of(paginate) == self._start_goes else page

    def _first(self) -> str | None:
        """The token with which an API is asked for everything."""
        incremental = self._stream.incremental
        first = incremental.since.first if incremental is not None and incremental.since is not None else None
        return None if first in (None, UNFILTERED) else str(first)

    def restart(self, state: State, now: int) -> State | None:
        """The API does not know a token that we saved. A page's: the same window from its start, once. The one that
        this run starts with: a full read. None: it knew them all."""
        if state.resumed:
            return self.again(state, now, doubt=RESTARTED)
        starts_at_a_token = self._takes_tokens and state.listing.n == 0 and not state.listing.aside
        if starts_at_a_token and state.progress.mark is not None:
            return _within(state.listing.round, self._open(Progress(), state.past, now))
        return None

    def again(self, state: State, now: int, *, doubt: str | None = None) -> State:
        """The same window from its start; one that leaves nothing out from before `listing_cap` cut it. `doubt`: why
        nothing may be concluded from what it does not list."""
        listing = state.listing
        window = (None, None) if listing.whole else listing.window
        again = replace(listing, started=stamp(now), window=window, page=self.first_page(window[0]), n=0, empty=0)
        again = replace(again, reached=None, order_seen=None, disorder=False, mark=None, read_any=False, rows=0)
        again = replace(again, doubt=doubt, job=None)
        mark = window[0] if self._takes_tokens or self._by_keys else None
        if listing.aside:
            mark = state.progress.mark
        return State(again, Progress(state.progress.high_water, mark=mark), past=state.past, anew=True)

    def following(self, listing: Listing, progress: Progress, past: Past, now: int) -> State | None:
        """What is listed next, now that this is complete: another window, or a sweep that is due."""
        if listing.follows:
            return _within(listing.round, self._open(progress, past, now, again=False))
        if listing.whole or not self._wholes.is_due(past, now):
            return None
        return self._open_sweep(progress, past, now)

    def beginning_at(self, bound: str, listing: Listing, doubt: str) -> Listing:
        """Asked for with a lower bound, an API may leave out records that have no such field."""
        nulls = self._stream.incremental is None or self._stream.incremental.on_null != "fail"
        return replace(listing, window=(bound, listing.window[1]), doubt=listing.doubt or (doubt if nulls else None))


def keyset_of(stream: Stream, pages: Paginator) -> Keyset | None:
    """What tells where the next run begins, with `incremental: keyset`."""
    by_keys = stream.incremental is not None and stream.incremental.type == "keyset"
    return pages if by_keys and isinstance(pages, Keyset) else None


def mark_of(stream: Stream, pages: Paginator) -> str | None:
    """What a mark that starts a run is of; None: it goes on by a field of its records, or not at all."""
    if stream.incremental is not None and stream.incremental.type == "token":
        return "token"
    by_keys = keyset_of(stream, pages)
    return by_keys.names if by_keys else None


def leaves_nothing(bounds: Bounds | None, bound: str | None, listing: Listing) -> bool:
    """Whether there is nothing between this lower bound and the upper one of the listing."""
    return bound is not None and bounds is not None and bounds.leaves_nothing(bound, listing.window[1])


def position(bounds: Bounds | None, shown: str | int | None) -> int | None:
    """Where a saved text stands. Raises ConfigError."""
    if bounds is None:
        return None
    try:
        return bounds.parse(shown)
    except ValueError as exc:
        raise ConfigError(
            f"the saved cursor stands at {shown!r}, which does not fit the `incremental` of now: change that back,"
            " or start over with `ingest checkpoints reset`"
        ) from exc


def _within(round: str | None, state: State) -> State:
    return state._replace(listing=replace(state.listing, round=round))


def keys_of(mark: str) -> tuple[str, ...]:
    """Raises ConfigError."""
    try:
        return msgspec.json.decode(mark, type=tuple[str, ...])
    except msgspec.DecodeError as exc:
        raise ConfigError(
            f"the saved cursor stands at {mark!r}, which does not fit the `incremental` of now: change that back, or"
            " start over with `ingest checkpoints reset`"
        ) from exc
