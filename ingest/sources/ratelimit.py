"""A configured rate as slots in time: pure arithmetic.

One slot every interval, each used by one request, at its time or at most a window later. So in any time t there leave
at most rate · t + burst requests, from whatever process (the generic cell rate algorithm of ATM, ITU-T I.371, with the
slots given away in advance). With a burst of 1 there is no room for a request that is late: then the window is a small
part of the interval, and two requests may come closer by as much.
"""

import math
from typing import NamedTuple

BURST = 0.1  # seconds: what may leave at once where no burst is configured, one request at least
AHEAD = 0.5  # seconds: what a process takes at once that has the source for itself
SHARED = 0.1  # seconds: the same where others poll the source too
LATE = 0.05  # of the interval: how late a request may be that is not part of a burst …
LATE_SECONDS = 0.025  # … or so much, where that is more, but never more than half of the interval


class Spacing(NamedTuple):
    interval: float  # seconds between slots
    window: float  # seconds after its time for which a slot may be used
    credit: float  # seconds for which slots that nobody took are kept

    @property
    def few(self) -> int:
        """How many slots are taken at most where others take some too."""
        return max(1, int(SHARED / self.interval))


def spacing(rate: float, burst: int | None) -> Spacing:
    """`rate`: requests a second. `burst`: how many may leave at once; None: a tenth of a second's worth."""
    interval = 1.0 / rate
    late = min(interval / 2, max(interval * LATE, LATE_SECONDS))
    burst = burst or max(1, int(rate * BURST))
    if burst == 1:
        return Spacing(interval, late, 0.0)
    window = (burst - 1) * interval
    return Spacing(interval, window, window - late)


class Slot(NamedTuple):
    at: float  # of the monotonic clock
    until: float  # later it is lost


class Block:
    """Slots that were taken: `count` of them, the first at `first`."""

    def __init__(self, first: float, count: int, interval: float, window: float) -> None:
        self._first, self._count, self._interval, self._window = first, count, interval, window
        self._next = 0
        self.used = 0

    @property
    def used_up(self) -> bool:
        """Every slot was used."""
        return self.used == self._count

    def next(self, now: float) -> Slot | None:
        """The next slot that is not lost yet; None: no more. Each is given once."""
        self._next = max(self._next, math.ceil((now - self._window - self._first) / self._interval))
        if self._next >= self._count:
            return None
        at = self._first + self._next * self._interval
        self._next += 1
        self.used += 1
        return Slot(at, at + self._window)
