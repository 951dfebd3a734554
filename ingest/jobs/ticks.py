"""When a schedule ticks. Pure: the same answers on every replica, at any time.

A tick is a moment, in seconds since 1970, exact to a millisecond; it is the identity of what fires. No answer costs
more the more ticks there are: a schedule that missed a hundred thousand is as quickly decided as one that missed two.
"""

import math
from hashlib import blake2b
from typing import Protocol

SMALLEST = 0.001  # seconds: no two ticks of a schedule are nearer to each other


class Timing(Protocol):
    """The ticks of a schedule, strictly increasing."""

    def after(self, moment: float) -> float | None:
        """The first tick later than `moment`; None: there is none in our time."""

    def until(self, moment: float) -> float | None:
        """The last tick that is not later than `moment`."""

    def count(self, since: float, until: float) -> int:
        """How many ticks are later than `since` and not later than `until`."""


class Interval:
    """Every so many seconds, counted from 1970 and not from the start of a process. `id` gives it a phase of its own,
    so that schedules of one interval do not all tick at once."""

    def __init__(self, seconds: float, id: str) -> None:
        self.seconds = seconds
        self._every = round(seconds * 1000)  # milliseconds
        self._phase = spread(id, self._every)

    def after(self, moment: float) -> float | None:
        return self._tick(self._number(moment) + 1)

    def until(self, moment: float) -> float | None:
        return self._tick(self._number(moment))

    def count(self, since: float, until: float) -> int:
        return max(0, self._number(until) - self._number(since))

    def _number(self, moment: float) -> int:
        """Of the last tick that is not later."""
        return (milliseconds(moment) - self._phase) // self._every

    def _tick(self, number: int) -> float:
        return (number * self._every + self._phase) / 1000


def before(timing: Timing, tick: float) -> float | None:
    """The tick before this one."""
    return timing.until(tick - SMALLEST)


def period(timing: Timing, tick: float) -> float:
    """Seconds from this tick to the next."""
    following = timing.after(tick)
    return math.inf if following is None else following - tick


def jittered(timing: Timing, id: str, tick: float, jitter: float) -> float:
    """When what this tick starts may begin, alike on all replicas: at most `jitter` seconds later, or half a period."""
    most = milliseconds(min(jitter, period(timing, tick) / 2))
    return tick if most <= 0 else (milliseconds(tick) + spread(f"{id} {milliseconds(tick)}", most)) / 1000


def spread(text: str, below: int) -> int:
    """A number from 0 on that is smaller than `below`, evenly spread over all texts."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % below


def milliseconds(moment: float) -> int:
    """Down to the millisecond; what floating point adds to a whole one or takes away from it does not count."""
    return math.floor(round(moment * 1000, 3))
