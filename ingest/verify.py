"""list the API again → compare with the log and with the store.

What the API lists must be in both, byte for byte; what both know to be alive must still be listed. Ids and hashes are
kept in a temporary file, so memory does not grow with the stream.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing, contextmanager
from hashlib import blake2b
from typing import NamedTuple

from checkpoints import StreamId
from consumers.store import EventStore, Query
from ingest.errors import BadRecord
from ingest.event import DELETED, decode, deletion_id, event_id
from ingest.eventlog import Reader
from ingest.sources import SourceRecord

SHOWN = 20  # ids of each kind that are named

API, LOG, STORE = "API", "log", "store"


class Finding(NamedTuple):
    """One kind of difference. `total` of them, the first SHOWN by name."""

    where: str  # log | store
    kind: str  # missing | extra | differing | repeated
    total: int
    names: list[str]

    @property
    def wrong(self) -> bool:
        """A log may hold an event twice after a crash; the store keeps the first."""
        return bool(self.total) and self.kind != "repeated"


class Entry(NamedTuple):
    """One event, as one of the three knows it."""

    event_id: str
    id: str
    digest: bytes
    deleted: bool


class Range(NamedTuple):
    """Positions that are compared: from the first to before the second; None: no bound."""

    start: int | None = None
    end: int | None = None

    def holds(self, record: SourceRecord) -> bool:
        if self == Range():
            return True
        at = record.position
        return at is not None and (self.start is None or at >= self.start) and (self.end is None or at < self.end)


class Ledger:
    """What each of the three knows of one stream."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.executescript("""
            PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;
            CREATE TABLE events (side TEXT, event_id TEXT, id TEXT, digest BLOB, times INTEGER DEFAULT 1,
                                 PRIMARY KEY (side, event_id)) WITHOUT ROWID;
            CREATE TABLE alive (side TEXT, id TEXT, event_id TEXT, deleted INTEGER,
                                PRIMARY KEY (side, id)) WITHOUT ROWID;
            CREATE TABLE left_out (id TEXT PRIMARY KEY) WITHOUT ROWID;
        """)

    def add(self, side: str, entries: Iterable[Entry]) -> None:
        """In their order: of an id the last one says whether it is alive."""
        rows = list(entries)
        self._connection.executemany(
            """INSERT INTO events (side, event_id, id, digest) VALUES (?, ?, ?, ?)
               ON CONFLICT (side, event_id) DO UPDATE SET times = times + 1""",
            [(side, one.event_id, one.id, one.digest) for one in rows],
        )
        self._connection.executemany(
            "INSERT OR REPLACE INTO alive (side, id, event_id, deleted) VALUES (?, ?, ?, ?)",
            [(side, one.id, one.event_id, one.deleted) for one in rows],
        )

    def lists(self, ids: Iterable[str]) -> None:
        """The API lists them, and the configuration publishes nothing of them."""
        self._connection.executemany("INSERT OR IGNORE INTO left_out (id) VALUES (?)", [(one,) for one in ids])

    def count(self, side: str) -> int:
        return int(self._connection.execute("SELECT count(*) FROM alive WHERE side = ?", (side,)).fetchone()[0])

    def findings(self, side: str, *, whole: bool) -> list[Finding]:
        """`whole`: everything was listed, so that what is not listed is gone."""
        found = [
            self._finding(side, "missing", """SELECT a.event_id FROM alive a LEFT JOIN events s
                ON s.side = ?1 AND s.event_id = a.event_id WHERE a.side = 'API' AND s.event_id IS NULL"""),
            self._finding(side, "differing", """SELECT s.event_id FROM events s JOIN events a
                ON a.side = 'API' AND a.event_id = s.event_id WHERE s.side = ?1 AND s.digest != a.digest"""),
            self._finding(side, "repeated", "SELECT event_id FROM events WHERE side = ?1 AND times > 1"),
        ]  # fmt: skip
        if whole:
            extra = """SELECT s.event_id FROM alive s LEFT JOIN alive a ON a.side = 'API' AND a.id = s.id
                WHERE s.side = ?1 AND NOT s.deleted AND a.id IS NULL AND s.id NOT IN (SELECT id FROM left_out)"""
            found.insert(1, self._finding(side, "extra", extra))
        return found

    def _finding(self, side: str, kind: str, query: str) -> Finding:
        (count,) = self._connection.execute(f"SELECT count(*) FROM ({query})", (side,)).fetchone()
        rows = self._connection.execute(f"{query} ORDER BY 1 LIMIT {SHOWN}", (side,)) if count else ()
        return Finding(side, kind, count, [name for (name,) in rows])


@contextmanager
def ledger() -> Iterator[Ledger]:
    with closing(sqlite3.connect("")) as connection:  # "": a temporary file
        yield Ledger(connection)


def digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()


def listed(stream: StreamId, records: Iterable[SourceRecord]) -> list[Entry]:
    """As the poller would publish them."""
    return [
        Entry(
            (deletion_id if one.deleted else event_id)(*stream, one.id, one.version),
            one.id,
            digest(one.value),
            one.deleted,
        )
        for one in records
    ]


async def logged(stream: StreamId, topic: str, reader: Reader) -> AsyncIterator[Entry]:
    """The stream's events in the topic, which it may share."""
    async for record in reader.read(topic):
        try:
            event = decode(record)
        except BadRecord:
            continue  # not ours
        if (event.source, event.stream) == stream:
            yield Entry(event.id, event.subject, digest(event.payload), event.type.endswith(DELETED))


async def stored(stream: StreamId, store: EventStore, *, versioned: bool) -> AsyncIterator[Entry]:
    """`versioned`: its eventIds end in a version, which holds no `@`."""
    prefix = len(f"{stream.source}:{stream.stream}:")
    async for row in store.events(Query(source=stream.source, stream=stream.stream)):
        deleted, name = row.type.endswith(DELETED), row.event_id[prefix:]
        if deleted:
            name = name.rpartition("#deleted@")[0]
        elif versioned:
            name = name.rpartition("@")[0]
        yield Entry(row.event_id, name, digest(row.payload.encode()), deleted)
