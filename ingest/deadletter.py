"""The wire form of a dead letter: the original bytes, key and headers, and beside them where it came from and why.

{topic}.dlq.{consumer}    records that a consumer could not handle
{topic}.dlq.source        records that a poller could not publish
"""

import time

from ingest.errors import BadRecord
from ingest.event import Headers, Message, Record, rfc3339

SOURCE = "source"  # stands where a consumer's name stands, for what a poller could not publish
MARK = ".dlq."
MESSAGE_BYTES = 1024  # of the error
POINTER_BYTES = 1024  # of a key or a header of a pointer
HEADROOM = 65_536  # bytes by which a dead-letter topic holds more than its topic: for the headers added here


def topic_for(topic: str, consumer: str) -> str:
    return f"{topic}{MARK}{consumer}"


def of_record(record: Record, group: str, error: BadRecord) -> Message:
    """A record of the log that a consumer could not handle."""
    came_from = {
        "dlq.original.topic": record.topic,
        "dlq.original.partition": str(record.partition),
        "dlq.original.offset": str(record.offset),
        "dlq.original.timestamp": str(record.timestamp),
        "dlq.group": group,
    }
    return _message(record.key or b"", record.value or b"", record.headers, came_from, error)


def of_source(topic: str, key: bytes, value: bytes, headers: Headers, error: BadRecord) -> Message:
    """A record of an API that never reached its topic."""
    return _message(key, value, headers, {"dlq.original.topic": topic, "dlq.group": SOURCE}, error)


def pointer(letter: Message, reference: str) -> Message:
    """Stands for a letter that its topic cannot hold: small, and says where the bytes are kept.

    What is long in it stays there too: a key is cut, a header left out."""
    short = [(name, value) for name, value in letter.headers if len(value or b"") <= POINTER_BYTES]
    return Message.of(letter.key[:POINTER_BYTES], b"", [*short, ("dlq.kept", reference.encode())])


def _message(key: bytes, value: bytes, headers: Headers, came_from: dict[str, str], error: BadRecord) -> Message:
    text = str(error).encode()[:MESSAGE_BYTES].decode("utf-8", "ignore")
    added = {
        **came_from,
        "dlq.stage": error.stage,
        "dlq.error.class": type(error.__cause__ or error).__name__,
        "dlq.error.code": error.code,
        "dlq.error.message": text,
        "dlq.failed.at": rfc3339(time.time_ns() // 1_000_000),
    }
    kept = [(name, header) for name, header in headers if not name.startswith("dlq.") or name == "dlq.replay.count"]
    return Message.of(key, value, kept + [(name, header.encode()) for name, header in added.items()])
