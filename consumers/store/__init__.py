"""The event store: rows behind a unique eventId. Port only; `postgres.py` and `sqlite.py` are the adapters.

    events(event_id PRIMARY KEY, source, stream, key, type, occurred_at, ingested_at, topic, partition, "offset",
           payload)
    offsets(consumer, topic, topic_id, partition, next_offset)

Rows and the offsets that they stand for move in one transaction, or not at all.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ingest.errors import Superseded
from ingest.event import Event
from ingest.eventlog import UNKNOWN_TOPIC, Span


class Written(NamedTuple):
    """What one write did. `duplicates` are events whose eventId had a row already, or came twice in the batch."""

    inserted: int
    duplicates: int


class Query(NamedTuple):
    """Which events to list. `limit` None: all, oldest first; a number: the newest so many, oldest of them first."""

    source: str | None = None
    stream: str | None = None
    key: str | None = None
    event_id: str | None = None
    limit: int | None = None

    def given(self) -> dict[str, str]:
        """The columns that must have a value, and which."""
        columns = {"source": self.source, "stream": self.stream, "key": self.key, "event_id": self.event_id}
        return {name: value for name, value in columns.items() if value is not None}


class Row(NamedTuple):
    """A stored event under its SQL names. Times are RFC 3339 text in UTC; `payload` is the JSON text as it came."""

    event_id: str
    source: str
    stream: str
    key: str
    type: str
    occurred_at: str | None
    ingested_at: str
    topic: str
    partition: int
    offset: int
    payload: str


def superseded(consumer: str, span: Span, stands: int | None) -> Superseded:
    """The refusal to move an offset that is not where the consumer believes it to be."""
    return Superseded(
        f"{consumer} wrote {span.topic}[{span.partition}] from {span.start} to {span.end}, but its next offset in the "
        f"store is {stands}: another consumer moved it, or an earlier write of ours whose outcome was not known"
    )


class EventStore(Protocol):
    async def offsets(self, consumer: str, topic: str, topic_id: str = UNKNOWN_TOPIC) -> Mapping[int, int]:
        """Partition → next offset to read; empty for a topic that this consumer has never written. Offsets that were
        kept while nobody knew the id become those of `topic_id`."""

    async def other_ids(self, consumer: str, topic: str, topic_id: str) -> Sequence[str]:
        """The ids of other topics of this name that the consumer has offsets in: deleted ones, or another log's."""

    async def write(self, consumer: str, events: Sequence[Event], spans: Sequence[Span]) -> Written:
        """Insert the events that have no row yet and move the offsets of `spans`, in one transaction.

        Each span moves its offset from exactly `start` to `end` (an absent row counts as any start); when one stands
        elsewhere nothing is written and Superseded is raised. With no spans only rows are written. May be repeated.
        Raises BadRecord when some event of the batch can never be stored (the caller halves the batch to find it),
        StoreUnavailable for an outage, and ConfigError when a person must act (schema missing, no permission).
        """

    def events(self, query: Query) -> AsyncIterator[Row]:
        """Rows in the order in which they were stored; constant memory."""

    async def count(self, query: Query) -> int:
        """How many events match (`limit` is ignored)."""
