"""Where a run starts and how far the cursor may move. Pure: positions in, positions out.

The lower bound is inclusive and frozen for a listing. The high-water mark moves per page only while ascending order is
verified, otherwise when the listing is complete; it never passes now − lag.
"""

from collections.abc import Collection, Sequence
from operator import gt
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ingest.config.incremental import UNFILTERED, Incremental, Since
from ingest.errors import SourceChanged
from ingest.sources import SourceRecord, times

LONGER = 2 * 3600 * times.MICROS  # by how much a day may be longer than others
QUARTER = 900 * times.MICROS  # clocks are set back by no less


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a stream stands. Positions are microseconds since 1970, or the integers themselves."""

    high_water: int | None = None  # everything up to here was published, as far as the API served it
    reached: int | None = None  # the highest position of the listing under way, at most now − lag
    last: int | None = None  # the position of the last row, to verify the order
    disorder: bool = False  # a row came before its turn: the mark moves at the end only
    mark: str | None = None  # what the API named last as the start of the next run
    first_ceiling: int | None = None  # how far the cursor might have moved with the first page of the listing
    ceiling: int | None = None  # the same of the first page with rows beyond it; behind those, rows may still turn up


class Window(NamedTuple):
    """What one listing asks for, frozen for as long as it lasts: both ends as they are sent, None where they are not.

    `end`: where the mark stands when the listing is complete, even without rows; None: where its records say.
    `follows`: another window begins there."""

    since: str | None
    until: str | None = None
    end: int | None = None
    follows: bool = False


class Stretch(NamedTuple):
    """A part of a stream by position: from `start` to before `end`."""

    start: int
    end: int


class Bounds:
    """The rules of a stream whose cursor is a field of its records. `micros`: positions are instants.

    `placeholders`: those of its requests; they take a bound too. `stretch`: only that part of the stream is listed."""

    def __init__(self, config: Incremental, placeholders: Collection[str] = (), stretch: Stretch | None = None) -> None:
        self._config, self._stretch = config, stretch
        self._since = config.since
        if self._since is None and not {"cursor", "window.start"}.isdisjoint(placeholders):
            self._since = Since()
        self.bounded = config.until is not None or "window.end" in placeholders
        self.micros = config.type != "integer"
        first = None if self._since is None or stretch is not None else self._since.first
        self._first = None if first in (None, UNFILTERED) else str(first)
        lookback = 0 if stretch is not None else config.lookback
        self._lookback = round(lookback * times.MICROS) if self.micros else int(lookback)
        self._lag = round(config.lag * times.MICROS)
        self._window = None if config.window is None else round(config.window * times.MICROS)
        self._unit = times.unit(config.format) if self.micros else 1
        self._kept = stretch
        if stretch is not None and self.micros and times.is_bare_date(config.format) and config.timezone is None:
            # nobody said whose days they are: the API's own begin and end less than a day from ours
            self._kept = Stretch(stretch.start - times.DAY, stretch.end + times.DAY)
        self._parse = times.parser((config.format, "rfc3339"), config.timezone) if self.micros else times.parse_integer

    @property
    def lists_everything(self) -> bool:
        """Every run reads the whole listing, since the API cannot be asked for less."""
        return self._since is None and self._config.type in ("timestamp", "integer")

    def since(self, high_water: int | None, *, again: bool = True) -> str | None:
        """The lower bound as it is sent, None: it is left out. `again`: with what is read once more."""
        config, first = self._since, self._first
        if config is None:
            return None
        if high_water is None and self._stretch is not None:
            high_water = self._stretch.start
        if high_water is None:
            return first
        bound = high_water - (self._lookback if again else 0)
        if first is not None and self._parse(first) > bound:
            return first
        if config.is_ == "exclusive":
            bound -= self._unit
        return self._render(bound)

    def before(self, records: Sequence[SourceRecord], since: str | None) -> int:
        """How many of them lie before the lower bound that was sent."""
        if since is None or self._since is None:  # a mark is no bound
            return 0
        bound = self._parse(since)
        return sum(record.position is not None and record.position < bound for record in records)

    def window(self, high_water: int | None, now: int, *, again: bool = True) -> Window:
        """What the listing that begins at `now` (microseconds since 1970) asks for. `again`: the first of a run."""
        if self._stretch is not None and high_water is None:
            high_water = self._stretch.start
        since = self.since(high_water, again=again)
        if not self.bounded:
            return Window(since)
        limit = now - self._lag if self._stretch is None else self._stretch.end
        start = _highest(high_water, self._first_asked(since))
        if start is not None:
            limit = max(limit, start)  # a lag that has grown, or a first bound that lies ahead
        end = limit if self._window is None or start is None else min(limit, start + self._window)
        if self._config.until_is == "exclusive":
            whole = self._truncated(end)
            last = self._stretch is not None and end == limit  # nothing comes after it that would ask for the rest
            enough = whole == end if last else start is None or whole > start
            if enough:
                return Window(since, self._render(end), whole, follows=end < limit)
            beyond = end if start is None else max(end, start + 1)
        else:
            beyond = end
        return Window(since, self._upwards(beyond), min(end, now - self._lag), follows=end < limit)

    def _first_asked(self, since: str | None) -> int | None:
        """The first position that is asked for with the lower bound."""
        if since is None:
            return None
        exclusive = self._since is not None and self._since.is_ == "exclusive"
        return self._parse(since) + (self._unit if exclusive else 0)

    def leaves_nothing(self, since: str, until: str | None) -> bool:
        """Whether nothing lies between two bounds as they are sent."""
        if until is None or (first := self._first_asked(since)) is None:
            return False
        return self._parse(until) < first + (self._config.until_is == "exclusive")

    def _upwards(self, position: int) -> str:
        """Rounded up to what can be sent: an upper bound that is truncated leaves rows out."""
        for step in (0, self._unit, self._unit + LONGER):
            if self._truncated(position + step) >= position:
                break
        return self._render(position + step)

    def _truncated(self, position: int) -> int:
        if not self.micros:
            return position
        return times.truncated(max(position, times.EARLIEST), self._config.format, self._config.timezone)

    def exact(self, position: int) -> int:
        """A position near this one that can be sent as it is, and that nobody can read as another."""
        found = self._truncated(position + self._unit // 2)
        while self.micros and times.is_repeated(found, self._config.format, self._config.timezone):
            found = self._truncated(found - QUARTER)
        return found

    def holds(self, position: int | None) -> bool:
        """Whether it lies in the stretch, where there is one. What has no position lies in none."""
        kept = self._kept
        return kept is None or (position is not None and kept.start <= position < kept.end)

    def is_behind(self, progress: Progress) -> bool:
        """In ascending order everything of the stretch was listed."""
        kept, last = self._kept, progress.last
        return kept is not None and last is not None and not progress.disorder and last >= kept.end

    def _render(self, position: int) -> str:
        if not self.micros:
            return str(position)
        return times.render(max(position, times.EARLIEST), self._config.format, self._config.timezone)

    def advance(
        self, progress: Progress, records: Sequence[SourceRecord], asked: int, now: int, end: int | None = None
    ) -> Progress:
        """A page was asked for at `asked` and came at `now` (microseconds since 1970). `end`: of the window.

        What counts for the mark is the time of asking: rows that turned visible meanwhile may be missing."""
        reached, last, disorder = progress.reached, progress.last, progress.disorder
        positions = [record.position for record in records if record.position is not None]
        ascending = self._config.order == "asc"
        first, held = progress.first_ceiling, progress.ceiling
        if self.micros:
            own = self.ceiling(asked)
            first = own if first is None else first
            ceiling = min(own, own if held is None else held) if ascending else min(own, first)
            if positions and max(positions) > ceiling:
                # published, but the cursor stays behind them; no violation of the order
                self._check_future(records, max(own, now))
                positions = [position for position in positions if position <= ceiling]
                held = ceiling
        if end is not None:  # beyond it not everything was asked for
            positions = [position for position in positions if position <= end]
        if positions:
            if ascending:
                in_turn = positions if last is None else [last, *positions]
                disorder = disorder or any(map(gt, in_turn, in_turn[1:]))
                last = positions[-1]
            reached = _highest(reached, max(positions))
        high_water = progress.high_water
        if ascending and not disorder:
            high_water = _highest(high_water, reached)
        return Progress(high_water, reached, last, disorder, progress.mark, first, held)

    def listed_again(self, reached: int, records: Sequence[SourceRecord], before: int | None, tail: int) -> int:
        """How many of the last rows, in ascending order, come again in a listing that begins where this one has come.
        `before`: where it had come before these `records`, when it was `tail` of them."""
        if (sent := self.since(reached, again=False)) is None:
            return 0
        bound, count = self._parse(sent), 0
        for record in reversed(records):
            if record.position is not None and record.position < bound:
                return count
            count += record.position is not None
        return count + (tail if before is not None and before >= bound else 0)

    def settled(self, record: SourceRecord, asked: int) -> bool:
        """Whether the cursor may pass a record of a page that was asked for at `asked`."""
        return record.position is None or record.position <= self.ceiling(asked)

    def ceiling(self, asked: int) -> int:
        """How far the cursor may move at most with what was asked for at `asked`."""
        return asked - self._lag

    def _check_future(self, records: Sequence[SourceRecord], now: int) -> None:
        if self._config.on_future != "fail":
            return
        for record in records:
            if record.position is not None and record.position > now:
                raise SourceChanged(
                    f"record {record.id}: {self._config.field} is {times.rfc3339(record.position)}, in the future"
                )

    def finish(self, progress: Progress, end: int | None = None) -> Progress:
        """The listing is complete. `end`: of its window."""
        return Progress(_highest(_highest(progress.high_water, _settled(progress)), end), mark=progress.mark)

    def remember_from(self, progress: Progress) -> int | None:
        """The lower bound that the next run will really send, as far as it can be known now; it can only grow.

        None: it will send none, or nothing is known yet."""
        mark = _highest(progress.high_water, _settled(progress))
        if self._config.type == "keyset":
            return mark
        if mark is None or (sent := self.since(mark)) is None:
            return None
        return self._parse(sent)

    def may_end_early(self, progress: Progress) -> bool:
        """A listing that begins here may leave out what is known."""
        return self._config.type == "feed" and self._since is None and progress.high_water is not None

    def ends_feed(self, progress: Progress, records: Sequence[SourceRecord]) -> bool:
        """A feed without a lower bound of its own ends with a page that lies wholly below what is known."""
        if not self.may_end_early(progress) or progress.high_water is None:
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


def begun_again(progress: Progress) -> Progress:
    """At the last value: what comes behind it is asked for once more."""
    return replace(progress, last=None, first_ceiling=None, ceiling=None)


def _settled(progress: Progress) -> int | None:
    """How far a listing has come. Where rows come in no order, one that turned up since the first page was asked for
    may have its place on a page that was read before."""
    if not progress.disorder or progress.reached is None or progress.first_ceiling is None:
        return progress.reached
    return min(progress.reached, progress.first_ceiling)


def _highest(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)
