"""Whether a source counts as down: deciding, without doing. Times are of the monotonic clock.

Closed: requests go. Open, after a request has used up its tries and nothing of the source answered meanwhile: none
goes for a while, which grows. Half open: one goes, the probe; its answer closes the breaker, its failure opens it for
longer.

An API that answers is not down, whatever it answers, but for its 5xx; and a 5xx that only one of several streams gets
is that stream's own trouble.
"""

import random
from collections.abc import Callable
from enum import IntEnum

FIRST, LONGEST = 1.0, 60.0  # seconds for which it is open; twice as long every time
JITTER = 0.1  # of that
FEWEST = 3  # failures in a row


class State(IntEnum):
    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self.state = State.CLOSED
        self.until = self.since = float("-inf")  # of being open; of the first failure
        self.failures = 0  # in a row, of any stream
        self.streams: set[str] = set()  # that ask
        self._alive_at = float("-inf")
        self._failing: set[str] = set()
        self._unreachable = False
        self._opened = 0  # times in a row

    def may_go(self, now: float) -> bool:
        """A request may go; where the state is half open then, it is the probe. False: not now, see `state`."""
        if self.state is State.CLOSED:
            return True
        if self.state is State.OPEN and now >= self.until:
            self.state = State.HALF_OPEN
            return True
        return False

    def answered(self, now: float) -> None:
        self._alive_at = now
        self.failures = self._opened = 0
        self._failing.clear()
        self.state = State.CLOSED

    def failed(self, stream: str, now: float, *, unreachable: bool, probe: bool) -> None:
        """No answer, or a 5xx. `unreachable`: not even a connection."""
        if not self.failures:
            self.since = now
        self.failures += 1
        self._failing.add(stream)
        self._unreachable = unreachable
        if probe:
            self._open(now)

    def used_up(self, began: float, now: float, asked: float) -> None:
        """A request that began then gives up. `asked`: seconds that the API asked to be left alone."""
        answered_meanwhile = self._alive_at >= began
        whole = self._unreachable or len(self._failing) > 1 or len(self.streams) == 1
        if self.state is State.CLOSED and self.failures >= FEWEST and whole and not answered_meanwhile:
            self._open(now, asked)

    def abandoned(self, now: float) -> None:
        """The probe ended without having learnt anything: the next may try."""
        self.state, self.until = State.OPEN, now

    def _open(self, now: float, asked: float = 0.0) -> None:
        own = min(LONGEST, FIRST * 2.0**self._opened) * self._uniform(1 - JITTER, 1 + JITTER)
        self.state, self.until = State.OPEN, now + max(own, asked)
        self._opened = min(self._opened + 1, 10)
