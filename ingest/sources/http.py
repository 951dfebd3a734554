"""Pages of an HTTP API, one after another, from where the cursor stands to where the API says that it ends.

What comes next is decided by `listing.py`, and asked by `fetching.py`; what a refusal means for the listing is decided
here.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ingest.config.model import Source, Stream
from ingest.errors import ConfigError, SourceChanged, SourceRefused, Unlisted, Unreadable
from ingest.redaction import Redactor
from ingest.sources import Notice, Page, Saved, Watch, nothing_saved
from ingest.sources.auth.keyring import Keyring
from ingest.sources.cursor import Round
from ingest.sources.fetching import Fetched, Fetching
from ingest.sources.guard import LoopGuard
from ingest.sources.incremental import Stretch
from ingest.sources.listing import Lister
from ingest.sources.opening import State
from ingest.sources.ordering import Ordering
from ingest.sources.parent import NO_PARENT, Parent
from ingest.sources.reports import Reports, downloaded
from ingest.sources.rules import Ruled
from ingest.sources.shelf import Reader
from ingest.sources.template import Template
from ingest.sources.transport import Limits, Transport

TOKEN_REFUSED = (400, 404, 410, 422)  # what APIs answer to a page token that has expired


class Unopened(SourceRefused):
    """The first request of a listing was refused."""


class HttpSource:
    """One stream of one source, references resolved. `where`: file:line:column of the stream, for messages. `as_sent`:
    its records are not published, `transform` only says which there are. `others`: who list it too.
    `configured`: the stream as the source has it, where it is listed in another way. `stretch`: as `Bounds`."""

    def __init__(
        self,
        source: Source,
        stream: Stream,
        transport: Transport,
        keyring: Keyring,
        redactor: Redactor,
        where: str,
        *,
        as_sent: bool = False,
        others: Reader[Fetched] | None = None,
        configured: Stream | None = None,
        stretch: Stretch | None = None,
    ) -> None:
        self._stream, self._transport, self._redactor, self._where = stream, transport, redactor, where
        template = Template(source, downloaded(stream), redactor.scrub)
        try:
            self._credentials = keyring.credentials(configured or stream)
        except ConfigError as exc:
            raise ConfigError(f"{where}: {exc}") from exc
        self._probe = keyring.probe(stream.auth or source.auth, self._credentials)
        scrub, ours = redactor.scrub, self._credentials
        self._lister = Lister(source, stream, template, ours, scrub, as_sent=as_sent, stretch=stretch)
        self._limits = Limits(
            stream.timeout or source.timeout,
            stream.retry or source.retry,
            source.limits.max_body,
            redactor.scrub(stream.path),
        )
        self._fetching = Fetching(source, stream, transport, ours, self._limits, redactor, others)
        self._ordering = None
        if stream.job is not None:
            about = transport, self._credentials, self._limits, redactor, where
            self._ordering = Ordering(self._lister, Reports(source, stream, *about))

    @property
    def fingerprint(self) -> str:
        return self._lister.fingerprint

    @property
    def remembers_all(self) -> bool:
        return self._lister.remembers_all

    async def pages(
        self, cursor: bytes | None, watch: Watch, saved: Saved = nothing_saved
    ) -> AsyncGenerator[Page, None]:
        await self.begin(watch)
        async with aclosing(self._let_in(cursor, watch)) as pages:
            async for page in pages:
                yield page

    def children(
        self, parent: Parent, cursor: bytes | None, watch: Watch, round: Round
    ) -> AsyncGenerator[Page, None]:
        """The pages of one parent; `cursor`: its own. Raises Unopened where the first request is refused."""
        if self._probe is not None and self._stream.incremental is not None:  # its last page moves a mark
            return self._let_in(cursor, watch, parent, round)
        return self._pages(self._lister.opening.start(cursor, _now(), round), watch, parent)

    async def _let_in(
        self, cursor: bytes | None, watch: Watch, parent: Parent = NO_PARENT, round: Round | None = None
    ) -> AsyncGenerator[Page, None]:
        """A listing that ends only when we are still let in; else it begins again, once."""
        begun_again = False
        state: State | None = self._lister.opening.start(cursor, _now(), round)
        while state is not None:
            following = None
            async with aclosing(self._pages(state, watch, parent)) as pages:
                async for page in pages:
                    if page.stop is not None and not await self.still_in(watch, begun_again):
                        following, begun_again = self._again(cursor, round), True
                        break
                    yield page
            state = following

    async def _pages(self, state: State, watch: Watch, parent: Parent) -> AsyncGenerator[Page, None]:
        guard = LoopGuard(has_ids=bool(self._stream.id))
        while True:
            try:
                page, state = await self._turn(state, guard, watch, parent)
            except SourceRefused as exc:
                raise type(exc)(f"{self._where}: {exc}", exc.status) from exc
            except SourceChanged as exc:
                raise self.changed(str(exc)) from exc
            if page is None:
                continue
            for notice in page.notices:
                watch.noticed(notice)
            yield page
            if state.failed is not None:
                raise self.changed(state.failed)
            if page.stop is not None:
                return

    def changed(self, what: str) -> SourceChanged:
        return SourceChanged(f"{self._where}: {self._redactor.scrub(what)}")

    async def begin(self, watch: Watch) -> None:
        """Before anything is listed. Raises as `enter` does."""
        await self.enter(watch)
        self._fetching.begin()

    async def enter(self, watch: Watch) -> bool:
        """See whether we are let in, before anything is listed. False: no `auth.probe` says how.

        Raises SourceRefused when we are not, and what `Transport.send` raises."""
        if self._probe is None:
            return False
        try:
            await self._probe.enter(self._limits, watch)
        except SourceRefused as exc:
            raise SourceRefused(f"{self._where}: {exc}", exc.status) from exc
        return True

    async def still_in(self, watch: Watch, begun_again: bool) -> bool:
        """False, once: a listing that was read with a credential that had ended may be short of something."""
        if self._probe is None or await self._probe.still_in(self._limits, watch):
            return True
        if begun_again:
            what = "`auth.probe` found us let in no longer, twice at the end of a listing"
            raise SourceRefused(f"{self._where}: {what}", 401)
        watch.restarted("`auth.probe` found us let in no longer, and there are fresh credentials now")
        return False

    def _again(self, cursor: bytes | None, round: Round | None) -> State:
        """The listing from its start, whichever run began it."""
        state = self._lister.opening.start(cursor, _now(), round)
        return self._lister.opening.restart(state, _now()) or state if state.resumed else state

    async def _turn(
        self, state: State, guard: LoopGuard, watch: Watch, parent: Parent
    ) -> tuple[Page | None, State]:
        """The next page, and where the listing stands after it. None: it began again, or a report is ready."""
        try:
            if self._ordering is not None and self._ordering.is_due(state):
                return await self._ordering.step(state, watch, parent)
            return await self._listed(state, guard, watch, parent)
        except SourceRefused as exc:
            another = None if self._ordering is None else self._ordering.another(state, exc, watch)
            if another is not None:
                return another
            restarted = self._lister.opening.restart(state, _now()) if exc.status in TOKEN_REFUSED else None
            if restarted is None and not state.listing.n:
                raise Unopened(str(exc), exc.status) from exc
            if restarted is None:
                raise
            watch.restarted(f"a saved token was refused: {exc}")
            return None, restarted
        except (Unlisted, Unreadable) as exc:
            if self._ordering is None or state.report is None or state.listing.n:
                raise
            return self._ordering.unusable(state, str(exc))
        except Ruled as exc:
            return self._obey(exc, state, guard, watch)

    async def _listed(self, state: State, guard: LoopGuard, watch: Watch, parent: Parent) -> tuple[Page, State]:
        request = self._lister.asking.request(state.listing, parent, state.report)
        if state.anew:
            guard.forget()
        guard.request(request)
        asked = self._lister.asking.for_what_is_new(request, state)
        fetched = await self._fetching.page(asked, watch, first=state.listing.n == 0)
        if fetched.skew:
            watch.noticed(_skewed(fetched.skew))
        if fetched.unchanged:
            return self._lister.unchanged(state, fetched.answered)
        received, times = fetched.received, (fetched.asked, fetched.answered)
        page, state = self._lister.take(received, state, *times, parent, request)
        if not state.anew:  # what follows is another listing
            guard.page(page)
        return page, state

    def _obey(self, ruled: Ruled, state: State, guard: LoopGuard, watch: Watch) -> tuple[Page | None, State]:
        """What `errors` says. Raises SourceRefused where it says that the stream fails."""
        if ruled.action == "restart_listing":
            guard.restarted(str(ruled))
            watch.restarted(str(ruled))
            return None, self._lister.opening.again(state, _now())
        if ruled.action in ("skip", "end"):
            watch.noticed(Notice("gap", str(ruled)))
            reason = f"`errors` says {ruled.action} to status {ruled.status}"
            ends = ruled.action == "end" or (self._ordering is not None and self._ordering.is_due(state))
            return self._lister.leave_out(state, _now(), reason=reason, ends=ends)
        raise SourceRefused(str(ruled), ruled.status)


def _now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def _skewed(skew: float) -> Notice:
    where = "ahead of" if skew > 0 else "behind"
    return Notice("clock_skew", f"the API's clock is {abs(skew):.0f} s {where} ours; `lag` counts by the API's")
