"""One member of a Kafka consumer group that starts where the store stands, not where Kafka's committed offsets do.

    assigned ─▶ locate (ask the store, seek) ─▶ take records ─▶ hand out a batch ─▶ committed
    revoked  ─▶ drop what was read, wait for the batch that is being written, mark the rest lost

`getmany` is never cancelled: that would switch off the group's max.poll.interval for good. It runs in a task of its
own, and what it took is booked in the same step of the event loop, so that no seek and no revocation comes between.

A membership that makes no progress is given up: `next_batch` raises LogUnavailable, and whoever subscribes anew gets a
new one. A topic that was deleted and made anew behind us is noticed by its id, and read from its beginning.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from ingest import metrics
from ingest.errors import ConfigError, IngestError, LogUnavailable
from ingest.eventlog import UNKNOWN_TOPIC, Batch, Span, StartOffsets
from ingest.eventlog.handed_out import HandedOut
from ingest.eventlog.kafka.admin import max_message_bytes
from ingest.eventlog.kafka.client import Cluster, started, stopped, translated
from ingest.eventlog.kafka.records import KafkaRecord, unpack_lightly
from ingest.eventlog.kafka.topic_ids import topic_ids
from ingest.eventlog.kafka.watchdog import Look, Times, Watchdog
from ingest.eventlog.place import Place, place, trimmed

log = structlog.get_logger()

PARTITION_FETCH_BYTES = 1024 * 1024  # raised to the topic's max.message.bytes
FETCH_BYTES = 16 * 1024 * 1024  # per broker
PIECE = 500  # records unpacked at once, fewer where they are large
FIRST_PIECE = 10  # records at most, while nobody knows how large they are
COMMIT_TIMEOUT = 10.0  # seconds
POSITION_TIMEOUT = 10.0  # seconds until a partition has a position, after it was lost
TICK = 1.0  # seconds between two checks of the watchdog, or a tenth of `look_every`

_NOT_OURS = TopicPartition("", 0)

Jump = tuple[int, int, int]
"""Partition, from, to: offsets that were passed without a record."""


class KafkaSubscription:
    """Made by `open_subscription`."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        topic: str,
        group: str,
        start: StartOffsets,
        times: Times,
        *,
        records: int,
        bytes: int,
        wait: float,
    ) -> None:
        self._consumer = consumer
        self._topic, self._group = topic, group
        self._start = start
        self._times = times
        self._records, self._bytes, self._wait = records, bytes, wait
        self._topic_id = UNKNOWN_TOPIC  # of the topic in which `_places` are
        self._owned: frozenset[int] = frozenset()
        self._places: dict[int, Place] = {}  # of all owned partitions; empty until they are located
        self._taken: dict[int, list[KafkaRecord]] = {}  # partition → records not handed out yet
        self._handed_out = HandedOut()
        self._committed: dict[int, int] = {}  # partition → offset, since the partitions were assigned
        self._committing: asyncio.Task[None] | None = None
        self._taking: asyncio.Task[None] | None = None
        self._polls: set[asyncio.Task[None]] = set()  # calls of `getmany`; they outlive a caller that is cancelled
        self._emptying = 0  # polls that took all that had arrived
        self._typical = max(1, bytes // FIRST_PIECE)  # bytes of a record, as those that came last
        self._moved = False  # records came since the last look
        self._settled = False
        self._trouble: str | None = None
        self._failing = 0.0  # seconds since a look got an answer
        self._news = asyncio.Event()  # partitions were assigned, or the membership is given up: do not wait on
        self._given_up: IngestError | None = None
        self._watchdog = Watchdog(consumer, times)

    async def next_batch(self) -> Batch:
        now = asyncio.get_running_loop().time
        deadline = now() + self._wait
        while True:
            self._news.clear()
            if self._given_up is not None:
                raise self._given_up
            if self._owned and not self._places:
                await self._locate()
            if self._taken or await self._waited_for_records(deadline - now()):
                return self._cut()

    async def commit(self, batch: Batch) -> None:
        try:
            ends = {s.partition: s.end for s in batch.spans if s.end > self._committed.get(s.partition, -1)}
            if ends and not batch.lost:
                await self._commit(ends)
        finally:
            self._handed_out.done(batch)

    async def rewind(self) -> None:
        self._begin_again()

    async def idle(self, seconds: float) -> None:
        """A poll that asks for no partition of ours returns nothing, moves nothing, and counts as a poll."""
        self._poll(self._stay(seconds))
        await asyncio.sleep(seconds)

    def lag(self) -> Mapping[int, int]:
        lag = {}
        for partition, here in self._places.items():
            end = self._consumer.highwater(TopicPartition(self._topic, partition))
            lag[partition] = len(self._taken.get(partition, ())) + max(0, (end or 0) - here.fetched)
        return lag

    def partitions(self) -> frozenset[int]:
        return self._owned

    def settled(self) -> bool:
        return self._settled

    def trouble(self) -> str | None:
        return self._trouble

    async def watch(self) -> None:
        """Until the membership is to be given up; a watchdog that fails is reason enough."""
        try:
            await self._watch()
        except Exception as exc:
            log.exception("the watchdog failed", topic=self._topic, group=self._group)
            self._give_up(f"the watchdog failed: {exc!r}")

    async def _watch(self) -> None:
        tick = min(TICK, self._times.look_every / 10)
        since_look = 0.0
        while self._given_up is None:
            await asyncio.sleep(tick)
            since_look += tick
            wrong = self._watchdog.tick(tick, polling=bool(self._polls))
            if wrong is None and since_look >= self._times.look_every:
                since_look = 0.0
                wrong = await self._look()
            if wrong is not None:
                self._give_up(wrong)

    async def close(self) -> None:
        self._handed_out.lose()  # also releases a revocation that waits
        await stopped(self._consumer)
        left = [*self._polls, *([] if self._committing is None else [self._committing])]
        for task in left:
            task.cancel()  # harmless now; it may wait for an assignment that never comes
        await asyncio.gather(*left, return_exceptions=True)

    async def assigned(self, partitions: frozenset[int]) -> None:
        self._owned = partitions
        self._settled = not partitions
        self._committed.clear()
        self._watchdog.assigned()
        # Nothing is fetched from where Kafka believes us to stand; `_locate` resumes.
        self._consumer.pause(*(TopicPartition(self._topic, p) for p in partitions))
        self._news.set()
        metrics.rebalances.labels(self._topic, self._group).inc()
        if not partitions:
            log.warning("no partition is left for this consumer: it sits idle", topic=self._topic, group=self._group)

    async def revoked(self) -> None:
        """Also when the membership was lost. Bounded, as the whole group waits for it."""
        self._owned, self._settled = frozenset(), False
        self._places = {}
        self._taken.clear()
        self._watchdog.revoked()
        await self._handed_out.drain(self._times.revoke_wait)

    async def _locate(self) -> None:
        """Ask the store where it stands and seek there. Does nothing when the partitions changed meanwhile."""
        owned = self._owned
        partitions = [TopicPartition(self._topic, p) for p in sorted(owned)]
        topic_id = await self._ask_id()
        if topic_id is None:  # whoever subscribes anew learns whether it is gone
            raise LogUnavailable(f"Kafka: the broker that was asked knows no topic {self._topic}")
        stored = await self._start(topic_id)
        with translated(f"ask for the offsets of {self._topic}"):
            first = await self._consumer.beginning_offsets(partitions)
            end = await self._consumer.end_offsets(partitions)
        if self._owned is not owned:
            return
        self._places = {
            tp.partition: place(self._topic, tp.partition, stored.get(tp.partition), first[tp], end[tp])
            for tp in partitions
        }
        if topic_id != self._topic_id:
            self._topic_id = topic_id
            self._committed.clear()
        for tp in partitions:
            self._consumer.seek(tp, self._places[tp.partition].fetched)
        self._consumer.resume(*partitions)
        self._settled = True

    async def _ask_id(self) -> str | None:
        with translated(f"ask for the id of {self._topic}"):
            return (await topic_ids(self._consumer._client, [self._topic])).get(self._topic)

    async def _look(self) -> str | None:
        """Why to give this membership up, or None. Where only the topic is another one, we begin again in it.

        Brokers that do not answer are waited for: aiokafka finds them again by itself, and a member that could not say
        that it leaves would hold up the next one for a whole session."""
        places, moved, self._moved = self._places, self._moved, False
        emptying = self._emptying
        try:
            topic_id = await self._ask_id()
            if topic_id is None:
                return "the broker that was asked knows no such topic"
            if not places:
                self._trouble, self._failing = None, 0.0
                return None
            stands = {partition: await self._position(partition) for partition in places}
            with translated(f"ask where {self._topic} ends"):
                ends = await self._consumer.end_offsets([TopicPartition(self._topic, p) for p in places])
        except ConfigError as exc:
            return str(exc)
        except IngestError as exc:
            self._trouble = None if moved else str(exc)
            self._failing = 0.0 if moved else self._failing + self._times.look_every
            return str(exc) if self._failing > self._times.unassigned else None
        self._trouble, self._failing = None, 0.0
        if self._places is not places:
            return None
        if topic_id != self._topic_id:
            log.warning("the topic was deleted and made anew while it was read", topic=self._topic, group=self._group)
            self._begin_again()
            return None
        if jumps := [jump for partition, position in stands.items() for jump in self._passed(partition, position)]:
            await self._find_trimmed(jumps)
        if self._places is not places:
            return None
        answered = {p: self._consumer.last_poll_timestamp(TopicPartition(self._topic, p)) for p in places}
        return self._watchdog.looked(Look(stands, {tp.partition: end for tp, end in ends.items()}, answered, emptying))

    async def _position(self, partition: int) -> int:
        """aiokafka's, which also passes what is no record. Raises LogUnavailable when there is none."""
        with translated(f"ask where we stand in {self._topic}/{partition}"):
            async with asyncio.timeout(POSITION_TIMEOUT):
                return int(await self._consumer.position(TopicPartition(self._topic, partition)))

    def _give_up(self, wrong: str) -> None:
        self._given_up = LogUnavailable(f"Kafka: {self._topic}: {wrong}")
        self._handed_out.lose()
        self._news.set()

    def _begin_again(self) -> None:
        """Drop all that was read; the next call locates."""
        self._handed_out.lose()
        self._taken.clear()
        self._places, self._settled = {}, False
        self._news.set()

    async def _waited_for_records(self, seconds: float) -> bool:
        """Whether it is time for a batch: a poll has come back, or `seconds` are over. Not after news."""
        if self._taking is None:
            self._taking = self._poll(self._take())
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({self._taking, news}, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
            if self._taking.done():
                taking, self._taking = self._taking, None
                if taking.cancelled():
                    raise LogUnavailable(f"Kafka: {self._topic}: a task of the reader was cancelled")
                taking.result()
                return True
            return not news.done()
        finally:
            news.cancel()

    def _poll(self, getmany: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        poll = asyncio.create_task(getmany)
        self._polls.add(poll)
        poll.add_done_callback(self._polled)
        return poll

    def _polled(self, poll: "asyncio.Task[None]") -> None:
        self._polls.discard(poll)
        self._watchdog.polled()
        if not poll.cancelled():
            poll.exception()  # looked at; `next_batch` raises it, where there is one more

    async def _stay(self, seconds: float) -> None:
        try:
            await self._consumer.getmany(_NOT_OURS, timeout_ms=int(seconds * 1000))
        except KafkaError as exc:
            log.warning("Kafka failed while we waited for the store", topic=self._topic, error=repr(exc))

    async def _take(self) -> None:
        """What is there, up to the records and bytes of a batch. In pieces, so that the batch before is written
        meanwhile, and since nobody knows how large records are that are not unpacked yet."""
        records, room, wait = self._records, self._bytes, self._wait
        jumps: list[Jump] = []
        while records > 0 and room > 0:
            piece = max(1, min(records, PIECE, room // self._typical))
            found = await self._poll_once(wait, piece)
            if not found:
                self._emptying += 1
                break
            jumps += self._book(found)
            count, size = _extent(found)
            records, room, wait = records - count, room - size, 0.0
            self._typical = max(1, size // count)
            await asyncio.sleep(0)
        if records == self._records:
            jumps = await self._pass_markers()
        if jumps:
            await self._find_trimmed(jumps)

    async def _poll_once(self, wait: float, records: int) -> Mapping[TopicPartition, list[KafkaRecord]]:
        try:
            with translated(f"read {self._topic}"):
                found: Mapping[TopicPartition, list[KafkaRecord]] = await self._consumer.getmany(
                    timeout_ms=int(wait * 1000), max_records=records
                )
        except Exception:
            # aiokafka has moved past records of other partitions that it did not return
            for partition, here in self._places.items():
                self._consumer.seek(TopicPartition(self._topic, partition), here.fetched)
            raise
        return found

    def _book(self, found: Mapping[TopicPartition, list[KafkaRecord]]) -> list[Jump]:
        """Take the records over. Returns the offsets that were passed without a record."""
        jumps = []
        for tp, records in found.items():
            if tp.partition not in self._places:
                continue  # not located yet: the seek brings them again
            here = self._places[tp.partition]
            if records[0].offset < here.fetched:  # aiokafka starts over where an offset is beyond the end
                log.warning("the log ends before the offset we asked for", topic=self._topic, partition=tp.partition)
                self._begin_again()
                return []
            if records[0].offset > here.fetched:
                jumps.append((tp.partition, here.fetched, records[0].offset))
            here.fetched = records[-1].offset + 1
            self._moved = True
            self._taken.setdefault(tp.partition, []).extend(records)
        return jumps

    async def _pass_markers(self) -> list[Jump]:
        """Nothing came: what lies before the positions holds no record."""
        jumps: list[Jump] = []
        for partition, here in list(self._places.items()):
            try:
                position = await self._consumer.position(TopicPartition(self._topic, partition))
            except IllegalStateError:  # taken away meanwhile
                return []
            if self._places.get(partition) is here:
                jumps += self._passed(partition, position)
        return jumps

    def _passed(self, partition: int, position: int) -> list[Jump]:
        """Every record before aiokafka's position is booked; what else lies there is none (transaction markers, what
        was compacted)."""
        here = self._places[partition]
        if position <= here.fetched:
            return []
        passed_from, here.fetched = here.fetched, position
        return [(partition, passed_from, position)]

    async def _find_trimmed(self, jumps: Sequence[Jump]) -> None:
        """Offsets without a record are markers, were compacted away, or were trimmed while we read: lost."""
        places = self._places
        try:
            with translated(f"ask where {self._topic} begins"):
                first = await self._consumer.beginning_offsets([TopicPartition(self._topic, p) for p, _, _ in jumps])
        except LogUnavailable as exc:
            log.warning("cannot tell whether offsets were trimmed unread", topic=self._topic, error=str(exc))
            return
        for partition, passed_from, passed_to in jumps:
            begins = first[TopicPartition(self._topic, partition)]
            if self._places is places and begins > passed_from:
                places[partition].trimmed += trimmed(self._topic, partition, passed_from, min(begins, passed_to))

    def _cut(self) -> Batch:
        """A batch of what was taken; what goes beyond its bytes stays for the next one. Offsets without a record are
        covered by a span too, so that a reader comes to the end."""
        records: list[KafkaRecord] = []
        spans: list[Span] = []
        for partition, here in self._places.items():
            if partition not in self._taken and here.fetched > here.handed:
                spans.append(self._span(partition, here.fetched))
        room = self._bytes
        for partition, found in list(self._taken.items()):
            if room <= 0:
                break
            count, size = _fitting(found, room)
            room -= size
            if count < len(found):
                self._taken[partition] = found[count:]
            else:
                del self._taken[partition]
            records += found[:count]
            spans.append(self._span(partition, found[count - 1].offset + 1))
        batch = Batch(records, tuple(spans))
        for here in self._places.values():  # that offsets were trimmed may be known later than what comes after them
            batch.trimmed, here.trimmed = batch.trimmed + here.trimmed, 0
        if spans:
            self._handed_out.add(batch)
        return batch

    def _span(self, partition: int, end: int) -> Span:
        here = self._places[partition]
        start, here.handed = here.handed, end
        return Span(self._topic, partition, start, end, self._topic_id)

    async def _commit(self, ends: Mapping[int, int]) -> None:
        """One at a time: aiokafka goes on with a commit that we no longer wait for, and what it brings to its end late
        would take back a later one."""
        if self._committing is not None and not self._committing.done():
            await asyncio.wait({self._committing}, timeout=COMMIT_TIMEOUT)
            if not self._committing.done():
                log.warning("offsets not committed yet: an earlier commit is under way", topic=self._topic)
                return
        offsets = {TopicPartition(self._topic, partition): end for partition, end in ends.items()}
        self._committing = asyncio.create_task(self._consumer.commit(offsets))
        self._committing.add_done_callback(_looked_at)
        try:
            await asyncio.wait_for(asyncio.shield(self._committing), COMMIT_TIMEOUT)
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


def _extent(found: Mapping[TopicPartition, list[KafkaRecord]]) -> tuple[int, int]:
    """How many records, and the bytes of their keys and values."""
    count = size = 0
    for records in found.values():
        count += len(records)
        size += sum([len(record.key or b"") + len(record.value or b"") for record in records])
    return count, size


def _fitting(records: Sequence[KafkaRecord], room: int) -> tuple[int, int]:
    """How many of the records to take, and their bytes: at least one, and the one that fills the room is the last."""
    size = 0
    for n, record in enumerate(records, 1):
        size += len(record.key or b"") + len(record.value or b"")
        if size >= room:
            return n, size
    return len(records), size


class _Assignor(RoundRobinPartitionAssignor):  # type: ignore[misc]
    """Runs in the member that leads the group, the only one that knows how many there are."""

    @classmethod
    def assign(
        cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        for topic in {topic for member in members.values() for topic in member.subscription}:
            partitions = len(cluster.partitions_for_topic(topic) or ())
            if len(members) > partitions:
                log.warning(
                    "more consumers than partitions",
                    topic=topic,
                    consumers=len(members),
                    partitions=partitions,
                    idle=len(members) - partitions,
                )
        assigned: dict[str, ConsumerProtocolMemberAssignment] = super().assign(cluster, members)
        return assigned


@asynccontextmanager
async def open_subscription(
    cluster: Cluster,
    topic: str,
    group: str,
    start: StartOffsets,
    times: Times,
    *,
    records: int,
    bytes: int,
    wait: float,
) -> AsyncIterator[KafkaSubscription]:
    largest = await max_message_bytes(cluster, topic)
    consumer = AIOKafkaConsumer(
        **{**cluster.settings(), "metadata_max_age_ms": _ms(times.metadata_age)},
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy=(_Assignor,),
        max_partition_fetch_bytes=max(PARTITION_FETCH_BYTES, largest),
        fetch_max_bytes=FETCH_BYTES,
        session_timeout_ms=_ms(times.session),
        heartbeat_interval_ms=_ms(times.heartbeat),
        rebalance_timeout_ms=_ms(times.rebalance),
        max_poll_interval_ms=_ms(times.poll_interval),
    )
    subscription = KafkaSubscription(consumer, topic, group, start, times, records=records, bytes=bytes, wait=wait)
    watching: asyncio.Task[None] | None = None
    try:
        await started(consumer, cluster)
        unpack_lightly(consumer)
        consumer.subscribe([topic], listener=_Listener(subscription))  # after the start, which would wait for the group
        watching = asyncio.create_task(subscription.watch())
        yield subscription
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})
        await subscription.close()


def _looked_at(commit: "asyncio.Task[None]") -> None:
    if not commit.cancelled():
        commit.exception()


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
