"""How long to wait before the next try. Pure functions; whoever waits decides what it may try again.

Full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015) keeps clients that failed together from coming back
together. What the server asks for is a floor that our own delay never undercuts.
"""

import random
from collections.abc import Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

EPOCH_SECONDS_FROM = 1e9  # a smaller number is seconds from now
EPOCH_MILLIS_FROM = 1e12


def backoff(attempt: int, base: float, cap: float) -> float:
    """Seconds before try `attempt` + 1 (the first try is 1): uniform in [0, min(cap, base · 2^(attempt−1))]."""
    return random.uniform(0, min(cap, base * 2.0 ** min(attempt - 1, 60)))


def asked_wait(headers: Mapping[str, str], names: Iterable[str], now: float) -> float | None:
    """Seconds that the answer asks us to wait: the longest of the named headers, None where none says anything readable.

    Seconds, fractions, epoch seconds and milliseconds, HTTP dates (RFC 9110, 10.2.3) and comma-separated lists of them are
    understood; the past is 0. `now` is the time since 1970 in seconds.
    """
    waits = [wait for name in names if (value := headers.get(name)) is not None for wait in _waits(value, now)]
    return max(waits, default=None)


def _waits(value: str, now: float) -> list[float]:
    try:
        return [max(0.0, parsedate_to_datetime(value).astimezone(UTC).timestamp() - now)]
    except (ValueError, TypeError, IndexError, OverflowError):
        pass
    waits = []
    for part in value.split(","):
        try:
            number = float(part)
        except ValueError:
            continue
        if number != number or number in (float("inf"), float("-inf")):
            continue
        if number >= EPOCH_MILLIS_FROM:
            number = number / 1000 - now
        elif number >= EPOCH_SECONDS_FROM:
            number -= now
        waits.append(max(0.0, number))
    return waits
