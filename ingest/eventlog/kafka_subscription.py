"""One member of a Kafka consumer group that starts where the store stands, not where Kafka's committed offsets do.

    assigned ─▶ locate (ask the store, seek) ─▶ take records ─▶ hand out a batch ─▶ committed
    revoked  ─▶ drop what was read, wait for the batch that is being written, mark the rest lost

`getmany` is never cancelled: that would switch off the group's max.poll.interval for good. It runs in a task of its
own, and what it took is booked in the same step of the event loop, so that no seek and no revocation comes between.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import ConsumerRecord

from ingest.eventlog import Batch, Span, StartOffsets
from ingest.eventlog.handed_out import HandedOut
from ingest.eventlog.kafka_admin import max_message_bytes
from ingest.eventlog.kafka_client import Cluster, started, stopped, translated
from ingest.eventlog.place import Place, place

log = structlog.get_logger()

PARTITION_FETCH_BYTES = 1024 * 1024  # raised to the topic's max.message.bytes
FETCH_BYTES = 16 * 1024 * 1024  # per broker
SESSION_MS = 45_000
HEARTBEAT_MS = 3_000
REBALANCE_MS = 60_000
POLL_INTERVAL_MS = 300_000  # without a poll for so long the member leaves the group
REVOKE_WAIT = 20.0  # seconds that a revocation waits for the batch that is being written; well below REBALANCE_MS
COMMIT_TIMEOUT = 10.0  # seconds

_NOT_OURS = TopicPartition("", 0)


class KafkaSubscription:
    """Made by `open_subscription`."""

    def __init__(
        self, consumer: AIOKafkaConsumer, topic: str, start: StartOffsets, *, records: int, bytes: int, wait: float
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._start = start
        self._records, self._bytes, self._wait = records, bytes, wait
        self._owned: frozenset[int] = frozenset()
        self._places: dict[int, Place] = {}  # of all owned partitions; empty until they are located
        self._taken: deque[tuple[int, Sequence[ConsumerRecord]]] = deque()  # (partition, records) not handed out yet
        self._handed_out = HandedOut()
        self._committed: dict[int, int] = {}  # partition → offset, since the partitions were assigned
        self._taking: asyncio.Task[None] | None = None
        self._polls: set[asyncio.Task[None]] = set()  # calls of `getmany`; they outlive a caller that is cancelled

    async def next_batch(self) -> Batch:
        if self._owned and not self._places:
            await self._locate()
        if not self._taken:
            await self._wait_for_records()
        return self._cut()

    async def commit(self, batch: Batch) -> None:
        try:
            ends = {s.partition: s.end for s in batch.spans if s.end > self._committed.get(s.partition, -1)}
            if ends and not batch.lost:
                await self._commit(ends)
        finally:
            self._handed_out.done(batch)

    async def rewind(self) -> None:
        self._handed_out.lose()
        self._taken.clear()
        self._places.clear()

    async def idle(self, seconds: float) -> None:
        """A poll that asks for no partition of ours returns nothing, moves nothing, and counts as a poll."""
        self._poll(self._stay(seconds))
        await asyncio.sleep(seconds)

    def lag(self) -> Mapping[int, int]:
        waiting: dict[int, int] = {}
        for partition, records in self._taken:
            waiting[partition] = waiting.get(partition, 0) + len(records)
        lag = {}
        for partition, here in self._places.items():
            end = self._consumer.highwater(TopicPartition(self._topic, partition))
            lag[partition] = waiting.get(partition, 0) + max(0, (end or 0) - here.fetched)
        return lag

    async def close(self) -> None:
        self._handed_out.lose()  # also releases a revocation that waits
        await stopped(self._consumer)
        for poll in self._polls:
            poll.cancel()  # harmless now; it may wait for an assignment that never comes
        await asyncio.gather(*self._polls, return_exceptions=True)

    async def assigned(self, partitions: frozenset[int]) -> None:
        self._owned = partitions
        self._committed.clear()
        # Nothing is fetched from where Kafka believes us to stand; `_locate` resumes.
        self._consumer.pause(*(TopicPartition(self._topic, p) for p in partitions))

    async def revoked(self) -> None:
        """Also when the membership was lost. Bounded, as the whole group waits for it."""
        self._owned = frozenset()
        self._places.clear()
        self._taken.clear()
        await self._handed_out.drain(REVOKE_WAIT)

    async def _locate(self) -> None:
        """Ask the store where it stands and seek there. Does nothing when the partitions changed meanwhile."""
        owned = self._owned
        stored = await self._start()
        partitions = [TopicPartition(self._topic, p) for p in sorted(owned)]
        with translated(f"ask for the offsets of {self._topic}"):
            first = await self._consumer.beginning_offsets(partitions)
            end = await self._consumer.end_offsets(partitions)
        if self._owned is not owned:
            return
        self._places = {
            tp.partition: place(self._topic, tp.partition, stored.get(tp.partition), first[tp], end[tp])
            for tp in partitions
        }
        for tp in partitions:
            self._consumer.seek(tp, self._places[tp.partition].fetched)
        self._consumer.resume(*partitions)

    async def _wait_for_records(self) -> None:
        if self._taking is None:
            self._taking = self._poll(self._take())
        await asyncio.wait({self._taking}, timeout=self._wait)
        if self._taking.done():
            taking, self._taking = self._taking, None
            taking.result()

    def _poll(self, getmany: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        poll = asyncio.create_task(getmany)
        self._polls.add(poll)
        poll.add_done_callback(self._polled)
        return poll

    def _polled(self, poll: "asyncio.Task[None]") -> None:
        self._polls.discard(poll)
        if not poll.cancelled():
            poll.exception()  # looked at; `next_batch` raises it, where there is one more

    async def _stay(self, seconds: float) -> None:
        try:
            await self._consumer.getmany(_NOT_OURS, timeout_ms=int(seconds * 1000))
        except KafkaError as exc:
            log.warning("Kafka failed while we waited for the store", topic=self._topic, error=repr(exc))

    async def _take(self) -> None:
        try:
            with translated(f"read {self._topic}"):
                found = await self._consumer.getmany(timeout_ms=int(self._wait * 1000), max_records=self._records)
        except Exception:
            # aiokafka has moved past records of other partitions that it did not return
            for partition, here in self._places.items():
                self._consumer.seek(TopicPartition(self._topic, partition), here.fetched)
            raise
        if not found:
            await self._pass_markers()
        for tp, records in found.items():
            if tp.partition not in self._places:
                continue  # not located yet: the seek brings them again
            here = self._places[tp.partition]
            if records[0].offset > here.fetched:
                gap = records[0].offset - here.fetched
                log.warning("offsets are not in the log", topic=self._topic, partition=tp.partition, count=gap)
            here.fetched = records[-1].offset + 1
            self._taken.append((tp.partition, records))

    async def _pass_markers(self) -> None:
        """Nothing came: what lies before the position holds no record (transaction markers, compaction)."""
        for partition, here in list(self._places.items()):
            try:
                position = await self._consumer.position(TopicPartition(self._topic, partition))
            except IllegalStateError:  # taken away meanwhile
                return
            if self._places.get(partition) is here:
                here.fetched = max(here.fetched, position)

    def _cut(self) -> Batch:
        """A batch of what was taken; what goes beyond its bytes stays for the next one. Offsets without a record are
        covered by a span too, so that a reader comes to the end."""
        records: list[ConsumerRecord] = []
        spans: list[Span] = []
        if not self._taken:
            for partition, here in self._places.items():
                if here.fetched > here.handed:
                    spans.append(Span(self._topic, partition, here.handed, here.fetched))
                    here.handed = here.fetched
        room = self._bytes
        while self._taken and room > 0:
            partition, found = self._taken.popleft()
            count, size = _fitting(found, room)
            if count < len(found):
                self._taken.appendleft((partition, found[count:]))
            room -= size
            records += found[:count]
            here = self._places[partition]
            spans.append(Span(self._topic, partition, here.handed, found[count - 1].offset + 1))
            here.handed = spans[-1].end
        batch = Batch(records, tuple(spans))
        if spans:
            self._handed_out.add(batch)
        return batch

    async def _commit(self, ends: Mapping[int, int]) -> None:
        offsets = {TopicPartition(self._topic, partition): end for partition, end in ends.items()}
        try:
            await asyncio.wait_for(self._consumer.commit(offsets), COMMIT_TIMEOUT)
        except (CommitFailedError, IllegalStateError) as exc:
            log.debug("offsets not committed: the partitions are no longer ours", topic=self._topic, error=repr(exc))
        except (KafkaError, OSError) as exc:
            log.warning("offsets not committed: lag will look too large", topic=self._topic, error=repr(exc))
        else:
            self._committed.update(ends)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, subscription: KafkaSubscription) -> None:
        self._subscription = subscription

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._subscription.assigned(frozenset(tp.partition for tp in assigned))

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._subscription.revoked()


def _fitting(records: Sequence[ConsumerRecord], room: int) -> tuple[int, int]:
    """How many of the records to take, and their bytes: at least one, and the one that fills the room is the last."""
    size = 0
    for n, record in enumerate(records, 1):
        size += record.serialized_key_size + record.serialized_value_size
        if size >= room:
            return n, size
    return len(records), size


@asynccontextmanager
async def open_subscription(
    cluster: Cluster, topic: str, group: str, start: StartOffsets, *, records: int, bytes: int, wait: float
) -> AsyncIterator[KafkaSubscription]:
    largest = await max_message_bytes(cluster, topic)
    consumer = AIOKafkaConsumer(
        **cluster.settings(),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=max(PARTITION_FETCH_BYTES, largest),
        fetch_max_bytes=FETCH_BYTES,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        max_poll_interval_ms=POLL_INTERVAL_MS,
    )
    subscription = KafkaSubscription(consumer, topic, start, records=records, bytes=bytes, wait=wait)
    try:
        await started(consumer, cluster)
        consumer.subscribe([topic], listener=_Listener(subscription))  # after the start, which would wait for the group
        yield subscription
    finally:
        await subscription.close()
