"""How long to wait before the next try. Pure functions; whoever waits decides what it may try again.

Full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015) keeps clients that failed together from coming back
together. What the server asks for is a floor that our own delay never undercuts.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from ingest.ratelimit_header import shares

EPOCH_SECONDS_FROM = 1e9  # a smaller number is seconds from now
EPOCH_MILLIS_FROM = 1e12
FOREVER = 1e15  # seconds

_DATE = re.compile(  # the three forms of RFC 9110, 5.6.7
    r"(?:[a-z]+,\s*)?\d{1,2}[ -][a-z]{3}[ -]\d{2,}\s+\d\d:\d\d:\d\d(?:\s*(?:[a-z]{1,5}|[+-]\d{4})\b)?"
    r"|[a-z]{3}\s+[a-z]{3}\s+\d{1,2}\s+\d\d:\d\d:\d\d\s+\d{4,}",
    re.IGNORECASE | re.ASCII,
)
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:[Zz]|[+-]\d\d:?\d\d)", re.ASCII
)
_NUMBER = re.compile(r"[+-]?\d{1,300}(?:\.\d*)?", re.ASCII)


def backoff(attempt: int, base: float, cap: float) -> float:
    """Seconds before try `attempt` + 1 (the first try is 1): uniform in [0, min(cap, base · 2^(attempt−1))]."""
    return random.uniform(0, min(cap, base * 2.0 ** min(attempt - 1, 60)))


def asked_wait(
    headers: Mapping[str, str], names: Iterable[str], now: float, *, succeeded: bool = False
) -> float | None:
    """Seconds that the answer asks us to wait: the longest of the named headers; None: none says anything readable.

    Seconds, fractions, epoch seconds and milliseconds, HTTP dates (RFC 9110, 10.2.3), times of RFC 3339 and
    comma-separated lists of them are understood; the past is 0. `headers` has names in lower case, `now` is the time
    since 1970 in seconds.

    APIs send their reset header with every answer. It says nothing while its Remaining header is above 0, nor, with an
    answer that `succeeded`, where there is no such header. `RateLimit` is read as the IETF's drafts have it.
    """
    found = [
        wait
        for name in map(str.lower, names)
        if name in headers and _counts(headers, name, succeeded)
        for wait in (_exhausted(headers[name]) if name == "ratelimit" else waits(headers[name], now))
    ]
    return max(found, default=None)


def waits(value: str, now: float) -> Iterator[float]:
    """Each wait that the value of a header names, in seconds."""
    for form, read in ((_DATE, http_date), (_RFC3339, _rfc3339)):
        for text in form.findall(value):
            if (moment := read(text)) is not None:
                yield max(0.0, moment - now)
        value = form.sub("", value)
    for part in value.split(","):
        if _NUMBER.fullmatch(part := part.strip()):
            yield min(max(0.0, _seconds(float(part), now)), FOREVER)


def http_date(text: str) -> float | None:
    """Seconds since 1970; None for what is no date."""
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _counts(headers: Mapping[str, str], name: str, succeeded: bool) -> bool:
    if "reset" not in name:
        return True
    remaining = headers.get(name.replace("reset", "remaining"), "").strip()
    return float(remaining) <= 0 if _NUMBER.fullmatch(remaining) else not succeeded


def _exhausted(value: str) -> Iterator[float]:
    return (float(share.reset) for share in shares(value) if share.remaining == 0 and share.reset is not None)


def _rfc3339(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _seconds(number: float, now: float) -> float:
    if number >= EPOCH_MILLIS_FROM:
        return number / 1000 - now
    return number - now if number >= EPOCH_SECONDS_FROM else number
