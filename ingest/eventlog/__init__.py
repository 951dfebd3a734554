"""The event log: partitioned, append-only topics. Ports only; `kafka/` and `sqlite.py` are the adapters.

A topic has a fixed number of partitions. A message goes to `partition_of(key, count)`, so events with one key stay in
the order in which they were published. A consumer group reads a topic independently of every other group.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import msgspec
from murmurhash2 import murmurhash2

from ingest.event import Message, Record

UNKNOWN_TOPIC = ""
"""Stands where a topic's id stands when nobody knows it: brokers before Kafka 2.8 have none, and neither had version
0.1.0 of this program."""

NOTHING: Mapping[str, str] = {}

JAVA_SEED = 0x9747B28C  # org.apache.kafka.common.utils.Utils.murmur2


Locate = Callable[[str], Awaitable[str]]
"""Names the place of a topic: the log, the topic, and which topic of that name, as `log/topic/id`. Raises
LogUnavailable, and ConfigError when there is no such topic. `place.located` does it."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's Java client picks for a non-null key: murmur2, sign bit cleared, modulo."""
    return int(murmurhash2(key, JAVA_SEED) & 0x7FFFFFFF) % partitions


def by_partition(messages: Sequence[Message], partitions: int) -> Mapping[int, Sequence[int]]:
    """Partition → indexes of its messages, in their order."""
    if partitions == 1:
        return {0: range(len(messages))}
    found: dict[int, list[int]] = {}
    chosen = [(murmurhash2(m.key, JAVA_SEED) & 0x7FFFFFFF) % partitions for m in messages]  # partition_of, inlined
    for index, partition in enumerate(chosen):
        if partition in found:
            found[partition].append(index)
        else:
            found[partition] = [index]
    return found


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Span(NamedTuple):
    """A piece of one partition: `start` is where the reader stood before it, `end` the next offset after it.

    Offsets in between may be missing (compaction, transaction markers), so `end - start` is no record count.
    `topic_id`: which topic of that name it was; one that is deleted and made anew has another id.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = UNKNOWN_TOPIC


class Refused(NamedTuple):
    """A message that the log refuses though it takes its neighbours. `at`: its index in the page; `code`: a short name
    of the cause; `reason`: what the log says."""

    at: int
    code: str
    reason: str


class Published(NamedTuple):
    """What became of a page. All messages are acknowledged but those at the indexes in `oversized`, which the topic can
    never hold, and those in `refused`: neither are in the log."""

    acknowledged: int
    bytes: int  # of what was acknowledged, as it is in the log before compression
    oversized: tuple[int, ...]
    refused: tuple[Refused, ...] = ()


class Publisher(Protocol):
    async def publish(self, topic: str, messages: Sequence[Message]) -> Published:
        """Returns when every message is durable (Kafka: acks=all from an idempotent producer; SQLite: committed).

        Messages with the same key keep their order, also where something is sent twice: the first copies are in order.
        A message that the topic can never hold, or that the log refuses though it takes others of the page, is reported
        and holds up nothing. What is not acknowledged is sent again until the delivery deadline.
        Raises LogUnavailable when an acknowledgement did not come by then: some of the messages may be in the log, and
        publishing the same page again is right (it repeats them in the same order).
        Raises ConfigError when the topic does not exist, also when it was deleted meanwhile, when it may not be
        written, and when it refuses the whole page.
        """


class Batch(msgspec.Struct):
    """Records of one topic in offset order per partition, and the spans that they cover. May be empty.

    `lost` turns true when a partition of the batch was taken away: do not write it. `trimmed`: how many offsets the
    log had deleted before anyone read them, in these spans or in earlier ones.
    """

    records: Sequence[Record]
    spans: tuple[Span, ...]
    lost: bool = False
    trimmed: int = 0


class Subscription(Protocol):
    """One member of one consumer group on one topic. Partitions come and go behind it."""

    async def next_batch(self) -> Batch:
        """The next records of the partitions that this member owns; waits a bounded time, then gives an empty batch.

        May be called again before the batch before was committed (reading ahead); may be cancelled. Raises
        LogUnavailable also when the membership makes no progress any more: then subscribe anew.
        """

    async def commit(self, batch: Batch) -> None:
        """Tell the group that the batch is done, for lag tools; the truth is what the store keeps. Never moves back,
        never raises for a partition that was taken away meanwhile. Ends the hold that keeps its partitions here."""

    async def rewind(self, without: Collection[int] = ()) -> None:
        """Drop everything read ahead and begin again where the store stands (the `start` function is asked again).
        `without`: partitions that are not read until the next rewind; they stay ours, and `lag` counts them."""

    async def idle(self, seconds: float) -> None:
        """Wait without reading, and stay a member: while the store does not answer. What was read ahead is kept, and
        nothing of it is being written: if partitions are to be taken away meanwhile, they are, and it is lost."""

    def lag(self) -> Mapping[int, int]:
        """Records between the position handed out last and the end of each owned partition, as known without asking.
        A partition whose beginning is not known yet is missing."""

    def partitions(self) -> frozenset[int]:
        """Those that are owned now."""

    def settled(self) -> bool:
        """Its partitions, if any, are assigned, and it is known where to begin in them."""

    def trouble(self) -> str | None:
        """What keeps the log from answering, in words; this member waits, and goes on by itself."""


StartOffsets = Callable[[str], Awaitable[Mapping[int, int]]]
"""Given the topic's id, where the store stands in it: partition → next offset. A partition that is missing begins at
its first offset."""


class TopicSpec(NamedTuple):
    """What a topic should be. `max_message` in bytes, `retention_ms` in milliseconds (-1: for ever)."""

    name: str
    partitions: int
    replication: int
    min_insync: int
    retention_ms: int
    max_message: int


class TopicInfo(NamedTuple):
    """What a topic is. Offsets are per partition: the first one kept, and the next one to be written.

    `in_sync`: copies that are up to date now, of the partition that has the fewest. `unclean`: a copy that is not may
    become the leader, and then what was acknowledged is lost (Kafka: unclean.leader.election.enable)."""

    spec: TopicSpec
    first_offsets: tuple[int, ...]
    end_offsets: tuple[int, ...]
    in_sync: int = 1
    unclean: bool = False


class Admin(Protocol):
    async def identity(self) -> str:
        """Names this log, whatever address it was reached by: another log has another name."""

    async def topic_ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        """The id of each topic: one that is deleted and made anew has another. Missing topics are left out; the id is
        UNKNOWN_TOPIC where the brokers have none."""

    async def topics(self) -> Sequence[str]:
        """Names of all topics, sorted, internal ones left out."""

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicInfo]:
        """Topics that do not exist are left out."""

    async def create(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        """Creates what is missing and returns the names of what it created; one that exists is left as it is.

        Raises ConfigError when the log refuses a topic (a replication factor above the number of brokers).
        """

    async def permits(self, *, writes: Collection[str] = (), reads: Mapping[str, str] = NOTHING) -> None:
        """Raises ConfigError when the log would not let us write or read topics: names the rights that are missing and
        how to give them. `reads`: topic → group. Topics that do not exist are passed over."""


class Reader(Protocol):
    """Reads a topic without a group: tail, dead letters, verification."""

    def read(self, topic: str, start: Mapping[int, int] | None = None) -> AsyncGenerator[Record, None]:
        """Every record from `start` (partition → offset, absent: the first) up to the ends as they were at the call,
        partition by partition, in offset order."""


class EventLog(Protocol):
    """One log, opened by its URL; the ports below are opened from it and closed in reverse order."""

    def publisher(self) -> AbstractAsyncContextManager[Publisher]: ...

    def subscribe(
        self, topic: str, group: str, start: StartOffsets, *, records: int, bytes: int, wait: float
    ) -> AbstractAsyncContextManager[Subscription]:
        """A batch has at most `records` records and about `bytes` bytes of keys and values, and waits `wait` seconds
        for the first of them. On SQLite one process at a time may hold a group; others raise LogUnavailable."""

    def admin(self) -> AbstractAsyncContextManager[Admin]: ...

    def reader(self) -> AbstractAsyncContextManager[Reader]: ...
