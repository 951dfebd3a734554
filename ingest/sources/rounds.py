"""A stream that is listed once for each record of another: from one round over the parents to the next. Pure.

A round is complete when every parent of one complete listing of parents is done. What it did not list is gone only
where it lists all parents, and all of each, and nothing in it is in doubt.
"""

from msgspec.structs import replace

from ingest.config.model import Stream
from ingest.sources import Sweep
from ingest.sources.cursor import Cursor, Round, decode
from ingest.sources.times import stamp
from ingest.sources.whole import Past, Wholes

SKIPPED = "a parent of it was skipped (`skip_on`)"


class Rounds:
    """The rules of one stream. `fingerprint`: of what shapes a round."""

    def __init__(self, stream: Stream, fingerprint: str) -> None:
        assert stream.parent is not None
        self._wholes = Wholes(stream)
        self._changed_only = stream.parent.changed_only
        self._fingerprint = fingerprint

    def start(self, saved: bytes | None, now: int) -> tuple[Cursor, Round]:
        """The place that is saved, and the round that goes on, or begins, there. `now`: microseconds since 1970."""
        place = Cursor(self._fingerprint, stamp(now)) if saved is None else decode(saved)
        if place.round is not None and place.fingerprint == self._fingerprint:
            return place, place.round
        return place, self._open(place, now)

    def _open(self, place: Cursor, now: int, *, aside: bool = False) -> Round:
        full = aside or not self._changed_only or place.parents is None
        parents = _from_the_start(place.parents) if full else place.parents
        return Round(stamp(now), parents, full=full, whole=full, aside=aside)

    def again(self, place: Cursor, round: Round, now: int) -> Round:
        """The same from its start."""
        return self._open(place, now, aside=round.aside)

    def sweep(self, round: Round, *, ends: bool = False) -> Sweep | None:
        """What a page of the round means for a sweep."""
        if not (round.whole and self._wholes.sweeps):
            return None
        return self._wholes.sweep(round.started, ends=ends and round.doubt is None, counted=round.counted)

    def under_way(self, place: Cursor, round: Round, now: int) -> bytes:
        return replace(place, fingerprint=self._fingerprint, updated_at=stamp(now), round=round).encode()

    def lacking(self, place: Cursor, round: Round) -> str | None:
        """Why a round that came to its end cannot be believed; the next one begins at the start."""
        return self._wholes.lacking(round.rows, Past(place.rows)) if round.whole else None

    def abandoned(self, place: Cursor, now: int) -> Cursor:
        return replace(place, fingerprint=self._fingerprint, updated_at=stamp(now), round=None)

    def finish(self, place: Cursor, round: Round, now: int) -> tuple[Cursor, Round | None]:
        """The place after a round that is complete, and the round that follows in the same run."""
        place = self.abandoned(place, now)
        if not round.aside:
            place = replace(place, parents=round.parents)
        if round.whole:
            place = replace(place, rows=round.rows)
        if (sweep := self.sweep(round, ends=True)) is not None and sweep.ends:
            place = replace(place, swept=round.started)
        past = Past(place.rows, place.swept)
        if round.whole or not self._wholes.is_due(past, now):
            return place, None
        return place, self._open(place, now, aside=True)


def said(round: Round) -> str:
    """Why it stopped."""
    skipped = f", {round.skipped} of them skipped" if round.skipped else ""
    return f"{'every parent' if round.full else 'every changed parent'} was listed: {round.n}{skipped}"


def _from_the_start(cursor: Cursor | None) -> Cursor | None:
    """One that remembers only how much there was."""
    return None if cursor is None else Cursor(cursor.fingerprint, cursor.updated_at, rows=cursor.rows)
