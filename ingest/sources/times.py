"""Cursor values as positions: instants in microseconds since 1970, or integers. Compared as numbers, never as text.

What is sent to an API is truncated to the precision of its format, never rounded: a bound that was rounded up would
skip rows.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

MICROS = 1_000_000
DAY = 86_400 * MICROS
SECOND_DIGITS = 1e11  # a number below is seconds (until the year 5138),
MILLI_DIGITS = 1e14  # below this milliseconds, above microseconds
CACHED = 4096  # texts; neighbours often share a second
INT64 = 2**63  # what the databases can keep of an integer position

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
EARLIEST = (datetime(1, 1, 3, tzinfo=UTC) - _EPOCH) // _MICROSECOND  # two days of room for any time zone
LATEST = (datetime(9999, 12, 29, tzinfo=UTC) - _EPOCH) // _MICROSECOND

_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_TIME_OF_DAY = re.compile(r"%[HIMSfcXpT]")

Parse = Callable[[str], int]


class NoZone(ValueError):
    """A time without an offset, and nothing says what it means."""


def instant(moment: datetime, zone: tzinfo | None) -> int:
    """Microseconds since 1970. Raises NoZone for a naive time where no zone is known."""
    if moment.tzinfo is None:
        if zone is None:
            raise NoZone("the time has no offset: set `timezone`")
        moment = moment.replace(tzinfo=zone)
    return (moment - _EPOCH) // _MICROSECOND


def parse_rfc3339(text: str, zone: tzinfo | None) -> int:
    """RFC 3339, a bare date (midnight UTC), or ISO 8601 without an offset where `zone` says what it means."""
    if text.endswith("z"):
        text = text[:-1] + "Z"
    return instant(datetime.fromisoformat(text), UTC if len(text) == 10 else zone)


def parse_number(text: str) -> int:
    """Seconds, milli- or microseconds by size; fractions are kept to the microsecond, truncated towards the past."""
    whole, _, fraction = text.partition(".")
    number = abs(int(whole))
    digits = 6 if number < SECOND_DIGITS else 3 if number < MILLI_DIGITS else 0
    micros: int = number * 10**digits + int((fraction + "0" * digits)[:digits] or 0)
    if not whole.startswith("-"):
        return micros
    return -micros - bool(fraction[digits:].strip("0"))


def parse_integer(text: str) -> int:
    """Raises ValueError for what is no whole number of 64 bits."""
    if not _INTEGER.fullmatch(text) or not -INT64 <= (number := int(text)) < INT64:
        raise ValueError(f"{text[:40]!r} is no whole number of 64 bits")
    return number


def parser(formats: Sequence[str], zone: tzinfo | None) -> Parse:
    """Reads any of the formats (rfc3339, unix, unix_ms, a strptime pattern), the first that fits. Raises ValueError."""
    words = [_reader(form, zone) for form in formats if form not in ("unix", "unix_ms")]
    numbers = [_reader(form, zone) for form in formats if form != "rfc3339"]  # a strptime pattern may be all digits

    @lru_cache(CACHED)
    def parse(text: str) -> int:
        naive: NoZone | None = None
        numeric = _NUMBER.fullmatch(text) is not None
        for read in numbers if numeric else words:
            try:
                position = read(text)
                if EARLIEST <= position <= LATEST:
                    return position
                if not numeric:  # 0001-01-01 and 9999-12-31 stand for "never": early and late enough
                    return EARLIEST if position < EARLIEST else LATEST
            except NoZone as exc:
                naive = exc
            except (ValueError, OverflowError):
                pass
        raise naive or ValueError(f"{text[:40]!r} is not {' or '.join(formats)}")

    return parse


def _reader(form: str, zone: tzinfo | None) -> Parse:
    if form == "rfc3339":
        return lambda text: parse_rfc3339(text, zone)
    if form in ("unix", "unix_ms"):
        return parse_number
    pattern_zone = zone if zone or _TIME_OF_DAY.search(form.replace("%%", "")) else UTC  # a bare date: midnight UTC
    return lambda text: instant(datetime.strptime(text, form), pattern_zone)


def render(position: int, form: str, zone: tzinfo | None) -> str:
    """The instant as the API wants it, truncated. `position` between EARLIEST and LATEST."""
    if form == "unix":
        return str(position // MICROS)
    if form == "unix_ms":
        return str(position // 1000)
    return rfc3339(position) if form == "rfc3339" else _moment(position).astimezone(zone or UTC).strftime(form)


def truncated(position: int, form: str, zone: tzinfo | None) -> int:
    """The instant that the rendered text stands for: the position itself where it can be sent, else one before it."""
    if form in ("unix", "unix_ms", "rfc3339"):
        return position // unit(form) * unit(form)
    return _reader(form, zone)(render(position, form, zone))


def is_repeated(position: int, form: str, zone: tzinfo | None) -> bool:
    """Whether the text names two instants: the clock of the zone was set back, and the text has no offset."""
    plain = form.replace("%%", "")
    if zone is None or "%" not in plain or "%z" in plain:
        return False
    moment = _moment(position).astimezone(zone)
    return moment.replace(fold=0).utcoffset() != moment.replace(fold=1).utcoffset()


def is_bare_date(form: str) -> bool:
    """Whether it sends days, without a time."""
    plain = form.replace("%%", "")
    return "%" in plain and not _TIME_OF_DAY.search(plain)


def unit(form: str) -> int:
    """Microseconds of the smallest step that can be sent in the format; the longest one where they differ."""
    if form in ("unix", "unix_ms", "rfc3339"):
        return {"unix": MICROS, "unix_ms": 1000, "rfc3339": 1}[form]
    plain = form.replace("%%", "")
    steps = {
        "%f": 1,
        "%[STXcs]": MICROS,
        "%M": 60 * MICROS,
        "%[HIp]": 3600 * MICROS,
        "%[djxaAuwUWV]": DAY,
        "%[mbB]": 31 * DAY,
    }
    return next((step for sign, step in steps.items() if re.search(sign, plain)), 366 * DAY)


def in_utc(text: str, parse: Parse) -> str:
    """A time as RFC 3339 in UTC: the text itself where it is that. Raises ValueError."""
    position = parse(text)
    return text if _UTC.fullmatch(text) else rfc3339(position)


@lru_cache(CACHED)
def stamp(now: int) -> str:
    """When something happened, for people and for the saved cursor: RFC 3339 with milliseconds. `now`: microseconds."""
    return datetime.fromtimestamp(now / MICROS, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rfc3339(position: int) -> str:
    """The instant in UTC; with microseconds only where it has some."""
    text = _moment(position).isoformat(timespec="microseconds" if position % MICROS else "seconds")
    return text[:-6] + "Z"


def _moment(position: int) -> datetime:
    return _EPOCH + timedelta(microseconds=position)
