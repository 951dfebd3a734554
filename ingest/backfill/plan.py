"""From a range to slices: how a stream is asked for each of them, or why it cannot be. Pure.

Slices are half-open and lie side by side: each begins where the one before it ends, at a position that can be sent as
it is, so what one leaves out is the next one's.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC
from typing import NamedTuple

from checkpoints import StreamId
from ingest.backfill import Slice
from ingest.config.model import Incremental, Source, Stream
from ingest.errors import ConfigError
from ingest.sources import times
from ingest.sources.bounds import Bounded, bounds, placeholders
from ingest.sources.filling import filled
from ingest.sources.incremental import Bounds, Stretch

SLICES = 8  # unless a number is asked for

ASKS = "`incremental: {type: timestamp, field: updated_at, since: {param: …}, until: {param: …}}`"


class Asked(NamedTuple):
    """A slice, and its bounds as they are sent; None: there is no such bound."""

    slice: Slice
    since: str | None
    until: str | None


class Plan(NamedTuple):
    slices: Sequence[Asked]
    window: float | None  # seconds: each of them is asked for in windows of that length
    notes: Sequence[str]  # what a person should know


class Wanted(NamedTuple):
    """As a person wrote it."""

    start: str
    end: str
    slices: int | None  # how many; None: as it fits


def plan(name: StreamId, source: Source, wanted: Wanted, now: int) -> Plan:
    """`now`: microseconds since 1970. Raises ConfigError for a stream that cannot be asked for a range, and for a range
    that is none."""
    stream = source.streams[name.stream]
    found = placeholders(source, stream)
    incremental = _incremental(name, stream, found)
    rules = Bounds(incremental, found)
    stretch = _stretch(name, incremental, rules, wanted, now)
    ends = rules.bounded or incremental.order == "asc"
    number = wanted.slices or (SLICES if ends else 1)
    stretches = list(_cut(stretch, number, rules))
    asked = [_asked(stream, incremental, found, Slice(one, rules.micros)) for one in stretches]
    window = incremental.window if rules.bounded else None
    return Plan(asked, window, list(_notes(name, source, len(stretches), number, ends)))


def _incremental(name: StreamId, stream: Stream, found: Collection[str]) -> Incremental:
    incremental = stream.incremental
    if incremental is None:
        raise ConfigError(
            f"{name} cannot be backfilled: without `incremental` every run lists everything, and there is no range to"
            f" ask for. Where the API can be asked for one, write {ASKS}"
        )
    if incremental.type not in ("timestamp", "integer", "feed"):
        raise ConfigError(
            f"{name} cannot be backfilled: `incremental: {{type: {incremental.type}}}` names no range. Where the API"
            f" can be asked for one, write {ASKS}"
        )
    if incremental.since is None and {"cursor", "window.start"}.isdisjoint(found):
        raise ConfigError(
            f"{name} cannot be backfilled: the API cannot be asked from a place on. Say how it takes the lower bound:"
            " `incremental: {since: {param: …}}` (or header:, body:, or {window.start} in the request)"
        )
    return incremental


def _stretch(name: StreamId, incremental: Incremental, rules: Bounds, wanted: Wanted, now: int) -> Stretch:
    start, end = (_position(flag, text, incremental) for flag, text in (("--from", wanted.start), ("--to", wanted.end)))
    if start >= end:
        raise ConfigError(f"--from {wanted.start} --to {wanted.end}: nothing lies between them")
    limit = rules.ceiling(now)
    if rules.micros and end > limit:
        raise ConfigError(
            f"--to {wanted.end} is later than {times.rfc3339(limit)}, up to where everything can be known now: what"
            f" comes then is for whoever polls {name}"
        )
    return Stretch(start, end)


def _position(flag: str, text: str, incremental: Incremental) -> int:
    try:
        if incremental.type == "integer":
            return times.parse_integer(text)
        return times.parser((incremental.format, "rfc3339"), incremental.timezone or UTC)(text)
    except ValueError as exc:
        raise ConfigError(f"{flag}: {exc}") from exc


def _cut(stretch: Stretch, number: int, rules: Bounds) -> Iterator[Stretch]:
    """At most so many parts of about one length."""
    length, start = stretch.end - stretch.start, stretch.start
    for n in range(1, number):
        cut = rules.exact(stretch.start + length * n // number)
        if start < cut < stretch.end:
            yield Stretch(start, cut)
            start = cut
    yield Stretch(start, stretch.end)


def _asked(stream: Stream, incremental: Incremental, found: Collection[str], slice: Slice) -> Asked:
    whole = incremental.model_copy(update={"window": None})
    window = Bounds(whole, found, slice.stretch).window(None, slice.stretch.end)
    values = {"window.start": window.since, "window.end": window.until, "cursor": window.since}
    since, until = (
        None if text is None else _said(where, filled(where.text or text, values) or text)
        for where, text in zip(bounds(stream), (window.since, window.until), strict=True)
    )
    return Asked(slice, since, until)


def _said(bounded: Bounded, text: str) -> str:
    """`updated[gte]=2024-01-01`, or the bound alone where a placeholder takes it."""
    where = bounded.where
    if where is None:
        return text
    place = where.param or where.header or ".".join(map(str, where.body))
    return f"{place}={text}"


def _notes(name: StreamId, source: Source, count: int, number: int, ends: bool) -> Iterator[str]:
    if count < number:
        yield f"no more than {count} slices begin at something that can be sent"
    if not ends and count > 1:
        yield (
            "the API takes no `until`: each slice lists everything from its start on. Fewer slices read less; with"
            " `order: asc`, where the API lists in that order, a slice ends where the next begins"
        )
    if source.limits.concurrency == 1:
        yield (
            f"{name.source} has one job under way at a time (`limits.concurrency`): its streams wait while a slice is"
            " read, and wait shorter for shorter ones"
        )
