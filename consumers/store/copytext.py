"""Builds the text that `COPY ingest.events FROM STDIN` reads: one line a row, tab-separated.

What arrives in the table is exactly what was in the event. Backslash, tab, line feed and carriage return are the only
characters that COPY's text format gives a meaning (PostgreSQL documentation, COPY, "Text Format"); a field that is
`\\N` alone would be NULL, but its backslash is doubled like any other.

`text` writes the fields of many events as they are, looks once at the whole, and doubles the backslashes of all. Where
some event is not so plain, `line` looks at every field of each; both give the same text.
"""

from collections.abc import Sequence

from consumers.store.row import JSON, moment, no_text, payload
from ingest.event import Event

COLUMNS = ("event_id", "source", "stream", "key", "type", "topic", "partition", "offset", "occurred_at", "payload")

NULL = "\\N"
_NO_TIME = "\0"  # stands for NULL while backslashes are doubled
_NOT_PLAIN = (b"\0", b"\t", b"\n", b"\r")  # in a payload
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def text(events: Sequence[Event], times: Sequence[str | None]) -> bytes:
    """The lines of the events. `times`: their `moments`. Raises BadRecord for a text that has no UTF-8."""
    plain = _plain(events, times)
    return b"".join(map(line, events)) if plain is None else plain


def line(event: Event) -> bytes:
    """Raises BadRecord for a text that has no UTF-8 and for a time that is none."""
    time = NULL if event.occurred_at is None else moment(event.occurred_at)
    texts = (event.id, event.source, event.stream, event.key, event.type, event.topic)
    columns = "\t".join(column.translate(_ESCAPES) for column in texts)
    try:
        head = f"{columns}\t{event.partition}\t{event.offset}\t{time}\t".encode()
    except UnicodeEncodeError as exc:
        raise no_text(exc) from exc
    return head + _escaped(payload(event)) + b"\n"


def _escaped(body: bytes) -> bytes:
    """JSON holds tabs and line ends between its tokens only, and seldom: then they are to arrive too."""
    return body.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\t", b"\\t").replace(b"\r", b"\\r")


def _plain(events: Sequence[Event], times: Sequence[str | None]) -> bytes | None:
    """None where an event needs a closer look: a character that would end a field or a line, a body that is no JSON,
    a text that has no UTF-8."""
    count = len(events)
    heads = "\n".join([
        f"{event.id}\t{event.source}\t{event.stream}\t{event.key}\t{event.type}\t{event.topic}\t"
        f"{event.partition}\t{event.offset}\t{_NO_TIME if time is None else time}\t"
        for event, time in zip(events, times, strict=True)
    ])  # fmt: skip
    tabs, ends, nulls = heads.count("\t"), heads.count("\n"), heads.count(_NO_TIME)
    if (tabs, ends, nulls) != (count * (len(COLUMNS) - 1), count - 1, times.count(None)) or "\r" in heads:
        return None
    bodies = [event.payload for event in events]
    together = b"".join(bodies)
    if any(character in together for character in _NOT_PLAIN) or {event.content_type for event in events} != {JSON}:
        return None
    parts = [b"\n"] * (3 * count)
    try:
        parts[0::3] = heads.encode().split(b"\n")
    except UnicodeEncodeError:
        return None
    parts[1::3] = bodies
    lines = b"".join(parts).replace(b"\\", b"\\\\")
    return lines.replace(_NO_TIME.encode(), NULL.encode()) if nulls else lines
