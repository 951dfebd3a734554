"""When a cron expression fires, in a time zone whose clocks are set forward and back.

* One for every hour of the day (`*/15 * * * *`) goes by elapsed time: it fires whenever the clock on the wall shows a
  time that matches, so not in an hour that is left out, and in both of an hour that comes twice.
* Any other goes by the clock on the wall, and fires once for each time that it names. One that is left out fires when
  the clock is set forward, one that comes twice the first time, unless `gap` and `fold` say otherwise.
* Where a whole day is left out (Apia, 2011-12-30) nothing fires for it.

The language is Vixie cron's, as Debian reads it. Times of day are worked out on dates, and only then turned into
moments: two times of one zone cannot be compared or subtracted where its clock is set.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, tzinfo
from functools import lru_cache
from typing import Literal

from cronsim import CronSim, CronSimError

Gap = Literal["shift", "skip"]
Fold = Literal["first", "last", "both"]

FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
MACROS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
DAY = 86_400  # seconds
DAY_LEFT_OUT = DAY // 2  # seconds: so long a gap is no summer time
HORIZON = 50 * 366  # days in which a date is looked for: what matches none of them never fires
COUNTED = 1_000  # days, the last ones, in which ticks are counted
BOTH: tuple[Literal[0], Literal[1]] = (0, 1)
_1970 = date(1970, 1, 1).toordinal()
_SOME_TIME = datetime(2000, 1, 1)


class Cron:
    """The ticks of an expression, see `ticks.Timing`. Raises ValueError, in the words of someone who edits a file."""

    def __init__(self, text: str, zone: tzinfo = UTC, gap: Gap = "shift", fold: Fold = "first") -> None:
        self.text, self.zone = " ".join(text.split()), zone
        self._fields = _fields(self.text)
        hours, minutes = self._fields.hours, self._fields.minutes
        self.elapsed = len(hours) == 24
        self.gap, self.fold = ("skip", "both") if self.elapsed else (gap, fold)
        self.slots = tuple(hour * 3600 + minute * 60 for hour in sorted(hours) for minute in sorted(minutes))
        """Times of day, in seconds."""
        self._of_day = lru_cache(maxsize=8)(self._ticks)
        if not any(map(self.matches, map(date.fromordinal, range(_1970, _1970 + HORIZON)))):
            raise ValueError(f"`{self.text}` never fires: there is no such date")

    def after(self, moment: float) -> float | None:
        today = self._today(moment)
        for day in range(today - 1, today + HORIZON):
            if found := self._after(day, moment):  # the next day may begin before this one ends: a clock is set back
                return float(min(found + self._after(day + 1, moment)))
        return None

    def until(self, moment: float) -> float | None:
        today = self._today(moment)
        for day in range(today + 1, today - HORIZON, -1):
            if found := self._until(day, moment):
                return float(max(found + self._until(day - 1, moment)))
        return None

    def count(self, since: float, until: float) -> int:
        """Those of more than COUNTED days are not all counted."""
        last = self._today(until) + 1
        first = max(self._today(since) - 1, last - COUNTED)
        total, later = 0, None
        for day in range(last, first - 1, -1):
            base, slots = self._of_day(day)
            low, high = bisect_right(slots, since - base), bisect_right(slots, until - base)
            if low < high:
                total += high - low - (base + slots[high - 1] == later)  # the clock was set forward at midnight
                later = base + slots[low]
        return total

    def matches(self, day: date) -> bool:
        return day.month in self._fields.months and self._fields.match_day(day)

    def words(self) -> str:
        """In plain English."""
        return self._fields.explain()

    def moments(self, wall: int) -> Sequence[int]:
        """When it fires for what the clock on the wall shows, in seconds: never, once or twice."""
        earlier, later = self.offset(wall, 0), self.offset(wall, 1)
        if earlier == later:
            return (wall - earlier,)
        if earlier > later:
            twice = (wall - earlier, wall - later)
            return {"first": twice[:1], "last": twice[1:], "both": twice}[self.fold]
        if self.gap == "skip" or later - earlier >= DAY_LEFT_OUT:
            return ()
        return (self._set_forward(wall - later, wall - earlier),)

    def moments_of(self, day: int) -> list[int]:
        """When it fires for a date (its ordinal)."""
        base, slots = self._of_day(day)
        return [base + slot for slot in slots]

    def odd(self, day: int) -> tuple[list[int], list[int]]:
        """Of a date, times at which it should fire: those that its clock never shows, and those that it shows twice."""
        if not self.matches(date.fromordinal(day)):
            return [], []
        walls = [(day - _1970) * DAY + slot for slot in self.slots]
        by = [(wall, self.offset(wall, 0) - self.offset(wall, 1)) for wall in walls]
        return [wall for wall, back in by if back < 0], [wall for wall, back in by if back > 0]

    def offset(self, wall: int, fold: Literal[0, 1]) -> int:
        """From UTC, in seconds. The two of a time that is left out are those before and after (PEP 495)."""
        at = datetime.fromtimestamp(wall, UTC).replace(tzinfo=self.zone, fold=fold).utcoffset()
        assert at is not None
        return int(at.total_seconds())

    def _ticks(self, day: int) -> tuple[int, Sequence[int]]:
        """Those of a date (its ordinal): what all have in common, and what each adds to it."""
        if not self.matches(date.fromordinal(day)):
            return 0, ()
        midnight = (day - _1970) * DAY
        offsets = {self.offset(midnight + at, fold) for at in (0, DAY) for fold in BOTH}
        if len(offsets) == 1:
            return midnight - offsets.pop(), self.slots
        return 0, sorted({moment for slot in self.slots for moment in self.moments(midnight + slot)})

    def _after(self, day: int, moment: float) -> list[int]:
        base, slots = self._of_day(day)
        at = bisect_right(slots, moment - base)
        return [base + slots[at]] if at < len(slots) else []

    def _until(self, day: int, moment: float) -> list[int]:
        base, slots = self._of_day(day)
        at = bisect_right(slots, moment - base)
        return [base + slots[at - 1]] if at else []

    def _today(self, moment: float) -> int:
        return datetime.fromtimestamp(moment, self.zone).toordinal()

    def _set_forward(self, before: int, after: int) -> int:
        """The moment between these two at which the clock is."""

        def is_set(moment: int) -> bool:
            return datetime.fromtimestamp(moment, self.zone).utcoffset() == offset

        offset = datetime.fromtimestamp(after, self.zone).utcoffset()
        return before + bisect_left(range(before, after + 1), True, key=is_set)


def days_that_change(cron: Cron, since: float, days: int) -> Iterator[int]:
    """The dates (ordinals) from `since` on, so many days, on which the clock on the wall is set and `cron` may fire."""
    today = datetime.fromtimestamp(since, cron.zone).toordinal()
    for day in range(today, today + days):
        midnight = (day - _1970) * DAY
        if cron.offset(midnight, 0) != cron.offset(midnight + DAY, 1) and cron.matches(date.fromordinal(day)):
            yield day


def _fields(text: str) -> CronSim:
    parts = text.split(" ")
    if text in MACROS:
        raise ValueError(f"`{text}` is no cron expression; write {MACROS[text]}")
    if len(parts) != len(FIELDS):
        seconds = ", and none of them for seconds" if len(parts) == 6 else ""
        raise ValueError(
            f"`{text[:60]}` has {len(parts)} field{'s' * (len(parts) != 1)}; a cron expression has five{seconds}:"
            f" minute, hour, day of the month, month, day of the week"
        )
    for n, part in enumerate(parts):
        alone = ["*"] * len(FIELDS)
        alone[n] = part
        try:
            CronSim(" ".join(alone), _SOME_TIME)
        except (CronSimError, ValueError, AssertionError) as exc:
            raise ValueError(f"`{text[:60]}`: `{part[:20]}` is no {FIELDS[n]}") from exc
    try:
        return CronSim(text, _SOME_TIME)
    except CronSimError as exc:
        raise ValueError(f"`{text}` never fires: there is no such date") from exc


def joined(text: str) -> str | None:
    """What is not obvious of an expression that names days of the month and days of the week, else None."""
    _, _, days, _, weekdays = text.split()
    if "*" in (days, weekdays):
        return None
    if days.startswith("*") or weekdays.startswith("*"):
        return f"only on days that match both: day of the month `{days}`, and day of the week `{weekdays}`"
    return f"on every day that matches either: day of the month `{days}`, or day of the week `{weekdays}`"
