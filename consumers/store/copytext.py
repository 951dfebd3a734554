"""Builds the text that `COPY ingest.events FROM STDIN` reads: one line a row, tab-separated.

What arrives in the table is exactly what was in the event. Backslash, tab, line feed and carriage return are the only
characters that COPY's text format gives a meaning (PostgreSQL documentation, COPY, "Text Format"); a field that is
`\\N` alone would be NULL, but its backslash is doubled like any other.
"""

from consumers.store.row import moment, no_text, payload
from ingest.event import Event

COLUMNS = ("event_id", "source", "stream", "key", "type", "topic", "partition", "offset", "occurred_at", "payload")

NULL = "\\N"
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def line(event: Event) -> bytes:
    """Raises BadRecord for a text that has no UTF-8 and for a time that is none."""
    time = NULL if event.occurred_at is None else moment(event.occurred_at)
    texts = (event.id, event.source, event.stream, event.key, event.type, event.topic)
    joined = "\t".join(texts)
    # Four scans of all texts at once: four times cheaper than looking at each of them.
    if "\\" in joined or "\n" in joined or "\r" in joined or joined.count("\t") != len(texts) - 1:
        joined = "\t".join(text.translate(_ESCAPES) for text in texts)
    try:
        head = f"{joined}\t{event.partition}\t{event.offset}\t{time}\t".encode()
    except UnicodeEncodeError as exc:
        raise no_text(exc) from exc
    return head + _escaped(payload(event)) + b"\n"


def _escaped(body: bytes) -> bytes:
    """JSON holds tabs and line ends between its tokens only, and seldom: then they are to arrive too."""
    return body.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\t", b"\\t").replace(b"\r", b"\\r")
