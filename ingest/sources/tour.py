"""One round over the parents of a stream: the children of several parents are listed side by side.

Each parent's pages keep their order; one page is ready for each of them, and no more. What is outstanding is the
parents that are begun and the page of parents that is asked for: the round is over when there is neither.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from ingest.config.model import ParentStream
from ingest.sources import Notice, Page, Saved, Watch, nothing_saved
from ingest.sources.cursor import Cursor, Round, decode
from ingest.sources.http import HttpSource, Unopened
from ingest.sources.parent import MARK, Parent, Parents
from ingest.sources.roll import Roll
from ingest.sources.rounds import SKIPPED, Rounds

AHEAD = 100  # parents at most that are done before one whose turn was earlier
UNLISTED = "a record is a dead letter, and what belongs to it was not listed"
AT_ONCE = 1000  # cursors that are looked up together
CHANGED, ALL = MARK + "^", MARK + "*"
"""What the names of partitions of the parents' own listing begin with, where the parents have parents too: in one that
tells what changed, and in one of all."""


class Above(Protocol):
    """Lists the parents."""

    @property
    def fingerprint(self) -> str: ...

    def pages(self, cursor: bytes | None, watch: Watch, saved: Saved = nothing_saved) -> AsyncGenerator[Page, None]: ...


class Family(NamedTuple):
    """A parent whose children are being listed."""

    parent: Parent
    pages: AsyncGenerator[Page, None]


class Tour:
    """`place`: the cursor between two rounds; `round`: as it stands."""

    def __init__(
        self,
        config: ParentStream,
        own: HttpSource,
        above: Above,
        parents: Parents,
        rounds: Rounds,
        place: Cursor,
        round: Round,
        watch: Watch,
        saved: Saved,
    ) -> None:
        self._config, self._own, self._above, self._parents, self._rounds = config, own, above, parents, rounds
        self._place, self._round, self._watch, self._saved = place, round, watch, saved
        self._roll = Roll(round)
        self._waiting: deque[tuple[Parent, bytes | None]] = deque()
        self._begun: dict[asyncio.Future[Page], Family] = {}  # the next page of each
        self._coming: asyncio.Future[None] | None = None  # a page of parents
        self._all_called = round.ended
        self._marks = config.changed_only and not round.aside  # the parents' cursors tell what changed
        self._prefix = CHANGED if self._marks else ALL

    async def pages(self, side_by_side: int) -> AsyncGenerator[Page, None]:
        """Until every parent is done. `side_by_side`: how many at once."""
        cursor = None if self._round.parents is None else self._round.parents.encode()
        called = self._above.pages(cursor, self._watch, self._saved_above)
        try:
            while True:
                self._begin(called, side_by_side)
                outstanding: list[asyncio.Future[Any]] = [*self._begun, *filter(None, [self._coming])]
                if not outstanding:
                    return
                await asyncio.wait(outstanding, return_when=asyncio.FIRST_COMPLETED)
                if self._coming is not None and self._coming.done():
                    self._coming = self._coming.result()  # None; raises what went wrong
                for ready in [one for one in self._begun if one.done()]:
                    page = await self._next(ready)
                    self._begin(called, side_by_side)
                    if page is not None:
                        yield page
        finally:
            await _closed([*self._begun, *filter(None, [self._coming])])
            for family in self._begun.values():
                await family.pages.aclose()
            await called.aclose()

    def end(self) -> tuple[Round, Mapping[str, bytes | None]]:
        """The round as it ended, and what is still to be saved with it."""
        return self._roll.place(self._round), self._roll.settled()

    def _begin(self, called: AsyncGenerator[Page, None], side_by_side: int) -> None:
        """As many parents as may be; another page of them when few are left."""
        while self._waiting and len(self._begun) < side_by_side and (self._roll.ahead < AHEAD or not self._begun):
            parent, cursor = self._waiting.popleft()
            pages = self._own.children(parent, cursor, self._watch, self._round)
            self._begun[asyncio.ensure_future(anext(pages))] = Family(parent, pages)
        if self._coming is None and not self._all_called and len(self._waiting) < side_by_side:
            self._coming = asyncio.ensure_future(self._call(called))

    async def _call(self, called: AsyncGenerator[Page, None]) -> None:
        """The next page of parents."""
        page = await anext(called)
        self._all_called = page.stop is not None
        round = self._round
        doubt = page.doubt or (UNLISTED if page.refused else None)
        doubt = None if doubt is None else f"in the listing of the parents: {doubt}"
        self._round = replace(round, doubt=round.doubt or doubt, counted=round.counted or page.counted)
        parents = [self._parents.of(record) for record in page.records if not record.deleted]
        changes = {self._prefix + name: self._kept(cursor) for name, cursor in page.partitions.items()}
        names = [parent.partition for parent in parents]
        wanted = set(self._roll.call(names, page.cursor, changes, last=self._all_called))
        for at in range(0, len(parents), AT_ONCE):
            chosen = [one for one in parents[at : at + AT_ONCE] if one.partition in wanted]
            cursors = await self._saved([one.partition for one in chosen]) if chosen else {}
            for one in chosen:
                if one.partition in wanted:
                    wanted.discard(one.partition)
                    self._waiting.append((one, cursors.get(one.partition)))

    def _kept(self, cursor: bytes | None) -> bytes | None:
        """Of the parents' own listing: a listing of all needs no cursor that has come to its end."""
        return cursor if cursor is None or self._marks or decode(cursor).listing is not None else None

    async def _saved_above(self, names: Sequence[str]) -> Mapping[str, bytes]:
        found = await self._saved([self._prefix + name for name in names])
        return {name.removeprefix(self._prefix): cursor for name, cursor in found.items()}

    async def _next(self, ready: "asyncio.Future[Page]") -> Page | None:
        """A page as it is published and saved. None: the parent was skipped."""
        parent, pages = self._begun.pop(ready)
        try:
            page = ready.result()
        except Unopened as exc:
            if exc.status not in self._config.skip_on:
                raise
            self._skip(parent, exc)
            return None
        if page.stop is None:
            self._begun[asyncio.ensure_future(anext(pages))] = Family(parent, pages)
        else:
            await pages.aclose()
            self._done(parent)
        return self._counted(page, parent)

    def _skip(self, parent: Parent, refusal: Unopened) -> None:
        self._done(parent)
        doubt = self._round.doubt or SKIPPED
        self._round = replace(self._round, skipped=self._round.skipped + 1, doubt=doubt)
        self._watch.noticed(Notice("parent_skipped", f"a parent is skipped, as `skip_on` says: {refusal}"))

    def _done(self, parent: Parent) -> None:
        self._roll.done(parent.partition)
        self._round = replace(self._round, n=self._round.n + 1)

    def _counted(self, page: Page, parent: Parent) -> Page:
        round = self._round
        self._round = replace(
            round,
            rows=round.rows + page.rows,
            whole=round.whole and page.whole,
            doubt=round.doubt or page.doubt,
            counted=round.counted or page.counted,
        )
        settled = self._roll.settled()
        stands = self._rounds.under_way(self._place, self._roll.place(self._round), time.time_ns() // 1000)
        return replace(
            page,
            cursor=stands,
            stop=None,
            sweep=self._rounds.sweep(self._round),
            doubt=self._round.doubt,
            counted=self._round.counted,
            partition=parent.partition,
            partitions={parent.partition: _worth_saving(page.cursor), **settled},
            partitions_limit=self._config.state_limit if self._roll.moved() else None,
        )


def _worth_saving(saved: bytes) -> bytes | None:
    """None: what says nothing of where the next listing begins."""
    cursor = decode(saved)
    says = (cursor.high_water, cursor.mark, cursor.listing, cursor.validators)
    return saved if any(one is not None for one in says) else None


async def _closed(futures: Sequence["asyncio.Future[Any]"]) -> None:
    for future in futures:
        future.cancel()
    if futures:
        await asyncio.wait(futures)
    for future in futures:
        if not future.cancelled():
            future.exception()  # looked at, so that asyncio does not complain of it
