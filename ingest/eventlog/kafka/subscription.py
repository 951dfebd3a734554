"""One member of a Kafka consumer group that starts where the store stands, not where Kafka's committed offsets do.

    assigned ─▶ locate (ask the store, seek) ─▶ take records ─▶ hand out a batch ─▶ committed
    revoked  ─▶ drop what was read, wait for the batch that is being written, mark the rest lost

A membership that makes no progress is given up: `next_batch` raises LogUnavailable, and whoever subscribes anew gets a
new one. A topic that was deleted and made anew behind us is read from its beginning.
"""

import asyncio
from collections.abc import Collection, Coroutine, Mapping

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ingest import metrics
from ingest.errors import IngestError, LogUnavailable
from ingest.eventlog import Batch, StartOffsets
from ingest.eventlog.handed_out import HandedOut
from ingest.eventlog.kafka.client import stopped
from ingest.eventlog.kafka.commits import Commits
from ingest.eventlog.kafka.intake import Intake
from ingest.eventlog.kafka.lookout import Lookout
from ingest.eventlog.kafka.member import Member
from ingest.eventlog.place import place

log = structlog.get_logger()

_NOT_OURS = TopicPartition("", 0)


class KafkaSubscription:
    """Made by `open_subscription`."""

    def __init__(self, member: Member, start: StartOffsets, *, records: int, bytes: int, wait: float) -> None:
        self._member, self._consumer = member, member.consumer
        self._topic, self._group = member.topic, member.group
        self._start = start
        self._wait = wait
        self._owned: frozenset[int] = frozenset()
        self._settled = False
        self._intake = Intake(member, self._begin_again, records=records, bytes=bytes, wait=wait)
        self._handed_out = HandedOut()
        self._commits = Commits(member)
        self._lookout = Lookout(member, self._intake, self._begin_again)
        self._taking: asyncio.Task[None] | None = None
        self._polls: set[asyncio.Task[None]] = set()  # calls of `getmany`; they outlive a caller that is cancelled
        self._news = asyncio.Event()  # partitions were assigned, or the membership is given up: do not wait on
        self._given_up: IngestError | None = None

    async def next_batch(self) -> Batch:
        now = asyncio.get_running_loop().time
        deadline = now() + self._wait
        while True:
            self._news.clear()
            if self._given_up is not None:
                raise self._given_up
            if self._owned and not self._intake.places:
                await self._locate()
            if self._intake.taken or await self._waited_for_records(deadline - now()):
                batch = self._intake.cut()
                if batch.spans:
                    self._handed_out.add(batch)
                return batch

    async def commit(self, batch: Batch) -> None:
        try:
            if not batch.lost:
                await self._commits.move(batch.spans)
        finally:
            self._handed_out.done(batch)

    async def rewind(self, without: Collection[int] = ()) -> None:
        self._intake.without = frozenset(without)
        self._begin_again()

    async def idle(self, seconds: float) -> None:
        """A poll that asks for no partition of ours returns nothing, moves nothing, and counts as a poll."""
        self._poll(self._stay(seconds))
        with self._handed_out.at_rest():
            await asyncio.sleep(seconds)

    def lag(self) -> Mapping[int, int]:
        return self._intake.lag()

    def partitions(self) -> frozenset[int]:
        return self._owned

    def settled(self) -> bool:
        return self._settled

    def trouble(self) -> str | None:
        return self._lookout.trouble

    async def watch(self) -> None:
        """Until the membership is given up."""
        self._given_up = await self._lookout.watch(lambda: bool(self._polls))
        self._handed_out.lose()
        self._news.set()

    async def close(self) -> None:
        self._handed_out.lose()  # also releases a revocation that waits
        await stopped(self._consumer)
        for poll in list(self._polls):
            poll.cancel()  # harmless now; it may wait for an assignment that never comes
        await asyncio.gather(*self._polls, return_exceptions=True)
        await self._commits.close()

    async def assigned(self, partitions: frozenset[int]) -> None:
        self._owned = partitions
        self._settled = not partitions
        self._commits.begin_again()
        self._lookout.watchdog.assigned()
        # Nothing is fetched from where Kafka believes us to stand; `_locate` resumes.
        self._consumer.pause(*(self._member.at(p) for p in partitions))
        self._news.set()
        metrics.rebalances.labels(self._topic, self._group).inc()
        if not partitions:
            log.warning("no partition is left for this consumer: it sits idle", topic=self._topic, group=self._group)

    async def revoked(self) -> None:
        """Also when the membership was lost. Bounded, as the whole group waits for it."""
        self._owned, self._settled = frozenset(), False
        self._intake.drop()
        self._lookout.watchdog.revoked()
        await self._handed_out.drain(self._member.times.revoke_wait)

    async def _locate(self) -> None:
        """Ask the store where it stands and seek there. Does nothing when the partitions changed meanwhile."""
        owned = self._owned
        partitions = [self._member.at(p) for p in sorted(owned)]
        topic_id = await self._lookout.topic_id()
        if topic_id is None:  # whoever subscribes anew learns whether it is gone
            raise LogUnavailable(f"Kafka: the broker that was asked knows no topic {self._topic}")
        stored = await self._start(topic_id)
        with self._member.translated(f"ask for the offsets of {self._topic}"):
            first = await self._consumer.beginning_offsets(partitions)
            end = await self._consumer.end_offsets(partitions)
        if self._owned is not owned:
            return
        places = {
            tp.partition: place(self._topic, tp.partition, stored.get(tp.partition), first[tp], end[tp])
            for tp in partitions
        }
        if topic_id != self._intake.topic_id:
            self._commits.begin_again()
        self._intake.begin(topic_id, places, {tp.partition: end[tp] for tp in partitions})
        self._settled = True

    def _begin_again(self) -> None:
        """Drop all that was read; the next call locates."""
        self._handed_out.lose()
        self._intake.drop()
        self._settled = False
        self._news.set()

    async def _waited_for_records(self, seconds: float) -> bool:
        """Whether it is time for a batch: a poll has come back, or `seconds` are over. Not after news."""
        if self._taking is None:
            self._taking = self._poll(self._intake.take())
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
        self._lookout.watchdog.polled()
        if not poll.cancelled():
            poll.exception()  # looked at; `next_batch` raises it, where there is one more

    async def _stay(self, seconds: float) -> None:
        try:
            await self._consumer.getmany(_NOT_OURS, timeout_ms=int(seconds * 1000))
        except KafkaError as exc:
            log.warning("Kafka failed while we waited for the store", topic=self._topic, error=repr(exc))
