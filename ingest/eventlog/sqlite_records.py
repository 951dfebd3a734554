"""Rows of the table `log` as records, and what the SQLite log knows of a topic. It runs on the threads of the file."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from ingest.errors import LogUnavailable, StoreUnavailable
from ingest.eventlog.place import missing

_headers = msgspec.msgpack.Decoder(tuple[tuple[str, bytes], ...]).decode


class SqliteRecord(msgspec.Struct, frozen=True, gc=False):
    """A message with its place in the log; `timestamp` is when it was published, milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


class Topic(NamedTuple):
    id: int
    name: str
    partitions: int
    retention_ms: int
    max_message: int
    uid: str  # made up when it was created: another topic of this name has another


@contextmanager
def translated() -> Iterator[None]:
    """To whoever uses the log, a file that does not answer is a log that does not answer."""
    try:
        yield
    except StoreUnavailable as exc:
        raise LogUnavailable(str(exc)) from exc


def topic_of(connection: sqlite3.Connection, name: str) -> Topic:
    """Raises ConfigError when there is none."""
    row = connection.execute(
        "SELECT id, name, partitions, retention_ms, max_message, uid FROM topics WHERE name = ?", (name,)
    ).fetchone()
    if row is None:
        raise missing(name)
    return Topic(*row)


def bounds(connection: sqlite3.Connection, topic: Topic, partition: int) -> tuple[int, int]:
    """The first offset that is kept, and the next one to be written. Retention must leave the newest row of each
    partition in place: from it the next offset is known. Two queries, as one with MIN and MAX reads every row."""
    first, last = connection.execute(
        """SELECT (SELECT MIN("offset") FROM log WHERE topic_id = ?1 AND partition = ?2),
                  (SELECT MAX("offset") FROM log WHERE topic_id = ?1 AND partition = ?2)""",
        (topic.id, partition),
    ).fetchone()
    return (0, 0) if last is None else (first, last + 1)


def records_from(
    connection: sqlite3.Connection, topic: Topic, partition: int, start: int, *, records: int, bytes: int
) -> list[SqliteRecord]:
    """The next records of a partition: at most `records`, at least one, and the one that fills `bytes` is the last."""
    found = []
    cursor = connection.execute(
        """SELECT "offset", timestamp, key, value, headers FROM log
           WHERE topic_id = ? AND partition = ? AND "offset" >= ? ORDER BY "offset" LIMIT ?""",
        (topic.id, partition, start, records),
    )
    for offset, timestamp, key, value, headers in cursor:
        found.append(SqliteRecord(topic.name, partition, offset, timestamp, key, value, _headers(headers)))
        bytes -= len(key) + len(value)
        if bytes <= 0:
            break
    cursor.close()
    return found
