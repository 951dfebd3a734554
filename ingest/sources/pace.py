"""How fast we may go for what an API's answers say: pure arithmetic, on the monotonic clock.

When the API throttles us, what may be under way and what may leave in a second are halved, and grow back in equal steps
(additive increase, multiplicative decrease: Chiu and Jain, 1989). When little remains of a quota, it is spread over the
time until it is whole again.
"""

from collections.abc import Iterable

from ingest.sources.quota import Quota

SLOWEST = 1 / 64  # of the configured rate; halving stops there
RECOVERY = 30.0  # seconds from nothing to the configured rate
LOW = 0.05  # of a quota: when no more than this remains, it is spread
FAR = 3600.0  # seconds: a quota that is whole again only later is not spread
NEVER = float("-inf")


class Pace:
    """`concurrency`: how many requests may be under way; `rate`: how many may leave in a second, None: no limit."""

    def __init__(self, concurrency: int, rate: float | None) -> None:
        self._concurrency, self._rate = concurrency, rate
        self._width = float(concurrency)
        self._speed = 1.0  # what part of the rate we use
        self._cut_at = self._grown_at = self._departed_at = self._spread_until = NEVER
        self._spread = 0.0  # seconds between requests, until then

    @property
    def width(self) -> int:
        """How many requests may be under way."""
        return int(self._width)

    @property
    def rate(self) -> float | None:
        """How many may leave in a second."""
        return None if self._rate is None else self._rate * self._speed

    def next(self, now: float) -> float:
        """When the next request may leave."""
        spread = self._spread if now < self._spread_until else 0.0
        slowed = 1 / (self._rate * self._speed) if self._rate is not None and self._speed < 1 else 0.0
        return self._departed_at + max(spread, slowed)

    def departed(self, now: float) -> None:
        self._departed_at = now

    def throttled(self, departed_at: float, now: float) -> bool:
        """Slow down; false for a request that had left before we slowed down last."""
        if departed_at < self._cut_at:
            return False
        self._grow(now)
        if self._rate is not None:
            self._speed = max(SLOWEST, self._speed / 2)
        self._width = max(1.0, self._width / 2)
        self._cut_at = self._grown_at = now
        return True

    def answered(self, now: float) -> bool:
        """Grow; false when we go at full speed."""
        if self._speed == 1 and self._width == self._concurrency:
            return False
        self._width = min(float(self._concurrency), self._width + 1 / self._width)
        self._grow(now)
        return True

    def told(self, quotas: Iterable[Quota], under_way: int, now: float) -> None:
        """What an answer says of what remains, `under_way` other requests being not answered yet."""
        for quota in quotas:
            self._spread = _interval(quota, under_way, self._concurrency)
            self._spread_until = now + quota.seconds
            if self._spread:
                return

    def _grow(self, now: float) -> None:
        self._speed = min(1.0, self._speed + (now - self._grown_at) / RECOVERY) if self._speed < 1 else 1.0
        self._grown_at = now


def _interval(quota: Quota, under_way: int, concurrency: int) -> float:
    """Seconds between requests that spread what remains; 0: enough remains."""
    remaining = quota.remaining - under_way
    if remaining > max(concurrency, LOW * (quota.limit or 0.0)) or not 0 < quota.seconds <= FAR:
        return 0.0
    return quota.seconds / max(1.0, remaining)
