"""Where a reader stands in a partition, held against what the log still has of it."""

from dataclasses import dataclass

import structlog

from ingest.errors import ConfigError

log = structlog.get_logger()


@dataclass(slots=True)
class Place:
    """`handed`: where the next span begins, which is what the store holds once everything handed out is written.
    `fetched`: the next offset to take from the log."""

    handed: int
    fetched: int


def place(topic: str, partition: int, stored: int | None, first: int, end: int) -> Place:
    """Where to begin when the store stands at `stored` and the log holds the offsets [`first`, `end`).

    Records that were trimmed unread are lost, and said to be; the span still begins at `stored`, so that the store can
    compare. Raises ConfigError when the store stands behind the end: then it speaks of another topic of this name.
    """
    if stored is None:
        return Place(first, first)
    if stored > end:
        raise ConfigError(
            f"the store stands at offset {stored} of {topic}/{partition}, but the log ends at {end}: the topic was "
            "deleted and made anew. A consumer with another name begins at its start; rows that exist stay single"
        )
    if stored < first:
        log.error(
            "offsets were trimmed before they were read",
            topic=topic,
            partition=partition,
            count=first - stored,
            first=stored,
        )
    return Place(stored, max(stored, first))


def missing(topic: str) -> ConfigError:
    return ConfigError(f"topic {topic} does not exist: it is created at start where `topics.create` is true")
