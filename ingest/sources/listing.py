"""One listing of one stream: which request comes next, what its answer means, and the cursor that stands for it.

Pure: no request is made here, and time is passed in. No listing ends by accident: each page says why there is no next
one, and a request or a page that repeats is an error.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ingest.config.incremental import UNFILTERED
from ingest.config.model import CursorToken, NextUrl, Source, Stream
from ingest.errors import ConfigError, SourceChanged
from ingest.sources import Notice, Page, SourceRecord, Sweep, notices
from ingest.sources.answers import Place
from ingest.sources.auth import Credentials, encoded
from ingest.sources.bounds import bounds, next_start, placeholders
from ingest.sources.conditional import Conditional
from ingest.sources.cursor import Cursor, Job, Listing, Report, Round, Validators, decode, fingerprint
from ingest.sources.filling import Values, filled
from ingest.sources.incremental import Bounds, Progress, Stretch, Window
from ingest.sources.page import NOTHING, PageReader, Read
from ingest.sources.pagination import Keyset, Overlapping, Received, Stop, Token, is_counted, paginator
from ingest.sources.parameters import as_sent as text_of
from ingest.sources.parent import NO_PARENT, Parent
from ingest.sources.placement import Placement, Put
from ingest.sources.request import Request
from ingest.sources.template import Template
from ingest.sources.times import MICROS, parse_rfc3339, rfc3339, stamp
from ingest.sources.whole import Past, Wholes

RESTARTED = "the API did not know a page token of it any more"
NO_CONTENT = "the API answered without content"
UNREAD = "the id of a record could not be read"
CUT_OFF = "it reached `listing_cap`, behind which records without the incremental field may be missing (`on_null`)"


class State(NamedTuple):
    """Where a listing stands before its next request."""

    listing: Listing
    progress: Progress
    resumed: bool = False  # the first request since the cursor was loaded, with a token saved by an earlier run
    expired: bool = False  # the cursor was too old to go on from
    past: Past = Past()
    failed: str | None = None  # the listing came to its end and cannot be believed; it begins again next time
    anew: bool = False  # what is asked now may be what was asked before: no circle
    validators: Validators | None = None  # of the answer before
    report: Report | None = None  # that is about to be read
    reordered: bool = False  # nothing came of the first report of this run


class _Answered(NamedTuple):
    """What one answer means."""

    read: Read
    rows: int  # before any is left out
    progress: Progress
    after: Token | Stop
    doubt: str | None
    notices: Sequence[Notice]
    gaps: int = 0
    validators: Validators | None = None


class Lister:
    """The rules of one stream; holds no state of a listing.

    `scrub` takes secrets out of a text. `as_sent`: as `PageReader`; `stretch`: as `Bounds`."""

    def __init__(
        self,
        source: Source,
        stream: Stream,
        template: Template,
        credentials: Credentials,
        scrub: Callable[[str], str],
        *,
        as_sent: bool = False,
        stretch: Stretch | None = None,
    ) -> None:
        self._stream, self._template = stream, template
        self._credentials, self._scrub = credentials, scrub
        self._paginator = paginator(stream.paginate, source.base_url, stream.id)
        self._keep = stream.paginate.keep_params if isinstance(stream.paginate, NextUrl) else ()
        incremental = stream.incremental
        self._bounds = None
        if incremental is not None and incremental.of_records:
            self._bounds = Bounds(incremental, placeholders(source, stream), stretch)
        self._bounds_at = bounds(stream)
        self._takes_tokens = incremental is not None and incremental.type == "token"
        self._start_at = next_start(stream)
        by_keys = incremental is not None and incremental.type == "keyset"
        self._by_keys = self._paginator if by_keys and isinstance(self._paginator, Keyset) else None
        self._wholes = Wholes(stream, part=stream.parent is not None)
        self._sweep_puts = _sweep_puts(stream)
        self._conditional = Conditional(stream, scrub) if stream.conditional else None
        self._reader = PageReader(stream, as_sent=as_sent)
        self.fingerprint = fingerprint(source, stream, scrub)

    def start(self, saved: bytes | None, now: int, round: Round | None = None) -> State:
        """Go on where the cursor stands: in the middle of its listing, or with a new one. `now`: microseconds of 1970.
        `round`: that the listing is part of.

        Raises ConfigError for a cursor that does not fit the configuration."""
        cursor = None if saved is None else decode(saved)
        past = Past(cursor.rows, cursor.swept) if cursor else Past()
        if cursor is not None and self._has_expired(cursor, now):
            return self.start(None, now, round)._replace(past=past, expired=True)
        high_water = self._position(cursor.high_water) if cursor else None
        goes_on_at_a_mark = self._takes_tokens or self._by_keys is not None
        mark = cursor.mark if cursor and goes_on_at_a_mark else None  # of another `incremental`, it means nothing now
        if cursor is None or cursor.listing is None or not self._goes_on(cursor, cursor.listing, round):
            opened = self._open_sweep if round is not None and round.aside else self._open
            state = opened(Progress(high_water, mark=mark), past, now)
            if cursor is not None and self._conditional is not None and not state.listing.aside:
                state = state._replace(validators=cursor.validators)
            return state if round is None else _within(round.started, state)
        listing, url = cursor.listing, cursor.listing.page.url
        if url is not None:
            listing = replace(listing, page=replace(listing.page, url=self._template.absolute(url)))
        if listing.job is not None and listing.job.url is not None:
            listing = replace(listing, job=replace(listing.job, url=self._template.absolute(listing.job.url)))
        reached, last = self._position(listing.reached), self._position(listing.order_seen)
        progress = Progress(high_water, reached, last, listing.disorder, listing.mark or mark)
        if (bound := self._bound_instead(listing, progress)) is not None:
            begun = replace(self._beginning_at(bound, listing), page=self._first_page(bound))
            return State(begun, replace(progress, last=None), past=past, anew=True)
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
        return None if bound == listing.window[0] else bound

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
            self._first_page(window.since),
            end=None if window.end is None else rfc3339(window.end),
            follows=window.follows,
            whole=whole,
            sweep=whole and self._wholes.sweeps,
        )
        return State(listing, Progress(progress.high_water, mark=progress.mark), past=past, anew=True)

    def _open_sweep(self, progress: Progress, past: Past, now: int) -> State:
        listing = Listing(stamp(now), (None, None), self._paginator.first(), whole=True, sweep=True, aside=True)
        return State(listing, Progress(progress.high_water, mark=progress.mark), past=past, anew=True)

    def _first_page(self, start: str | None) -> Token:
        """A token that starts a run where the one of a page goes is the token of the first page."""
        page, paginate = self._paginator.first(), self._stream.paginate
        if start is not None and self._by_keys is not None:
            return replace(page, keys=_keys(start))
        if start is None or not self._takes_tokens or not isinstance(paginate, CursorToken):
            return page
        return replace(page, token=start) if Placement.of(paginate) == self._bounds_at[0].where else page

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
        again = replace(listing, started=stamp(now), window=window, page=self._first_page(window[0]), n=0, empty=0)
        again = replace(again, reached=None, order_seen=None, disorder=False, mark=None, read_any=False, rows=0)
        again = replace(again, doubt=doubt, job=None)
        mark = window[0] if self._takes_tokens or self._by_keys else None
        if listing.aside:
            mark = state.progress.mark
        return State(again, Progress(state.progress.high_water, mark=mark), past=state.past, anew=True)

    def request(self, listing: Listing, parent: Parent = NO_PARENT, report: Report | None = None) -> Request:
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
        values, puts = self.asked_for(listing, parent)
        url = listing.page.url
        if self._stream.job is not None:  # all of that made the report
            puts, url = [], url or (None if report is None else report.url)
        puts += self._paginator.puts(listing.page)
        return self._template.request(values, puts, url, self._keep)

    def asked_for(self, listing: Listing, parent: Parent = NO_PARENT) -> tuple[Values, list[Put]]:
        """What fills the placeholders of a request, and what it carries to ask for this listing."""
        since, until = listing.window
        values = {"window.start": since, "window.end": until, "cursor": since, **parent.values}
        if listing.job is not None:
            values |= {"job.id": listing.job.id, **listing.job.values}
        swept = self._sweep_puts if listing.aside else ()
        return values, [*self._bounds_put(listing, values), *swept]

    def holding(self, state: State, job: Job | None, now: int) -> tuple[Page, State]:
        """The listing with this job, and a page that has nothing but its cursor: it is saved before the job is done."""
        listing = replace(state.listing, job=job)
        cursor = self._cursor(state.progress, listing, state.past, now, None)
        page = Page((), (), cursor, None, self.remembers_all, stop=None, whole=listing.whole, bare=True)
        return page, state._replace(listing=listing, report=None, resumed=False, anew=True)

    def asking(self, request: Request, state: State) -> Request:
        """The same, for an answer only where there is another than the one before."""
        return request if self._conditional is None else self._conditional.asking(request, state.validators)

    def _bounds_put(self, listing: Listing, values: Values) -> Iterator[Put]:
        for (where, pattern), text in zip(self._bounds_at, listing.window, strict=True):
            sent = text if pattern is None or text is None else filled(pattern, values)
            if where is not None and sent is not None:
                yield Put(where, sent)

    def take(
        self,
        received: Received | None,
        state: State,
        asked: int,
        now: int,
        parent: Parent = NO_PARENT,
        request: Request | None = None,
    ) -> tuple[Page, State]:
        """What an answer means (None: the API said that there is nothing), and where the listing stands after it.

        It was asked for at `asked` and came at `now`, microseconds since 1970."""
        if state.listing.job is not None:
            asked = min(asked, parse_rfc3339(state.listing.job.created, None))
        state = state._replace(listing=self._asked_at(state.listing, asked))
        read, here = self._read(received, parent), state.listing
        count = 0 if received is None else len(received.records)
        if count > 1 and read.refused and not (read.listed or read.skipped or here.read_any):
            raise SourceChanged(f"no record of the first page is good; the first: {read.refused[0].error}")
        progress = self._advance(state, received, read.listed, asked, now)
        after = self._paginator.after(here.page, received) if received else self._paginator.nothing(here.page, here.n)
        if self._bounds is not None and not here.aside and self._bounds.ends_feed(progress, read.listed):
            after = Stop("a page older than what is known")
        if self._bounds is not None and self._bounds.is_behind(progress):
            after = Stop("a page behind the end of what is asked for")
        doubt = NO_CONTENT if received is None else UNREAD if read.unknown else None
        told = tuple(self._notices(received, state, progress, read, isinstance(after, Stop)))
        validators = None
        if self._conditional is not None and received is not None and request is not None and not doubt:
            validators = self._conditional.told(request, received.headers)
        answered = _Answered(read, count, progress, after, doubt, told, validators=validators)
        return self._turn(state, answered, now)

    def unchanged(self, state: State, now: int) -> tuple[Page, State]:
        """The API says that its answer is the one before: there is nothing to read, and nothing to count."""
        here = replace(state.listing, whole=False, sweep=False)
        stop, doubt = Stop("nothing new (304)"), "the API answered that there is nothing new (304)"
        answered = _Answered(NOTHING, 0, state.progress, stop, doubt, (), validators=state.validators)
        return self._turn(state._replace(listing=here), answered, now)

    def _asked_at(self, listing: Listing, asked: int) -> Listing:
        """Its window ends no later than the API's own clock allows; what comes after is for the next run."""
        end = self._position(listing.end)
        if end is None or self._bounds is None or end <= self._bounds.ceiling(asked):
            return listing
        return replace(listing, end=rfc3339(self._bounds.ceiling(asked)), follows=False)

    def leave_out(self, state: State, now: int, *, reason: str, ends: bool) -> tuple[Page, State]:
        """A rule says that an answer is left out, or that it is the end."""
        after = Stop(reason) if ends else self._paginator.behind(state.listing.page)
        answered = _Answered(NOTHING, 0, state.progress, after, reason, (), gaps=1)
        return self._turn(state, answered, now)

    def _turn(self, state: State, answered: _Answered, now: int) -> tuple[Page, State]:
        here, progress, after = state.listing, answered.progress, answered.after
        if (bound := self._cut_off(here, progress, after, answered.rows)) is not None:
            progress = replace(progress, last=None)
            after, here = self._first_page(bound), self._beginning_at(bound, here)
        listing = self._next(here, progress, after, answered.rows, here.doubt or answered.doubt)
        ended = isinstance(after, Stop)
        failed = self._wholes.lacking(listing.rows, state.past) if ended and listing.whole else None
        sweep = self._wholes.page(listing, ends=ended and failed is None)
        following, validators = None, answered.validators if failed is None else None
        if ended and failed is None:
            progress = self._finish(progress, listing)
            state = state._replace(past=self._past(listing, sweep, state.past))
            following = self._following(listing, progress, state.past, now)
        page = Page(
            records=answered.read.records,
            refused=answered.read.refused,
            cursor=self._cursor(progress, None if ended else listing, state.past, now, validators),
            remember_from=self._remember_from(progress, answered.read.listed, after),
            remember_all=self.remembers_all,
            stop=after.reason if isinstance(after, Stop) and following is None and failed is None else None,
            skipped=answered.read.skipped,
            notices=(*answered.notices, *_doubted(listing, ended)),
            sweep=sweep,
            whole=here.whole,
            listed=None if answered.read.listed is answered.read.records else [one.id for one in answered.read.listed],
            gaps=answered.gaps,
            doubt=listing.doubt,
            counted=is_counted(self._stream.paginate, listing.page),
        )
        anew = bound is not None or (isinstance(after, Token) and after.back)
        return page, following or State(listing, progress, past=state.past, failed=failed, anew=anew)

    @property
    def remembers_all(self) -> bool:
        if self._stream.deletes is not None:
            return True
        return self._bounds.lists_everything if self._bounds else not self._takes_tokens and self._by_keys is None

    def _past(self, listing: Listing, sweep: Sweep | None, past: Past) -> Past:
        if listing.whole and not self._wholes.part:
            past = past._replace(rows=listing.rows)
        return past._replace(swept=listing.started) if sweep is not None and sweep.ends else past

    def _advance(
        self, state: State, received: Received | None, listed: Sequence[SourceRecord], asked: int, now: int
    ) -> Progress:
        aside, bounds = state.listing.aside, self._bounds
        if not aside and self._by_keys is not None and received is not None:
            state = state._replace(progress=self._with_keys(self._by_keys, state.progress, received, asked))
        if bounds is not None and not (aside and self._stream.paginate.listing_cap is None):
            new = self._new(listed, received, state.listing.page)
            progress = bounds.advance(state.progress, new, asked, now, self._position(state.listing.end))
            return replace(progress, high_water=state.progress.high_water) if aside else progress
        if aside:
            return state.progress
        if self._start_at is None or received is None or (mark := received.find(self._start_at)) is None:
            return state.progress
        return replace(state.progress, mark=mark)

    def _with_keys(self, keyset: Keyset, progress: Progress, received: Received, asked: int) -> Progress:
        """The next run begins behind the last row of the page before the first that has not settled."""
        rows = received.records
        if self._bounds is not None:
            bounds = self._bounds
            read = (self._read(received, start=n, end=n + 1).listed for n in range(len(rows)))
            rows = rows[
                : next(
                    (n for n, found in enumerate(read) if any(not bounds.settled(one, asked) for one in found)),
                    len(rows),
                )
            ]
        keys = keyset.keys(replace(received, records=rows)) if rows else None
        return progress if keys is None else replace(progress, mark=msgspec.json.encode(keys).decode())

    def _remember_from(self, progress: Progress, records: Sequence[SourceRecord], after: Token | Stop) -> int | None:
        """Rows that the next page will list again are behind the mark, where that moves with every page."""
        lowest = None if self.remembers_all or not self._bounds else self._bounds.remember_from(progress)
        if lowest is None or isinstance(after, Stop) or not isinstance(self._paginator, Overlapping):
            return lowest
        return min([lowest, *(record.position for record in records if record.position is not None)])

    def _finish(self, progress: Progress, listing: Listing) -> Progress:
        if self._bounds is None or listing.aside:
            return progress
        return self._bounds.finish(progress, self._position(listing.end))

    def _following(self, listing: Listing, progress: Progress, past: Past, now: int) -> State | None:
        """What is listed next, now that this is complete: another window, or a sweep that is due."""
        if listing.follows:
            return _within(listing.round, self._open(progress, past, now, again=False))
        if listing.whole or not self._wholes.is_due(past, now):
            return None
        return self._open_sweep(progress, past, now)

    def _cut_off(self, listing: Listing, progress: Progress, after: Token | Stop, count: int) -> str | None:
        """The lower bound to begin again at, where the API gives no more rows of one listing. None: there may be more.

        Raises SourceChanged where that would be where it began."""
        cap, bounds = self._stream.paginate.listing_cap, self._bounds
        rows = after.rows if isinstance(after, Token) else listing.page.rows + count
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
        return bound

    def _beginning_at(self, bound: str, listing: Listing) -> Listing:
        """Asked for with a lower bound, an API may leave out records that have no such field."""
        nulls = self._stream.incremental is None or self._stream.incremental.on_null != "fail"
        doubt = CUT_OFF if nulls and listing.doubt is None else listing.doubt
        return replace(listing, window=(bound, listing.window[1]), doubt=doubt)

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

    def _may_slip(self, page: Token) -> bool:
        """Whether nobody ever asks again for a row that slips from one page to another."""
        asks_for_new = self._bounds is not None and not self._bounds.lists_everything
        return asks_for_new and not self._wholes.sweeps and is_counted(self._stream.paginate, page)

    def _notices(
        self, received: Received | None, state: State, progress: Progress, read: Read, ended: bool
    ) -> Iterator[Notice]:
        if progress.disorder and not state.progress.disorder:
            yield notices.DISORDER
        if state.expired:
            yield notices.EXPIRED
        if state.listing.n == 1 and self._may_slip(state.listing.page):
            yield notices.SLIPPING
        yield from notices.of_page(self._stream.paginate, state.listing, received, ended=ended)
        if read.changed:
            yield notices.mended(read.changed)
        if read.warnings:
            yield notices.nonconforming(read.warnings)

    def _new(self, listed: Sequence[SourceRecord], received: Received | None, token: Token) -> Sequence[SourceRecord]:
        """Without those that an overlap repeats: they say nothing about the order."""
        rules = self._paginator
        if received is None or not isinstance(rules, Overlapping) or not (known := rules.known(token, received)):
            return listed
        return self._read(received, start=known).listed

    def _read(
        self, received: Received | None, parent: Parent = NO_PARENT, start: int = 0, end: int | None = None
    ) -> Read:
        """The records of an answer, or some of them."""
        if received is None:
            return NOTHING
        config = self._stream.records
        places: Sequence[Place] = ()
        if self._reader.looks_around:
            places = received.body.places(config.path.steps, may_be_absent=config.absent == "empty")
        records = received.records
        if start or end is not None:
            records, places = records[start:end], places[start:end]
        clean, headers = received.body.clean, received.headers
        return self._reader.read(records, clean=clean, places=places, headers=headers, parent=parent)

    def _next(
        self, listing: Listing, progress: Progress, after: Token | Stop, count: int, doubt: str | None
    ) -> Listing:
        bounds, overlapping = self._bounds, isinstance(self._paginator, Overlapping)
        return replace(
            listing,
            page=after if isinstance(after, Token) else listing.page,
            n=listing.n + 1,
            empty=0 if count or (isinstance(after, Token) and after.back) else listing.empty + 1,
            reached=bounds.show(progress.reached) if bounds else None,
            order_seen=bounds.show(progress.last) if bounds else None,
            disorder=progress.disorder,
            mark=progress.mark,
            read_any=listing.read_any or count > 0,
            rows=(listing.page.number or 0) + count if overlapping else listing.rows + count,
            doubt=doubt,
        )

    def _cursor(
        self, progress: Progress, listing: Listing | None, past: Past, now: int, validators: Validators | None
    ) -> bytes:
        """`listing`: the one under way."""
        return Cursor(
            fingerprint=self.fingerprint,
            updated_at=stamp(now),
            high_water=self._bounds.show(progress.high_water) if self._bounds else None,
            mark=progress.mark,
            listing=None if listing is None else self._fit_to_save(listing),
            rows=past.rows,
            swept=past.swept,
            validators=validators if listing is None else None,
        ).encode()

    def _fit_to_save(self, listing: Listing) -> Listing | None:
        """Without our secrets. None where one cannot be taken off: a crash then repeats the window."""
        page, ours = listing.page, self._credentials
        url = None if page.url is None else self._template.relative(ours.strip(page.url))
        params = {name: value for name, value in page.params.items() if ours.strip(f"?{encoded([(name, value)])}")}
        texts = [url or "", page.token or "", *page.keys, *params.values()]
        job = listing.job
        if job is not None:
            job = replace(job, url=None if job.url is None else self._template.relative(ours.strip(job.url)))
            texts += [job.id or "", job.url or "", *job.values.values()]
        fit = all(self._scrub(text) == text for text in texts)
        return replace(listing, page=replace(page, url=url, params=params), job=job) if fit else None


def _within(round: str | None, state: State) -> State:
    return state._replace(listing=replace(state.listing, round=round))


def _keys(mark: str) -> tuple[str, ...]:
    """Raises ConfigError."""
    try:
        return msgspec.json.decode(mark, type=tuple[str, ...])
    except msgspec.DecodeError as exc:
        raise ConfigError(
            f"the saved cursor stands at {mark!r}, which does not fit the `incremental` of now: change that back, or"
            " start over with `ingest checkpoints reset`"
        ) from exc


def _sweep_puts(stream: Stream) -> Sequence[Put]:
    params = stream.deletes.sweep.params if stream.deletes and stream.deletes.sweep else {}
    return [Put(Placement(param=name), text_of(value)) for name, value in params.items()]


def _doubted(listing: Listing, ended: bool) -> Iterator[Notice]:
    if ended and listing.sweep and listing.doubt is not None:
        yield Notice(
            "sweep_in_doubt", f"no delete is concluded from this sweep, and the next run sweeps: {listing.doubt}"
        )
