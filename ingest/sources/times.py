"""Cursor values as positions: instants in microseconds since 1970, or integers. Compared as numbers, never as text.

What is sent to an API is truncated to the precision of its format, never rounded: a bound that was rounded up would skip
rows.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache

MICROS = 1_000_000
SECOND_DIGITS = 1e11  # a number below is seconds (until the year 5138),
MILLI_DIGITS = 1e14  # below this milliseconds, above microseconds

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
CACHED = 4096  # texts; neighbours often share a second

Parse = Callable[[str], int]


def instant(moment: datetime, zone: tzinfo | None) -> int:
    """Microseconds since 1970. Raises ValueError for a naive time where no zone is known."""
    if moment.tzinfo is None:
        if zone is None:
            raise ValueError("the time has no offset: set `timezone`")
        moment = moment.replace(tzinfo=zone)
    delta = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * MICROS + delta.microseconds


def parse_rfc3339(text: str, zone: tzinfo | None) -> int:
    """RFC 3339, a bare date (midnight UTC), or ISO 8601 without an offset where `zone` says what it means."""
    if len(text) == 10:
        return instant(datetime.fromisoformat(text), UTC)
    return instant(datetime.fromisoformat(text), zone)


def parse_number(text: str) -> int:
    """Seconds, milli- or microseconds by size; fractions of seconds are kept to the microsecond, truncated."""
    whole, _, fraction = text.partition(".")
    number = int(whole)
    if abs(number) < SECOND_DIGITS:
        micros = int((fraction + "000000")[:6]) if fraction else 0
        return number * MICROS + (-micros if whole.startswith("-") else micros)
    return number * 1000 if abs(number) < MILLI_DIGITS else number


def parser(formats: Sequence[str], zone: tzinfo | None) -> Parse:
    """Reads any of the formats (rfc3339, unix, unix_ms, a strptime pattern), the first that fits. Raises ValueError."""

    def one(form: str, text: str) -> int:
        if form == "rfc3339":
            return parse_rfc3339(text, zone)
        if form in ("unix", "unix_ms"):
            return parse_number(text)
        return instant(datetime.strptime(text, form), zone)

    words = [form for form in formats if form not in ("unix", "unix_ms")]
    numbers = [form for form in formats if form != "rfc3339"]  # a strptime pattern may be all digits

    @lru_cache(CACHED)
    def parse(text: str) -> int:
        for form in numbers if _NUMBER.fullmatch(text) else words:
            try:
                return one(form, text)
            except ValueError as exc:
                if "timezone" in str(exc):
                    raise
        raise ValueError(f"{text[:40]!r} is not {' or '.join(formats)}")

    return parse


def precision(form: str) -> int:
    """Microseconds of the smallest step that the format can say."""
    if form == "rfc3339" or "%f" in form:
        return 1
    if form == "unix_ms":
        return 1000
    if form == "unix" or "%S" in form or "%T" in form or "%s" in form:
        return MICROS
    if "%M" in form:
        return 60 * MICROS
    return 3600 * MICROS if "%H" in form else 86_400 * MICROS


def render(position: int, form: str, zone: tzinfo | None) -> str:
    """The instant as the API wants it, truncated."""
    if form == "unix":
        return str(position // MICROS)
    if form == "unix_ms":
        return str(position // 1000)
    moment = datetime.fromtimestamp(position // MICROS, UTC).replace(microsecond=position % MICROS)
    if form == "rfc3339":
        return rfc3339(position)
    return moment.astimezone(zone or UTC).strftime(form)


@lru_cache(CACHED)
def rfc3339(position: int) -> str:
    """The instant in UTC; with microseconds only where it has some."""
    moment = datetime.fromtimestamp(position // MICROS, UTC).replace(microsecond=position % MICROS)
    return moment.isoformat(timespec="microseconds" if position % MICROS else "seconds").replace("+00:00", "Z")
