"""How a database's clock and ours go together: pure arithmetic.

Whoever asks for the time knows only that it was read between asking and the answer. Each answer bounds the difference
of the clocks, and the tightest bounds count, until they are old.
"""

TICK = 0.001  # seconds: the database's clock is no more exact
DRIFT = 1e-4  # seconds by which the clocks may come apart in a second


class Offset:
    """`lower` and `upper`: of the database's clock minus ours, in seconds."""

    def __init__(self) -> None:
        self._lower, self._upper = float("-inf"), float("inf")
        self._seen_at = 0.0

    @property
    def uncertainty(self) -> float:
        """Seconds by which `ours` may be late."""
        return self._upper - self._lower

    def ours(self, theirs: float) -> float:
        """When it is that time there, by our clock: then, or a little later."""
        return theirs - self._lower

    def seen(self, asked_at: float, theirs: float, answered_at: float) -> None:
        """Their clock said `theirs` at some moment between those two of ours."""
        drifted = DRIFT * (answered_at - self._seen_at)
        lower, upper = theirs - answered_at, theirs + TICK - asked_at
        self._lower, self._upper = max(self._lower - drifted, lower), min(self._upper + drifted, upper)
        self._seen_at = answered_at
        if self._lower > self._upper:  # one of them was set
            self._lower, self._upper = lower, upper
