"""Who waits before a gate, and what it is told: until when, and why."""

from collections.abc import Callable

from ingest.config.model import Retry
from ingest.errors import RateLimited, SourceUnavailable
from ingest.sources import Watch
from ingest.sources.breaker import Breaker
from ingest.sources.clock import Clock, moment
from ingest.sources.holds import Holds

PATIENCE = 2.0  # times `max_wait`, which nobody bears: then an API is asked again
WORTH_WORDS = 1.0  # seconds: a shorter wait is counted, and not described


class Waiter:
    """One try of a request of `stream`; `what`: the request, for messages."""

    __slots__ = ("_clock", "_retry", "_said_until", "_what", "departed_at", "probe", "stream", "watch")

    def __init__(self, stream: str, watch: Watch, retry: Retry, what: Callable[[], str], clock: Clock) -> None:
        self.stream, self.watch = stream, watch
        self._retry, self._what, self._clock = retry, what, clock
        self._said_until = float("-inf")
        self.probe = False  # whether the source counts as up again depends on it
        self.departed_at = 0.0  # of the monotonic clock

    @property
    def patience(self) -> float:
        """Seconds after which the API is asked again, whatever wait it asked for: it may have done so in error."""
        return PATIENCE * self._retry.max_wait

    def say(self, seconds: float, why: str) -> None:
        """Said once for each stretch of time."""
        now = self._clock.monotonic()
        begin, end = max(now, self._said_until), now + seconds
        if end > begin:
            self._said_until = end
            self.watch.waiting(end - begin, f"{self._what()}: held back, {why}" if seconds >= WORTH_WORDS else why)

    def say_held(self, holds: Holds) -> None:
        self.say(holds.until - self._clock.monotonic(), f"as {holds.because}")

    def bear(self, holds: Holds) -> None:
        """Raises RateLimited when the API asks for more patience than we have."""
        wait = holds.until - self._clock.monotonic()
        if wait > self._retry.max_wait:
            raise too_long(f"{self._what()}: held back, as {holds.because}", wait, self._retry, self._clock)
        self.say_held(holds)

    def down(self, breaker: Breaker, source: str) -> SourceUnavailable:
        """It is not asked at all."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        wait = max(0.0, breaker.until - now)
        return SourceUnavailable(
            f"{self._what()}: not asked, as nothing of {source or 'the API'} has answered since"
            f" {moment(wall + breaker.since - now)}, {breaker.failures} times in a row;"
            f" it is asked again at {moment(wall + wait)}",
            retry_after=wait,
        )


def too_long(what: str, wait: float, retry: Retry, clock: Clock) -> RateLimited:
    at = moment(clock.wall() + wait)
    return RateLimited(
        f"{what}; the API asks to come back in {wait:.0f} s{f' (at {at})' if at else ''}, longer than"
        f" retry.max_wait ({retry.max_wait:g} s)",
        retry_after=min(wait, PATIENCE * retry.max_wait),
    )
