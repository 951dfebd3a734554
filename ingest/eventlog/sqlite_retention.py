"""Retention in a SQLite log: what is older than the topic keeps is trimmed, oldest first, as Kafka does it.

The newest row of a partition always stays, since from it the next offset is known: offsets never begin again. As in
Kafka, retention does not wait for readers; what a consumer in this file has not read is trimmed with an error in the
log, and counted once more where that consumer finds its place gone.
"""

import sqlite3
import time
from typing import NamedTuple

from ingest.eventlog import UNKNOWN_TOPIC
from ingest.eventlog.sqlite_records import bounds, topic_of

TRIM_EVERY = 60.0  # seconds between looks at a topic, for each process that publishes to it
TRIM_ROWS = 5_000  # per look and partition, so that nobody waits long for the file


class Trimmed(NamedTuple):
    rows: int
    unread: dict[str, int]  # consumer → how many of them it had not read
    more: bool  # there is more to trim


def trim(connection: sqlite3.Connection, name: str) -> Trimmed:
    """Run in a transaction that writes."""
    topic = topic_of(connection, name)
    rows, unread, more = 0, dict[str, int](), False
    if topic.retention_ms < 0:
        return Trimmed(0, unread, more)
    oldest = time.time_ns() // 1_000_000 - topic.retention_ms
    for partition in range(topic.partitions):
        first, end = bounds(connection, topic, partition)
        keep = _first_to_keep(connection, topic.id, partition, oldest, min(first + TRIM_ROWS, end - 1))
        if keep <= first:
            continue
        more = more or keep == first + TRIM_ROWS
        connection.execute(
            'DELETE FROM log WHERE topic_id = ? AND partition = ? AND "offset" < ?', (topic.id, partition, keep)
        )
        rows += keep - first
        behind = connection.execute(
            """SELECT consumer, next_offset FROM offsets
               WHERE topic = ? AND topic_id IN (?, ?) AND partition = ? AND next_offset < ?""",
            (name, topic.uid, UNKNOWN_TOPIC, partition, keep),
        )
        for consumer, stands in behind.fetchall():
            unread[consumer] = unread.get(consumer, 0) + keep - max(first, stands)
    return Trimmed(rows, unread, more)


def _first_to_keep(connection: sqlite3.Connection, topic: int, partition: int, oldest: int, end: int) -> int:
    """The first offset, at most `end`, whose row is young enough. Reads no row behind it."""
    row = connection.execute(
        """SELECT "offset" FROM log WHERE topic_id = ? AND partition = ? AND "offset" < ? AND timestamp >= ?
           ORDER BY "offset" LIMIT 1""",
        (topic, partition, end, oldest),
    ).fetchone()
    return end if row is None else int(row[0])
