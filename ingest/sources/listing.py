"""What an answer means for the listing of its stream: a page, the cursor that stands for it, and what follows.

Pure: no request is made here, and time is passed in. No listing ends by accident: each page says why there is no next
one, and a request or a page that repeats is an error.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ingest.config.model import Source, Stream
from ingest.config.slipping import may_slip
from ingest.errors import SourceChanged
from ingest.sources import Notice, Page, SourceRecord, notices
from ingest.sources.absent import Absent
from ingest.sources.answers import Place, has
from ingest.sources.asking import Asking
from ingest.sources.auth import Credentials
from ingest.sources.bounds import placeholders
from ingest.sources.conditional import Conditional
from ingest.sources.course import Course
from ingest.sources.cursor import Job, Listing, Validators, fingerprint
from ingest.sources.incremental import Bounds, Progress, Stretch, begun_again
from ingest.sources.opening import CUT_OFF, Opening, State, mark_of
from ingest.sources.page import NOTHING, PageReader, Read
from ingest.sources.pagination import Received, Stop, Token, is_counted, paginator
from ingest.sources.parent import NO_PARENT, Parent
from ingest.sources.request import Request
from ingest.sources.saving import Saving
from ingest.sources.template import Template
from ingest.sources.times import parse_rfc3339
from ingest.sources.whole import Wholes

NO_CONTENT = "the API answered without content"
UNREAD = "the id of a record could not be read"
HELD = (
    "what starts the next run holds a secret of the configuration, and nothing that is saved may: what was read is"
    " published, and the next run starts where this one did. If that reference stands for no secret, write its value;"
    " else go on by a field of the records: `incremental: {type: timestamp, …}`"
)


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
    again: int = 0  # of the last rows: what a listing from the last cursor value lists again


class Lister:
    """The rules of one stream; holds no state of a listing. `opening` says where one begins, `asking` what it asks.

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
        self._stream, self._scrub = stream, scrub
        self._paginator = paginator(stream.paginate, source.base_url, stream.id)
        incremental = stream.incremental
        self._bounds = None
        if incremental is not None and incremental.of_records:
            self._bounds = Bounds(incremental, placeholders(source, stream), stretch)
        self._wholes = Wholes(stream, part=stream.parent is not None)
        self._reader = PageReader(stream, as_sent=as_sent)
        self._absent = Absent(stream)
        self.fingerprint = fingerprint(source, stream, scrub)
        conditional = Conditional(stream, scrub) if stream.conditional else None
        self.asking = Asking(stream, self._paginator, template, conditional)
        self.opening = Opening(stream, self._paginator, self._bounds, self._wholes, template, self.fingerprint)
        self._course = Course(stream, self._paginator, self._bounds, self._read)
        shape = self.fingerprint, mark_of(stream, self._paginator)
        self._saving = Saving(self._bounds, template, credentials, scrub, *shape)

    @property
    def remembers_all(self) -> bool:
        return self._stream.deletes is not None or self._course.lists_everything

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
        state = state._replace(listing=self._course.asked_at(state.listing, asked))
        read, here = self._read(received, parent), state.listing
        count = 0 if received is None else len(received.records)
        if count > 1 and read.refused and not (read.listed or read.skipped or here.read_any):
            first = read.refused[0]
            holds = has(first.value) if first.error.code == "no_id" else ""
            raise SourceChanged(f"no record of the first page is good; the first: {first.error}{holds}")
        new = self._course.new(read.listed, received, here.page)
        progress = self._course.advance(state, received, read.listed, new, asked, now)
        after = self._paginator.after(here.page, received) if received else self._paginator.nothing(here.page, here.n)
        told = tuple(self._notices(received, state, progress, read, after))
        if self._bounds is not None and not here.aside and self._bounds.ends_feed(progress, read.listed):
            after = Stop("a page older than what is known")
        if self._bounds is not None and self._bounds.is_behind(progress):
            after = Stop("a page behind the end of what is asked for")
        doubt = NO_CONTENT if received is None else UNREAD if read.unknown else None
        validators = None
        if received is not None and request is not None and not doubt:
            validators = self.asking.told(request, received.headers)
        again = self._course.listed_again(here, progress, new)
        answered = _Answered(read, count, progress, after, doubt, told, validators=validators, again=again)
        return self._turn(state, answered, now)

    def holding(self, state: State, job: Job | None, now: int) -> tuple[Page, State]:
        """The listing with this job, and a page that has nothing but its cursor: it is saved before the job is done."""
        listing = replace(state.listing, job=job)
        cursor = self._saving.cursor(state.progress, listing, state.past, now)
        page = Page((), (), cursor, None, self.remembers_all, stop=None, whole=listing.whole, bare=True)
        return page, state._replace(listing=listing, report=None, resumed=False, anew=True)

    def unchanged(self, state: State, now: int) -> tuple[Page, State]:
        """The API says that its answer is the one before: there is nothing to read, and nothing to count."""
        here = replace(state.listing, whole=False, sweep=False)
        stop, doubt = Stop("nothing new (304)"), "the API answered that there is nothing new (304)"
        answered = _Answered(NOTHING, 0, state.progress, stop, doubt, (), validators=state.validators)
        return self._turn(state._replace(listing=here), answered, now)

    def leave_out(self, state: State, now: int, *, reason: str, ends: bool) -> tuple[Page, State]:
        """A rule says that an answer is left out, or that it is the end."""
        after = Stop(reason) if ends else self._paginator.behind(state.listing.page)
        answered = _Answered(NOTHING, 0, state.progress, after, reason, (), gaps=1)
        return self._turn(state, answered, now)

    def _turn(self, state: State, answered: _Answered, now: int) -> tuple[Page, State]:
        here, progress, after = state.listing, answered.progress, answered.after
        rows = self._course.rows(here.page, after, answered.rows)
        total = here.rows + rows - here.page.rows
        cut_off = self._course.cut_off(here, progress, after, rows)
        bound = cut_off if isinstance(cut_off, str) else None
        if isinstance(cut_off, Stop):
            after = cut_off
        elif bound is not None:
            progress = begun_again(progress)
            after, here = self.opening.first_page(bound), self.opening.beginning_at(bound, here, CUT_OFF)
            total, answered = total - answered.again, answered._replace(again=0)
        listing = self._next(here, progress, after, answered, total)
        ended = isinstance(after, Stop)
        failed = self._wholes.lacking(listing.rows, state.past) if ended and listing.whole else None
        if ended and not self._saving.fits(progress.mark):
            failed, progress = HELD, replace(progress, mark=listing.window[0])
        sweep = self._wholes.page(listing, ends=ended and failed is None)
        following, validators = None, answered.validators if failed is None else None
        if ended and failed is None:
            progress = self._course.finish(progress, listing)
            state = state._replace(past=self._wholes.past(listing, sweep, state.past))
            following = self.opening.following(listing, progress, state.past, now)
        page = Page(
            records=answered.read.records,
            refused=answered.read.refused,
            cursor=self._saving.cursor(progress, None if ended else listing, state.past, now, validators),
            remember_from=self._remember_from(progress, answered.read.listed, after),
            remember_all=self.remembers_all,
            stop=self._scrub(after.reason) if isinstance(after, Stop) and not (following or failed) else None,
            skipped=answered.read.skipped,
            rows=listing.rows - state.listing.rows,
            notices=(*answered.notices, *notices.doubted(listing, ended=ended)),
            sweep=sweep,
            whole=here.whole,
            listed=None if answered.read.listed is answered.read.records else [one.id for one in answered.read.listed],
            gaps=answered.gaps,
            doubt=listing.doubt,
            counted=is_counted(self._stream.paginate, listing.page),
        )
        anew = bound is not None or (isinstance(after, Token) and after.back)
        kept = State(listing, progress, past=state.past, failed=failed, anew=anew, reordered=state.reordered)
        return page, following or kept

    def _remember_from(self, progress: Progress, listed: Sequence[SourceRecord], after: Token | Stop) -> int | None:
        return None if self.remembers_all else self._course.remember_from(progress, listed, after)

    def _may_slip(self, page: Token) -> bool:
        """Whether nobody ever asks again for a row that slips from one page to another."""
        asks_for_new = self._bounds is not None and not self._bounds.lists_everything
        return asks_for_new and may_slip(self._stream) and is_counted(self._stream.paginate, page)

    def _notices(
        self, received: Received | None, state: State, progress: Progress, read: Read, after: Token | Stop
    ) -> Iterator[Notice]:
        if progress.disorder and not state.progress.disorder:
            yield notices.DISORDER
        if state.told is not None:
            yield state.told
        if state.listing.n == 1 and self._may_slip(state.listing.page):
            yield notices.slipping(self._stream)
        yield from notices.of_page(
            self._stream.paginate, state.listing, received, after.reason if isinstance(after, Stop) else None
        )
        since = state.listing.window[0]
        if self._bounds is not None and not state.listing.n and (old := self._bounds.before(read.listed, since)):
            yield notices.since_ignored(old, str(since))
        if not state.listing.n:
            yield from filter(None, [notices.repeated_ids(self._stream, read.records)])
        if received is not None and not state.listing.n and state.progress == Progress():  # nothing is known yet
            yield from filter(None, [self._absent.notice(received.records)])
        if read.changed:
            yield notices.mended(read.changed)
        if read.warnings:
            yield notices.nonconforming(read.warnings)

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
        self, listing: Listing, progress: Progress, after: Token | Stop, answered: _Answered, rows: int
    ) -> Listing:
        """`rows`: of the listing so far."""
        bounds = self._bounds
        return replace(
            listing,
            page=after if isinstance(after, Token) else listing.page,
            n=listing.n + 1,
            empty=0 if answered.rows or (isinstance(after, Token) and after.back) else listing.empty + 1,
            reached=bounds.show(progress.reached) if bounds else None,
            order_seen=bounds.show(progress.last) if bounds else None,
            disorder=progress.disorder,
            first_ceiling=bounds.show(progress.first_ceiling) if bounds else None,
            ceiling=bounds.show(progress.ceiling) if bounds else None,
            mark=progress.mark,
            read_any=listing.read_any or answered.rows > 0,
            rows=rows,
            again=answered.again,
            doubt=listing.doubt or answered.doubt,
        )
