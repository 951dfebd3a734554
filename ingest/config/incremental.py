"""`incremental`: where the next run begins, told by a field of the records.

What is sent and what is read must name one instant: a format without an offset needs `timezone`.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from ingest.config.part import Mistake, Part
from ingest.config.values import Duration, FirstBound, Lookback, RecordPath, TimeFormat, Zone

UNFILTERED = "unfiltered"
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?(?P<offset>[Zz]|[+-]\d\d:\d\d)?)?")
_ONLY_TIMES = ("format", "parse", "timezone", "lag", "on_future")


class Since(Part):
    """Where the lower bound goes, and what it is on the first run."""

    param: str
    """The query parameter that takes it."""
    first: FirstBound | None = None
    """Sent on the first run as it stands here; `unfiltered` or absent: the first run sends none."""


class Incremental(Part):
    """Only what is new since the last run."""

    type: Literal["timestamp", "integer", "feed"]
    """What the field is. `feed`: newest first, and a time."""
    field: RecordPath
    """The field of a record that grows: updated_at."""
    since: Since | None = None
    """How the API is asked for it; absent: it cannot be."""
    format: TimeFormat = "rfc3339"
    """How times are sent: rfc3339, unix, unix_ms or a pattern of strptime."""
    parse: tuple[TimeFormat, ...] = ()
    """How records write times, beside `format` and RFC 3339."""
    timezone: Zone | None = None
    """What a time without an offset means."""
    lag: Duration = 0.0
    """The cursor stays this far behind now."""
    lookback: Lookback = 0
    """Every run reads this much again: a duration, or a number where the field is one."""
    order: Literal["asc", "desc", "none"] = "none"
    """The order in which the API lists; `asc` lets the cursor move with every page."""
    on_null: Literal["emit", "skip", "fail"] = "emit"
    """What becomes of a record that has no such field."""
    on_future: Literal["clamp", "fail"] = "clamp"
    """What becomes of the cursor when a record lies in the future."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.type == "integer":
            yield from self._integer()
        else:
            yield from self._times()

    def _integer(self) -> Iterable[Mistake]:
        for key in _ONLY_TIMES:
            if key in self.model_fields_set:
                yield key, f"`{key}` is for times; `type: integer` has none"
        if self.lookback and not isinstance(self.lookback, int):
            yield "lookback", "must be a whole number, as the field is one"
        first = self._first()
        if first is not None and not re.fullmatch(r"-?\d+", first):
            yield "since.first", f"must be a whole number or `{UNFILTERED}`"

    def _times(self) -> Iterable[Mistake]:
        if self.lookback and isinstance(self.lookback, int):
            yield "lookback", f"`{self.lookback}` is no duration; write a number with a unit: 500ms, 30s, 5m, 12h, 7d"
        if self.timezone is None:
            for key, format_ in (("format", self.format), *((f"parse.{n}", text) for n, text in enumerate(self.parse))):
                if _naive(format_):
                    yield key, f"`{format_}` has no offset (%z); say what its times mean: `timezone: UTC`"
        first = self._first()
        if first is not None and (wrong := _unsendable(first, self.format, self.timezone is not None)):
            yield "since.first", wrong

    def _first(self) -> str | None:
        first = None if self.since is None else self.since.first
        return None if first in (None, UNFILTERED) else str(first)


def _naive(format_: str) -> bool:
    """Whether its times have no offset. A bare date has no need of one: it is midnight UTC."""
    plain = format_.replace("%%", "")
    return "%" in plain and "%z" not in plain and re.search(r"%[HIMSfcXp]", plain) is not None


def _unsendable(first: str, format_: str, zoned: bool) -> str | None:
    """What is wrong with a first value that is sent as it stands."""
    if format_ == "rfc3339":
        match = _RFC3339.fullmatch(first)
        if match is None or not _is_time(first):
            return f"`{first}` is no RFC 3339 time; write 2024-01-01, 2024-01-01T00:00:00Z or `{UNFILTERED}`"
        if match["offset"] is None and len(first) > len("2024-01-01") and not zoned:
            return f"`{first}` has no offset; write it (…Z), or say what it means: `timezone: UTC`"
    elif format_ in ("unix", "unix_ms"):
        if not re.fullmatch(r"-?\d+(\.\d+)?", first):
            unit = "seconds" if format_ == "unix" else "milliseconds"
            return f"`{first}` is no time in `{format_}`; write {unit} since 1970, or `{UNFILTERED}`"
    else:
        try:
            datetime.strptime(first, format_)
        except ValueError:
            return f"`{first}` is no time in `{format_}`, and it is sent as it stands here; or write `{UNFILTERED}`"
    return None


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text.upper().replace(" ", "T"))
    except ValueError:
        return False
    return True
