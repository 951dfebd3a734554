"""`offset` with `overlap`: each page begins a few rows early, which shows whether rows were removed in front of it.

The first row of a page must be one of the page before. Where it is not, the rows between the two slipped to the front:
then we step back, one page at a time, until the two meet again, and read on from there. Nothing is missed, at most read
twice.
"""

from collections.abc import Sequence
from hashlib import blake2b

from msgspec.structs import replace

from ingest.config import model
from ingest.errors import SourceChanged
from ingest.paths import JsonPath
from ingest.sources.fields import FieldReader
from ingest.sources.pagination.counted import Counted
from ingest.sources.pagination.received import Received
from ingest.sources.pagination.token import Stop, Token
from ingest.sources.slices import Undecodable

REMEMBERED = 1000  # rows of a page whose marks are kept; they are part of every saved cursor
RETREATS = 5  # times that we step back from one place


class Overlapping(Counted):
    """`ids`: what identifies a row; none: its bytes do."""

    def __init__(self, config: model.Offset, ids: Sequence[JsonPath]) -> None:
        super().__init__(config)
        self._overlap = config.overlap
        self._fields = FieldReader(ids) if ids else None

    def known(self, token: Token, received: Received) -> int:
        before = set(token.before)
        if not before:
            return 0
        marks = self._marks(received.records)
        return next((n for n, mark in enumerate(marks) if mark not in before), len(marks))

    def after(self, token: Token, received: Received) -> Token | Stop:
        """Where the rows do not meet nothing ends: rows were missed."""
        known, count = self.known(token, received), len(received.records)
        if token.before and token.number and not known:
            return self._back(token)
        expected = token.rows - (token.number or 0)  # rows that we asked for again
        if count and known == count <= expected:
            return Stop("only rows of the page before")
        after = super().after(replace(token, rows=token.number or 0), received)
        if isinstance(after, Stop):
            return after
        early = min(self._overlap, count - 1)  # so that every page goes on, however few rows the API gives
        progress = after.rows > token.far
        return replace(
            after,
            number=after.rows - early,
            before=tuple(self._marks(received.records)[-REMEMBERED:]) if early else (),
            far=0 if progress else token.far,
            retreats=0 if progress else token.retreats,
        )

    def nothing(self, token: Token, n: int) -> Token | Stop:
        return self._back(token) if token.before and token.number else super().nothing(token, n)

    def _back(self, token: Token) -> Token:
        """One page earlier. Raises SourceChanged where that has not helped before."""
        retreats = token.retreats + (0 if token.back else 1)
        number = token.number or 0
        if retreats > RETREATS:
            raise SourceChanged(
                f"incomplete: rows before {number} move faster than they are read, or come in another order each"
                f" time: stepped back {RETREATS} times; ask the API to sort them"
            )
        return replace(
            token,
            number=max(0, number - len(token.before)),
            rows=max(0, number - len(token.before)),
            far=max(token.far, token.rows),
            retreats=retreats,
            back=True,
            moved=True,
        )

    def _marks(self, rows: Sequence[bytes]) -> list[str]:
        """48 bits that tell rows apart, in hex."""
        return [blake2b(self._identity(row), digest_size=6).hexdigest() for row in rows]

    def _identity(self, row: bytes) -> bytes:
        if self._fields is None:
            return row
        try:
            return "\0".join(map(str, self._fields.read(row))).encode()
        except (TypeError, Undecodable, UnicodeDecodeError):
            return row
