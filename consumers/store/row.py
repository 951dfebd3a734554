"""What a row keeps of an event, alike on every engine: which of several, at what time, with which payload.

A payload that is JSON stays byte-exact. A time is checked here, because Postgres would take `now` and `yesterday`.
"""

import base64
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from ingest.errors import BadRecord
from ingest.event import Event

JSON = "application/json"

# Times that `moment` leaves as they are; the 29th of February is left to it.
_DAY = r"(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_usual = re.compile(rf"(?:(?!0000)[0-9]{{4}}-(?:{_DAY})T{_CLOCK}Z\n)*").fullmatch


def distinct(events: Sequence[Event]) -> list[Event]:
    """The first event of every eventId, in the order given."""
    first: dict[str, Event] = {}
    for event in events:
        first.setdefault(event.id, event)
    return list(first.values())


def payload(event: Event) -> bytes:
    """The JSON to store. A body of another content type becomes a JSON string: its text, or base64 where it is none."""
    if event.content_type == JSON or _is_json(event.content_type):
        return event.payload
    try:
        text = event.payload.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(event.payload).decode()
    return json.dumps(text, ensure_ascii=False).encode()


def _is_json(content_type: str) -> bool:
    """Parameters do not count; `+json` is a suffix (RFC 6838, section 4.2.8)."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON or media_type.endswith("+json")


def moments(events: Sequence[Event]) -> list[str | None]:
    """The column of times, as `moment` has them; nearly always one look at all of them is enough."""
    given = [event.occurred_at for event in events]
    times = [time for time in given if time is not None]
    together = "\n".join((*times, ""))
    if _usual(together) and together.count("\n") == len(times):
        return given
    return [None if time is None else moment(time) for time in given]


def moment(occurred_at: str) -> str:
    """The time as RFC 3339 in UTC, as it came where it is that. Raises BadRecord when it names no moment."""
    try:
        parsed = datetime.fromisoformat(occurred_at)
        if parsed.tzinfo is None:
            raise ValueError("no offset from UTC")
        if occurred_at.endswith("Z") and occurred_at[10] == "T":
            return occurred_at
        return parsed.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError) as exc:
        raise BadRecord(f"ce_time {occurred_at!r} is no RFC 3339 time: {exc}", stage="write", code="bad_time") from exc


def no_text(exc: UnicodeError) -> BadRecord:
    return BadRecord(f"id, key, type or payload is not UTF-8: {exc}", stage="write", code="not_utf8")
