"""poll → publish → save cursor.

A page is fetched, its events are published, and only when every one of them is acknowledged by the log, the cursor
that stands for the page is saved: with what was `seen`, in one transaction, under the fence of the stream's lease. So a
crash at any instruction repeats at most the page in flight, and a poller that lost its lease can move nothing.

While one page is being published the next one is fetched; never more than these two are in memory.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from checkpoints import RESERVED, Checkpoints, Claim, Missing, Save, Seen, StreamId
from ingest.changes import Changes
from ingest.event import Envelope
from ingest.eventlog import Locate, Publisher
from ingest.eventlog.place import same_place
from ingest.patience import Patience
from ingest.publication import Publication
from ingest.remembered import Remembered, changed, to_remember
from ingest.report import Outcome, Report
from ingest.sources import Page, Source, SourceRecord, Sweep
from ingest.sources.cursor import describe, unconditional
from ingest.sources.times import rfc3339

log = structlog.get_logger()
T = TypeVar("T")

BEGUN = 1000  # partitions at most of which one may have been listed when a holder before us ended; fewer are, at once
DELETED_AT_ONCE = 1000  # ids that a sweep finds gone are published in pages of so many


class Target(NamedTuple):
    """Where the events of a stream go, and how many ids are remembered where not all are.

    `part`: of the stream, with a cursor and a lease of its own; its events are the stream's. `fence`: of its events,
    where it is not that of the lease."""

    stream: StreamId
    topic: str
    seen_limit: int
    part: str = ""
    fence: int | None = None

    @property
    def kept_as(self) -> StreamId:
        """The name of the cursor and of the lease."""
        return StreamId(self.stream.source, f"{self.stream.stream}@{self.part}") if self.part else self.stream


class Poller:
    """One run of one stream, under a claim that someone else keeps renewing. `locate` names a topic of the log,
    `changes` remembers the run before."""

    def __init__(
        self,
        target: Target,
        claim: Claim,
        source: Source,
        publisher: Publisher,
        checkpoints: Checkpoints,
        locate: Locate,
        report: Report,
        changes: Changes | None = None,
    ) -> None:
        self._target, self._claim, self._source = target, claim, source
        self._checkpoints, self._locate, self._report = checkpoints, locate, report
        self._stream = target.kept_as
        self._patience = Patience(self._stream, report)
        envelope = Envelope(*target.stream, claim.lease.fence if target.fence is None else target.fence)
        self._publication = Publication(target.topic, envelope, claim, publisher, checkpoints, self._patience)
        self._remembered = Remembered(self._stream, checkpoints, self._patience, asks=claim.seen > 0)
        self._changes = changes or Changes()
        self._seen_in = claim.seen_in  # until `run` asks
        self._moved = False  # what was seen was published somewhere else
        # A page may be in the log that no cursor stands for: ours, or that of a holder who did not release the lease.
        self.in_flight = not claim.lease.clean
        self._unclean = self.in_flight  # so the first page of each partition is published whatever was seen of it
        self._begun: set[str] = set()  # partitions, some of them
        self._afresh = self.in_flight  # and no API is asked only for what is new
        self._cursor = claim.cursor  # as it is saved
        self._changed_anything = False

    def next_claim(self) -> Claim:
        """The same lease with everything as this run left it, for the next run under it."""
        lease = replace(self._claim.lease, clean=not self.in_flight)
        remembered = self._claim.seen or len(self._remembered)
        seen_in = self._claim.seen_in if self._moved else self._seen_in
        return Claim(self._stream, lease, self._cursor, remembered, seen_in)

    async def run(self, stop: asyncio.Event) -> None:
        """Until the listing ends, or `stop` is set and the page in hand is saved. Says in the report how it ended.

        Raises Transient, Permanent and Superseded; what was saved before stays good."""
        await self._look_where()
        self._afresh = self._afresh or self._moved
        cursor = self._claim.cursor
        if cursor is not None and self._afresh:
            cursor = unconditional(cursor)
        pages = self._source.pages(cursor, self._report, self._partitions)
        fetching, stopping = asyncio.ensure_future(anext(pages)), asyncio.create_task(stop.wait())
        try:
            while (page := await _unless(stop, stopping, fetching)) is not None:
                if page.stop is None:
                    fetching = asyncio.ensure_future(anext(pages))
                await self._handle(page)
                if page.stop is not None:
                    self._report.end(Outcome.COMPLETE, page.stop)
                    return
            self._report.end(Outcome.INCOMPLETE, "stopped by a signal")
        finally:
            stopping.cancel()
            fetching.cancel()
            await asyncio.wait([fetching])
            if not fetching.cancelled():
                fetching.exception()  # looked at, so that asyncio does not complain of it
            await pages.aclose()

    async def _look_where(self) -> None:
        """What was seen counts only in the topic in which it was published: not in another log, and not in a topic of
        this name that was made anew."""
        topic = self._target.topic
        self._seen_in = await self._patience.persist("look at the topic", lambda: self._locate(topic))
        self._moved = self._claim.seen_in is not None and not same_place(self._claim.seen_in, self._seen_in)
        if self._moved and self._claim.seen:
            self._remembered.asks = False
            log.warning(
                "the topic is not the one that was published to: what was seen is forgotten, a full listing is "
                "published again",
                stream=str(self._stream),
                topic=self._seen_in,
                published_to=self._claim.seen_in,
            )

    async def _handle(self, page: Page) -> None:
        """publish → save cursor."""
        fresh, seen = await self._not_seen(page)
        self.in_flight = True
        published, buried = await self._publication.publish(fresh, page.refused)
        save = self._save_of(page, fresh, seen)
        gone = await self._publish_deletes(page.sweep, save) if page.sweep is not None and page.sweep.ends else 0
        self._changed_anything = self._changed_anything or bool(fresh or buried or gone)
        await self._save(replace(save, history=page.stop if self._changed_anything else None))
        self.in_flight = self._stays_in_doubt(page)
        self._remembered.saved(save)
        self._report.cursor_to = describe(page.cursor)
        self._report.saved(
            events=published + gone,
            unchanged=len(page.records) - len(fresh),
            skipped=page.skipped,
            dead_letters=buried,
            deletes=gone + sum(map(attrgetter("deleted"), fresh)),
            gaps=page.gaps,
        )

    def _save_of(self, page: Page, fresh: Sequence[SourceRecord], seen: Sequence[Seen]) -> Save:
        sweep = page.sweep
        listed: Sequence[str] = ()
        if sweep is not None:
            noted_anyway = {one.id for one in seen}
            ids = [record.id for record in page.records] if page.listed is None else page.listed
            listed = tuple(one for one in ids if one not in noted_anyway)
        return Save(
            cursor=page.cursor,
            partition=page.partition,
            partitions=page.partitions,
            partitions_limit=page.partitions_limit,
            seen=seen,
            seen_in=self._seen_in,
            forget_seen=self._moved,
            forget_below=page.remember_from,
            seen_limit=None if page.remember_all else self._target.seen_limit,
            sweep=None if sweep is None else sweep.number,
            listed=listed,
            missed=sweep is not None and sweep.ends and sweep.twice,
        )

    async def _save(self, save: Save) -> None:
        await self._patience.persist("save the cursor", lambda: self._checkpoints.save(self._claim, save))
        self._moved = False
        self._cursor = save.cursor

    async def _publish_deletes(self, sweep: Sweep, last: Save) -> int:
        """What a whole sweep did not list is gone. `last`: of its last page; the cursor that ends the sweep is saved
        only after this, so that a crash in between lists that page again. Returns how many deletes were published."""
        if self._cursor is None:
            return 0  # nothing was listed before
        await self._save(replace(last, cursor=self._cursor, partitions={}, missed=False))
        look_up, stream, after, count = self._checkpoints.missing, self._stream, "", 0
        while True:
            look = partial(look_up, stream, sweep.number, after, DELETED_AT_ONCE, twice=sweep.twice)
            missing = await self._patience.persist("look up what is gone", look)
            if not missing:
                return count
            deletes = [deletion(one, sweep.number) for one in missing]
            published, _ = await self._publication.publish(deletes)
            seen = [
                Seen(one.id, one.version or "", None, other.key, dead=True)
                for one, other in zip(deletes, missing, strict=True)
            ]
            await self._save(Save(self._cursor, seen, self._seen_in))
            after, count = missing[-1].id, count + published

    async def _not_seen(self, page: Page) -> tuple[Sequence[SourceRecord], list[Seen]]:
        """The records that are not what was published last for their id, and what to remember of them."""
        if page.keyless:
            page = replace(page, records=await self._with_keys(page.records))
        ids = [record.id for record in page.records]
        known = {} if self._may_be_in_the_log(page) else await self._remembered.versions(ids)
        before = frozenset(known) if page.whole else frozenset()
        fresh = page.records if not known and len(set(ids)) == len(ids) else changed(page.records, known)
        if page.whole:
            self._look_at_changes(page, before, fresh)
        return fresh, to_remember(page, fresh)

    def _may_be_in_the_log(self, page: Page) -> bool:
        """Whether it may be the one of a holder before us, in this version or in another that was not remembered."""
        if not self._unclean or page.bare or page.partition in self._begun or len(self._begun) == BEGUN:
            return False
        self._begun.add(page.partition)
        return True

    def _stays_in_doubt(self, page: Page) -> bool:
        """Now that it is saved, which page was in flight before us is still not known."""
        return self._unclean and page.stop is None and (page.bare or bool(page.partition))

    def _look_at_changes(self, page: Page, known: Collection[str], fresh: Sequence[SourceRecord]) -> None:
        self._changes.page(page.records, known, fresh)
        if page.stop is not None and (notice := self._changes.end()) is not None:
            self._report.noticed(notice)

    async def _partitions(self, names: Sequence[str]) -> Mapping[str, bytes]:
        look_up = self._checkpoints.cursors
        found = await self._patience.persist("look up the cursors", lambda: look_up(self._stream, names))
        if not self._afresh:
            return found
        return {name: cursor if name == RESERVED else unconditional(cursor) for name, cursor in found.items()}

    async def _with_keys(self, deletes: Sequence[SourceRecord]) -> Sequence[SourceRecord]:
        """A delete goes where the events of its record went."""
        keys = await self._remembered.keys([one.id for one in deletes])
        return [replace(one, key=keys.get(one.id, one.key)) for one in deletes]


def deletion(gone: Missing, sweep: int) -> SourceRecord:
    """What a sweep that began at `sweep` (microseconds since 1970) concludes of a record that it did not list."""
    at = rfc3339(sweep)
    value = msgspec.json.encode({"id": gone.id, "deleted_at": at})
    return SourceRecord(gone.id, at, gone.key or gone.id, None, None, value, deleted=True)


async def _unless(stop: asyncio.Event, stopping: "asyncio.Task[bool]", work: "asyncio.Future[T]") -> T | None:
    """The result of `work`, or None as soon as `stop` is set, even where the next page is there already. `stopping`
    waits for `stop`."""
    if not work.done() and not stop.is_set():
        both: set[asyncio.Future[Any]] = {work, stopping}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    return None if stop.is_set() else work.result()
