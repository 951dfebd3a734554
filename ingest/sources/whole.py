"""Listings of everything: whether what came may be believed, and whether what did not come is gone. Pure.

A delete is concluded only from one complete enumeration in which nothing is in doubt; a listing that holds less than it
should is incomplete, whatever it said at its end.
"""

from typing import NamedTuple

from ingest.config.model import Stream
from ingest.sources import Sweep
from ingest.sources.cursor import Listing
from ingest.sources.pagination import is_counted
from ingest.sources.times import MICROS, parse_rfc3339


class Past(NamedTuple):
    """What earlier complete listings told."""

    rows: int | None = None  # records in the last one
    swept: str | None = None  # when the last sweep began from which deletes were concluded (RFC 3339)


class Wholes:
    """The rules of one stream. `part`: of the listing of one parent, which decides nothing by itself."""

    def __init__(self, stream: Stream, *, part: bool = False) -> None:
        self.part = part
        self._sweep = stream.deletes.sweep if stream.deletes else None
        self._expect = stream.expect
        self._paginate = stream.paginate

    @property
    def sweeps(self) -> bool:
        return self._sweep is not None

    def is_due(self, past: Past, now: int) -> bool:
        """Whether a sweep of its own follows. `now`: microseconds since 1970."""
        if self._sweep is None or self.part:
            return False
        return past.swept is None or parse_rfc3339(past.swept, None) + self._sweep.every * MICROS <= now

    def lacking(self, rows: int, past: Past) -> str | None:
        """Why a whole listing of so many records cannot be believed."""
        if self.part:
            return None
        before = past.rows or 0
        least = self._expect.min_records if self._expect else None
        if rows < (least or 0):
            return f"incomplete: {rows} records, fewer than expect.min_records ({least})"
        if not rows and before and least is None:
            return (
                f"incomplete: no records, where there were {before}; if that can be, write `expect: {{min_records: 0}}`"
            )
        drop = self._expect.max_drop if self._expect else None
        if drop is not None and rows < before * (1 - drop):
            return f"incomplete: {rows} records after {before}, a drop by more than expect.max_drop ({drop:.0%})"
        return None

    def past(self, listing: Listing, sweep: Sweep | None, past: Past) -> Past:
        """What is told of earlier ones once the listing is complete. `sweep`: as `page` says of its last page."""
        if listing.whole and not self.part:
            past = past._replace(rows=listing.rows)
        return past._replace(swept=listing.started) if sweep is not None and sweep.ends else past

    def page(self, listing: Listing, *, ends: bool) -> Sweep | None:
        """What a page of the listing means for a sweep. `ends`: it is the last one, and the listing is believed."""
        if not listing.sweep or self.part:
            return None
        counted = is_counted(self._paginate, listing.page)
        return self.sweep(listing.started, ends=ends and listing.doubt is None, counted=counted)

    def sweep(self, started: str, *, ends: bool, counted: bool) -> Sweep:
        return Sweep(parse_rfc3339(started, None), ends=ends, twice=counted)
