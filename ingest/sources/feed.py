"""Deletes that another stream tells of (`deletes.feed`): its rows name what is gone here.

It is read after the stream's own listing, from a cursor of its own. A row that was applied is not applied again when
the feed lists it once more: what it names may have come back meanwhile.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from checkpoints import RESERVED
from ingest.config.deletes import FeedPlan
from ingest.errors import BadRecord, ConfigError
from ingest.paths import JsonPath
from ingest.sources import Page, Refused, Saved, SourceRecord, Watch, nothing_saved
from ingest.sources.children import ChildSource
from ingest.sources.cursor import Cursor, decode
from ingest.sources.expression import predicate
from ingest.sources.fields import Field, FieldReader, Nested
from ingest.sources.http import HttpSource
from ingest.sources.identity import bounded_id, joined, version_hash
from ingest.sources.slices import Undecodable

REMEMBERED = 10_000  # rows at most, those with the highest positions
NOTHING: Mapping[str, int | None] = {}
UNKNOWN = object()


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a feed stands, as it is saved."""

    feed: Cursor
    applied: Mapping[str, int | None] = NOTHING  # rows that the next listing may give again, and their positions
    below: int | None = None  # those before this position were applied too


class Told:
    """What a row says. Made once."""

    def __init__(self, plan: FeedPlan) -> None:
        self._where = None if plan.where is None else predicate(plan.where, "deletes.feed.where", "validate")
        self._match = None if plan.match is None else re.compile(plan.match)
        self._paths, self._fields = plan.id, FieldReader(plan.id)

    def delete(self, row: SourceRecord) -> SourceRecord | None:
        """None: it says of nothing that it is gone. Raises BadRecord where that cannot be told."""
        if row.deleted or (self._where is not None and not self._where(row.value)):
            return None
        id = self._id(row.value)
        if id is None:
            return None
        version = row.version or version_hash(row.value)
        return SourceRecord(id, version, id, row.occurred_at, None, row.value, deleted=True)

    def _id(self, row: bytes) -> str | None:
        try:
            fields = self._fields.read(row)
        except (TypeError, Undecodable) as exc:
            raise _bad(f"the row cannot be read: {exc}") from exc
        parts = [_text(path, field) for path, field in zip(self._paths, fields, strict=True)]
        if len(parts) > 1:
            return bounded_id(joined(parts))
        if self._match is None:
            return bounded_id(parts[0])
        found = self._match.search(parts[0])
        id = None if found is None else found[1] if self._match.groups else found[0]
        return bounded_id(id) if id else None


class FedSource:
    """`own` is the stream, `feed` the one that tells of its deletes."""

    def __init__(self, own: HttpSource | ChildSource, feed: HttpSource, plan: FeedPlan) -> None:
        self._own, self._feed, self._told = own, feed, Told(plan)

    async def enter(self, watch: Watch) -> bool:
        """As `HttpSource.enter`."""
        return await self._own.enter(watch)

    async def pages(
        self, cursor: bytes | None, watch: Watch, saved: Saved = nothing_saved
    ) -> AsyncGenerator[Page, None]:
        last: Page | None = None
        async with aclosing(self._own.pages(cursor, watch, saved)) as own:
            async for page in own:
                last = page
                yield page if page.stop is None else replace(page, stop=None)
        if last is None:
            return
        async with aclosing(self._deletes(last, watch, saved)) as deletes:
            async for page in deletes:
                yield page
        yield replace(_after(last), stop=last.stop, whole=last.whole)

    async def _deletes(self, last: Page, watch: Watch, saved: Saved) -> AsyncGenerator[Page, None]:
        found = (await saved([RESERVED])).get(RESERVED)
        place = None if found is None else _decoded(found)
        applied, below = (dict(place.applied), place.below) if place is not None else ({}, None)
        async with aclosing(self._feed.pages(None if place is None else place.feed.encode(), watch)) as pages:
            async for page in pages:
                records, refused = self._read(page.records, applied, below)
                applied, behind = _worth_keeping({**applied, **_positions(page)}, page.remember_from)
                stands = Place(decode(page.cursor), applied, _highest(below, behind))
                yield replace(
                    _after(last),
                    records=records,
                    refused=[*page.refused, *refused],
                    skipped=page.skipped,
                    gaps=page.gaps,
                    partitions={RESERVED: msgspec.json.encode(stands)},
                    keyless=True,
                    bare=False,
                )

    def _read(
        self, rows: Sequence[SourceRecord], applied: Mapping[str, int | None], below: int | None
    ) -> tuple[list[SourceRecord], list[Refused]]:
        gone: list[SourceRecord] = []
        refused: list[Refused] = []
        for row in rows:
            if applied.get(_mark(row), UNKNOWN) == row.position or _is_before(row.position, below):
                continue
            try:
                one = self._told.delete(row)
            except BadRecord as exc:
                refused.append(Refused(row.value, exc))
            else:
                gone += [] if one is None else [one]
        return gone, refused


def _after(last: Page) -> Page:
    """A page that leaves the stream's own cursor where its last one put it."""
    return Page((), (), last.cursor, None, last.remember_all, None, bare=True)


def _positions(page: Page) -> dict[str, int | None]:
    return {_mark(row): row.position for row in page.records}


def _worth_keeping(applied: Mapping[str, int | None], lowest: int | None) -> tuple[dict[str, int | None], int | None]:
    """`lowest`: what the next listing asks for. Returns the position before which none is kept, too."""
    kept = {mark: at for mark, at in applied.items() if not _is_before(at, lowest)}
    if len(kept) <= REMEMBERED:
        return kept, lowest
    best = sorted(kept.items(), key=lambda one: float("-inf") if one[1] is None else one[1])[-REMEMBERED:]
    return dict(best), _highest(lowest, best[0][1])


def _is_before(position: int | None, other: int | None) -> bool:
    return position is not None and other is not None and position < other


def _highest(*positions: int | None) -> int | None:
    return max((one for one in positions if one is not None), default=None)


def _mark(row: SourceRecord) -> str:
    return blake2b(f"{row.id}@{row.version}".encode(), digest_size=8).hexdigest()


def _decoded(saved: bytes) -> Place:
    try:
        return msgspec.json.decode(saved, type=Place)
    except msgspec.DecodeError as exc:
        what = f"the saved cursor of the feed cannot be read ({exc}): `ingest checkpoints reset` starts over"
        raise ConfigError(what) from exc


def _text(path: JsonPath, field: Field) -> str:
    if field is None or isinstance(field, Nested):
        what = "is null or missing" if field is None else "is an object or a list"
        raise _bad(f"`deletes.feed.id` ({path}) {what}")
    return str(field)


def _bad(message: str) -> BadRecord:
    return BadRecord(message, stage="validate", code="no_id")
