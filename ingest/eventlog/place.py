"""Which topic a name stands for, and where a reader stands in a partition, held against what the log has of it."""

import asyncio
from dataclasses import dataclass

import structlog

from ingest.errors import ConfigError
from ingest.eventlog import UNKNOWN_TOPIC, Admin

log = structlog.get_logger()

CREATION_GRACE = 2.0  # seconds in which a topic just made may be unknown to the broker that is asked
POLL = 0.05  # seconds between two looks


@dataclass(slots=True)
class Place:
    """`handed`: where the next span begins, which is what the store holds once everything handed out is written.
    `fetched`: the next offset to take from the log. `trimmed`: offsets between them that were deleted unread."""

    handed: int
    fetched: int
    trimmed: int = 0


def trimmed(topic: str, partition: int, start: int, first: int) -> int:
    """How many offsets from `start` on were deleted unread, where the log begins at `first` now; says so."""
    count = max(0, first - start)
    if count:
        log.error(
            "offsets were trimmed before they were read: raise the topic's retention",
            topic=topic,
            partition=partition,
            count=count,
            first=start,
        )
    return count


def place(topic: str, partition: int, stored: int | None, first: int, end: int) -> Place:
    """Where to begin when the store stands at `stored` and the log holds the offsets [`first`, `end`).

    Records that were trimmed unread are lost, and said to be; the span still begins at `stored`, so that the store can
    compare. Raises ConfigError when the store stands behind the end: then it speaks of another topic of this name whose
    id nobody knew, or the log lost acknowledged records. To begin anywhere else could skip some without a word.
    """
    if stored is None:
        return Place(first, first)
    if stored > end:
        raise ConfigError(
            f"the store stands at offset {stored} of {topic}/{partition}, but the log ends at {end}: the topic was "
            "deleted and made anew, or its brokers lost records. A consumer with another name begins at its start; "
            "rows that exist stay single"
        )
    return Place(stored, max(stored, first), trimmed(topic, partition, stored, first))


def missing(topic: str) -> ConfigError:
    return ConfigError(f"topic {topic} does not exist: it is created at start where `topics.create` is true")


async def located(admin: Admin, topic: str) -> str:
    """The place of a topic, as `Locate` says; `log/topic` where nobody knows the id. Raises ConfigError when there is
    no such topic: it may be on its way to be made anew, and what is there afterwards is another place."""
    deadline = asyncio.get_running_loop().time() + CREATION_GRACE
    while topic not in (ids := await admin.topic_ids([topic])):
        if asyncio.get_running_loop().time() > deadline:
            raise missing(topic)
        await asyncio.sleep(POLL)
    return "/".join([await admin.identity(), topic, *([ids[topic]] if ids[topic] != UNKNOWN_TOPIC else [])])


def same_place(one: str, other: str) -> bool:
    """A place without an id fits every topic of its name."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
