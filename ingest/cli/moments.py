"""Moments and durations as people and programs read them.

A person gets both the clock and the distance: `14:02:11 (3 min ago)`, with the day where it is another one, in the
zone of the machine. JSON has RFC 3339 in UTC.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
import typer

from ingest.config.values import duration
from ingest.event import rfc3339
from ingest.jobs.bounds import LATEST

UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
NOW = 1.0  # seconds: what is nearer is now
TIMES = ("_at", "_until")  # how the names of fields end that hold a moment


def span(seconds: float) -> str:
    """`3.2 s`, `95 s`, `12 min`, `30 h`, `12 d`."""
    if seconds < 0:  # a clock was set back
        return f"-{span(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in UNITS:
        if seconds >= size * (1.5 if unit != "s" else 0):
            return f"{seconds:.1f} s" if seconds < 10 else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def relative(at: float, now: float) -> str:
    if abs(at - now) < NOW:
        return "now"
    return f"{span(now - at)} ago" if at < now else f"in {span(at - now)}"


def moment(at: float | None, now: float) -> str:
    """Empty where there is none."""
    if at is None:
        return ""
    if at >= LATEST:
        return "for ever"
    there, here = datetime.fromtimestamp(at).astimezone(), datetime.fromtimestamp(now).astimezone()
    form = "%H:%M:%S" if there.date() == here.date() else "%Y-%m-%d %H:%M"
    return f"{there:{form}} ({relative(at, now)})"


def clock(now: float) -> str:
    """The line below a table: what its times are measured by."""
    return f"{datetime.fromtimestamp(now).astimezone():%Y-%m-%d %H:%M:%S %z} by the database's clock"


def iso(at: float | None) -> str | None:
    """For JSON; a moment that never comes is `infinity`."""
    if at is None:
        return None
    return "infinity" if at >= LATEST else rfc3339(round(at * 1000))


def plain(struct: msgspec.Struct) -> dict[str, Any]:
    """For JSON: its fields, moments as `iso` has them."""
    fields: Mapping[str, Any] = msgspec.structs.asdict(struct)
    return {name: iso(value) if name.endswith(TIMES) else value for name, value in fields.items()}


def seconds(text: str) -> float:
    """Of an option such as `--spread 10m`."""
    try:
        return duration(0 if text == "0" else text)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc


def point(text: str) -> float:
    """Of an option such as `--run-at 2026-12-01T06:00:00Z`: seconds since 1970."""
    try:
        there = datetime.fromisoformat(text)
    except ValueError as exc:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-12-01T06:00:00Z") from exc
    if there.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no zone; write {text}Z for UTC, or +01:00 behind it")
    return there.timestamp()
