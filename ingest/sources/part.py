"""A part of a stream: what stands between two positions, listed beside whoever lists the stream itself.

The API is asked for no more than that, as far as it can be; what it gives beyond is left out here, and counted. Nothing
is concluded from what it does not list.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from ingest.sources import Page, Saved, Watch, nothing_saved
from ingest.sources.children import ChildSource
from ingest.sources.cursor import decode
from ingest.sources.http import HttpSource
from ingest.sources.incremental import Bounds, Stretch


class PartSource:
    """`bounds` are those of `own`, with the same stretch."""

    def __init__(self, own: HttpSource | ChildSource, bounds: Bounds, stretch: Stretch) -> None:
        self._own, self._bounds, self._stretch = own, bounds, stretch

    async def enter(self, watch: Watch) -> bool:
        """As `HttpSource.enter`."""
        return await self._own.enter(watch)

    async def pages(
        self, cursor: bytes | None, watch: Watch, saved: Saved = nothing_saved
    ) -> AsyncGenerator[Page, None]:
        if cursor is not None and self._is_done(cursor):
            yield Page((), (), cursor, None, False, stop="it was listed before")
            return
        async with aclosing(self._own.pages(cursor, watch, saved)) as pages:
            async for page in pages:
                yield self._inside(page)

    def _is_done(self, saved: bytes) -> bool:
        cursor = decode(saved)
        if cursor.listing is not None or cursor.round is not None:
            return False
        mark = self._bounds.parse(cursor.high_water)
        return mark is None or not self._bounds.bounded or mark >= self._stretch.end

    def _inside(self, page: Page) -> Page:
        records = [record for record in page.records if self._bounds.holds(record.position)]
        return replace(
            page,
            records=records,
            skipped=page.skipped + len(page.records) - len(records),
            remember_all=False,
            sweep=None,
            whole=False,
            listed=None,
        )
