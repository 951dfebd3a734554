"""`incremental`: where the next run begins: at a field of the records, at a token of the API, or at nothing.

What is sent and what is read must name one instant: a format without an offset needs `timezone`.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Literal

from pydantic import Field

from ingest.config import placeholders
from ingest.config.part import Mistake, Part
from ingest.config.requests import Placed
from ingest.config.values import (
    AnswerPath,
    Duration,
    FirstBound,
    Lookback,
    RecordPath,
    TimeFormat,
    Wait,
    Zone,
)

UNFILTERED = "unfiltered"
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?(?P<offset>[Zz]|[+-]\d\d:\d\d)?)?")

_TIMES = ("field", "since", "until", "format", "parse", "timezone", "window", "until_is", "lag", "lookback", "order",
          "on_null", "on_future", "expires_after")  # fmt: skip
_KEYS: Mapping[str, tuple[str, ...]] = {
    "timestamp": _TIMES,
    "feed": tuple(key for key in _TIMES if key not in ("window", "until", "until_is")),
    "integer": ("field", "since", "lookback", "order", "on_null", "expires_after"),
    "token": ("since", "from", "param", "expires_after"),
    "keyset": ("field", "format", "parse", "timezone", "lag", "on_null", "on_future", "expires_after"),
    "snapshot": (),
}


class Bound(Placed):
    """Where one end of what is asked for goes in a request. None of the places: a placeholder in the request has it."""

    value: str | None = None
    """What is sent, for filter languages, with {cursor} or {window.…} in it; absent: the bound alone."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.places:
            yield from self.misplaced()
        elif self.value is not None:
            yield "value", f"where does it go? write one of {', '.join(self.PLACES)}"
        if self.value is not None and not any(placeholders.found(self.value)):
            yield "value", "names no bound; write {cursor}, {window.start} or {window.end} where it belongs"


class Since(Bound):
    """Where the lower bound goes, and what it is on the first run."""

    first: FirstBound | None = None
    """Sent on the first run as it stands here; `unfiltered` or absent: the first run sends none."""
    is_: Literal["inclusive", "exclusive"] = Field("inclusive", alias="is")
    """How the API reads it; `exclusive` asks one unit of what can be sent earlier."""


class Until(Bound):
    """Where the upper bound goes."""


class Incremental(Part):
    """Only what is new since the last run."""

    type: Literal["timestamp", "integer", "token", "keyset", "feed", "snapshot"]
    """What the field is. `feed`: newest first, and a time. `token`: the API says where the next run begins. `keyset`:
    the last record does. `snapshot`: every run lists everything."""
    field: RecordPath | None = None
    """The field of a record that grows: updated_at."""
    since: Since | None = None
    """How the API is asked for it; absent: it cannot be."""
    until: Until | None = None
    """How the API is asked for nothing newer."""
    from_: AnswerPath | None = Field(None, alias="from")
    """`token`: where what starts the next run stands; absent: where the token of the next page stands."""
    param: str | None = None
    """`token`: the query parameter that takes it; absent: that of `paginate`."""
    format: TimeFormat = "rfc3339"
    """How times are sent: rfc3339, unix, unix_ms or a pattern of strptime."""
    parse: tuple[TimeFormat, ...] = ()
    """How records write times, beside `format` and RFC 3339."""
    timezone: Zone | None = None
    """What a time without an offset means."""
    window: Wait | None = None
    """A listing asks for no more than this, one window after the other."""
    until_is: Literal["exclusive", "inclusive"] = "exclusive"
    """How the API reads the upper bound."""
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
    expires_after: Duration | None = None
    """A cursor that was not saved for so long means a full read."""

    @property
    def of_records(self) -> bool:
        """Whether the cursor is a field of the records."""
        return self.field is not None

    def mistakes(self) -> Iterable[Mistake]:
        known = _KEYS[self.type]
        for name, info in type(self).model_fields.items():
            key = info.alias or name
            if name in self.model_fields_set and key != "type" and key not in known:
                yield key, f"`{key}` means nothing with `type: {self.type}`"
        if self.type in ("timestamp", "feed", "integer") and self.field is None:
            yield "", f"`type: {self.type}` needs `field`: the field of a record that grows"
        if self.type == "integer":
            yield from self._integer()
        elif self.field is not None:
            yield from self._times()

    def untaken(self, placeholders: Collection[str], paging: str) -> Iterable[Mistake]:
        """Bounds that no request carries. `placeholders`: those of the stream; `paging`: its `paginate.type`."""
        lower = not {"cursor", "window.start"}.isdisjoint(placeholders)
        if self.since is not None and not self.since.places and not lower and self.type != "token":
            yield "incremental.since", f"where does it go? write one of {', '.join(self.since.PLACES)}"
        if self.until is not None and not self.until.places:
            yield "incremental.until", f"where does it go? write one of {', '.join(self.until.PLACES)}"
        ends = self.until is not None or "window.end" in placeholders or self._both_in_one
        if "window.end" in placeholders and self.type not in ("timestamp", "feed"):
            yield "incremental", "`{window.end}` is a time: it needs `type: timestamp`"
        if self.type == "timestamp" and self.window is not None and not ends:
            yield "incremental.window", "`window` needs `until`, or {window.end} in the request"
        if self.type == "keyset" and paging != "keyset":
            yield "incremental", "`type: keyset` needs `paginate: {type: keyset}`: its fields are the cursor"
        if self.type == "keyset" and self.lag and self.field is None:
            yield "incremental.lag", "`lag` needs `field`: the time by which a row is new"
        if self.type == "token" and paging != "cursor":
            if self.from_ is None:
                yield "incremental", "`type: token` needs `from`: where what starts the next run stands"
            elif self.param is None and not lower and (self.since is None or not self.since.places):
                yield "incremental", "`type: token` needs `param`: what takes the token of the next run"

    @property
    def _both_in_one(self) -> bool:
        """Whether the text around the lower bound names the upper one."""
        value = None if self.since is None else self.since.value
        return value is not None and any(name == "window.end" for _, name in placeholders.found(value))

    def _integer(self) -> Iterable[Mistake]:
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
        if self.type == "timestamp" and self.window is not None and first is None:
            yield "window", "`window` needs `since.first`: where the first window begins"

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
