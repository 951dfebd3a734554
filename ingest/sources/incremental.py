"""Where a run starts and how far the cursor may move. Pure: positions in, positions out.

The lower bound is inclusive and frozen for a listing. The high-water mark moves per page only while ascending order is
verified, otherwise when the listing is complete; it never passes now − lag.
"""

from collections.abc import Sequence
from operator import gt

import msgspec

from ingest.config.incremental import UNFILTERED, Incremental
from ingest.errors import SourceChanged
from ingest.sources import SourceRecord, times


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a stream stands. Positions are microseconds since 1970, or the integers themselves."""

    high_water: int | None = None  # everything up to here was published, as far as the API served it
    reached: int | None = None  # the highest position of the listing under way, at most now − lag
    last: int | None = None  # the position of the last row, to verify the order
    disorder: bool = False  # a row came before its turn: the mark moves at the end only


class Bounds:
    """The rules of one stream. `micros`: positions are instants."""

    def __init__(self, config: Incremental) -> None:
        self._config = config
        self.micros = config.type != "integer"
        self._lookback = round(config.lookback * times.MICROS) if self.micros else int(config.lookback)
        self._lag = round(config.lag * times.MICROS)
        self._parse = times.parser((config.format, "rfc3339"), config.timezone) if self.micros else times.parse_integer

    @property
    def lists_everything(self) -> bool:
        """Every run reads the whole listing, since the API cannot be asked for less."""
        return self._config.since is None and self._config.type != "feed"

    def since(self, high_water: int | None) -> str | None:
        """What the lower bound's parameter says, None: the parameter is left out."""
        config = self._config.since
        if config is None:
            return None
        first = None if config.first in (None, UNFILTERED) else str(config.first)
        if high_water is None:
            return first
        bound = high_water - self._lookback
        if first is not None and self._parse(first) > bound:
            return first
        if not self.micros:
            return str(bound)
        return times.render(max(bound, times.EARLIEST), self._config.format, self._config.timezone)

    def advance(self, progress: Progress, records: Sequence[SourceRecord], asked: int, now: int) -> Progress:
        """A page was asked for at `asked` and came at `now` (microseconds since 1970).

        What counts for the mark is the time of asking: rows that turned visible meanwhile may be missing."""
        reached, last, disorder = progress.reached, progress.last, progress.disorder
        positions = [record.position for record in records if record.position is not None]
        ceiling = asked - self._lag if self.micros else None
        if ceiling is not None and positions and max(positions) > ceiling:
            # published, but the cursor stays behind them; no violation of the order
            self._check_future(records, max(ceiling, now))
            positions = [position for position in positions if position <= ceiling]
        ascending = self._config.order == "asc"
        if positions:
            if ascending:
                in_turn = positions if last is None else [last, *positions]
                disorder = disorder or any(map(gt, in_turn, in_turn[1:]))
                last = positions[-1]
            reached = _highest(reached, max(positions))
        high_water = progress.high_water
        if ascending and not disorder:
            high_water = _highest(high_water, reached)
        return Progress(high_water, reached, last, disorder)

    def _check_future(self, records: Sequence[SourceRecord], now: int) -> None:
        if self._config.on_future != "fail":
            return
        for record in records:
            if record.position is not None and record.position > now:
                raise SourceChanged(
                    f"record {record.id}: {self._config.field} is {times.rfc3339(record.position)}, in the future"
                )

    def finish(self, progress: Progress) -> Progress:
        """The listing is complete."""
        return Progress(high_water=_highest(progress.high_water, progress.reached))

    def remember_from(self, progress: Progress) -> int | None:
        """The lower bound that the next run will really send, as far as it can be known now; it can only grow.

        None: it will send none, or nothing is known yet."""
        mark = _highest(progress.high_water, progress.reached)
        if mark is None or (sent := self.since(mark)) is None:
            return None
        return self._parse(sent)

    def ends_feed(self, progress: Progress, records: Sequence[SourceRecord]) -> bool:
        """A feed without a lower bound of its own ends with a page that lies wholly below what is known."""
        if self._config.type != "feed" or self._config.since is not None or progress.high_water is None:
            return False
        bound = progress.high_water - self._lookback
        positions = [r.position for r in records if r.position is not None]
        return bool(positions) and max(positions) < bound

    def show(self, position: int | None) -> str | int | None:
        """A position for people and for the saved cursor."""
        return times.rfc3339(position) if position is not None and self.micros else position

    def parse(self, shown: str | int | None) -> int | None:
        """The reverse of `show`. Raises ValueError."""
        if shown is None:
            return None
        return times.parse_rfc3339(str(shown), None) if self.micros else times.parse_integer(str(shown))


def _highest(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)
