"""One idempotent producer from its start to its end, mended where aiokafka leaves a partition unusable.

aiokafka takes a sequence number when it sends a batch and never gives it back. So one batch that the broker refuses
makes it refuse every later one of that partition, or, where the broker knew nothing of this producer yet, lets the
batch queued behind overtake the refused one. Here the number is given back, and what was queued behind is handed back
unsent: the caller decides what comes next. And a batch without a leader waits, where aiokafka would drop it unsent and
ask for the leader as fast as brokers answer (measured: 1,400 times a second).

A producer that follows another one goes on under its id with the next epoch (KIP-360, as the Java client does). From
its first batch in a partition on, the broker refuses what the abandoned producer sent there and has not arrived yet.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    CorruptRecordException,
    InvalidProducerEpoch,
    KafkaError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownError,
    UnknownProducerId,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.sender import Sender, SendProduceReqHandler
from aiokafka.producer.transaction_manager import PidAndEpoch

from ingest import metrics
from ingest.eventlog.kafka.batches import RecordBatch
from ingest.eventlog.kafka.client import ended, started
from ingest.eventlog.kafka.cluster import RETRY_BACKOFF_MS, Cluster

ADD_TIMEOUT = 1.0  # seconds; where there is a free place nothing is waited for
ABANDON_TIMEOUT = 3.0  # seconds to close connections, and again to end the tasks behind them
LAST_EPOCH = 2**15 - 1
NO_LEADER = (None, -1)
SEQUENCE_NUMBERS = 2**31  # of a partition; 0 follows the last one

OUT_OF_SEQUENCE = (OutOfOrderSequenceNumber, UnknownProducerId, InvalidProducerEpoch, ProducerFenced)
"""The broker's numbers and ours do not fit together any more: only another producer can go on."""

INVALID_RECORD = "invalid_record"
UNNAMED = {  # codes that aiokafka has no error for
    76: ("unsupported_compression_type", "the broker does not know this compression"),
    87: (INVALID_RECORD, "the broker's validation refuses this record"),
}

Acknowledgement = asyncio.Future[object]


class HandedBack(Exception):
    """Not sent: a batch before it in its partition was refused, or its topic was given up here."""


class Refusal(Exception):
    """A broker's answer to a batch that it does not take. `name`: a short one; `text`: what it means.

    `doubtful`: it may come from a fault of the broker or of the network, and pass (Java's client sends damaged ones
    again, too)."""

    def __init__(self, error: KafkaError, code: int) -> None:
        self.error = type(error)
        self.doubtful = isinstance(error, CorruptRecordException | UnknownError) and code not in UNNAMED
        known = getattr(error, "message", str(code)).lower(), getattr(error, "description", type(error).__name__)
        self.name, self.text = UNNAMED.get(code, known)
        super().__init__(self.name, self.text)


class Producer:
    """`request_timeout`: seconds for one answer, after which the broker is connected to anew."""

    def __init__(self, cluster: Cluster, request_timeout: float) -> None:
        timeout_ms = int(request_timeout * 1000)
        settings = {**cluster.settings(), "request_timeout_ms": timeout_ms}
        self.users = 0  # kept by whoever hands this producer out
        self.waits_for: dict[str, str] = {}  # topic → the last error after which a batch is sent again
        self.doubted: set[str] = set()  # topics that a broker does not know
        self._cluster = cluster
        self._heard: dict[TopicPartition, float] = {}
        self._breaks: Counter[TopicPartition] = Counter()
        self._wants_leaders = False  # they will be asked for
        self._given_up: set[str] = set()
        self._abandoned = False
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done when it is abandoned
        self._client = AIOKafkaProducer(**settings, enable_idempotence=True, acks="all", linger_ms=0)
        self._manager = self._client._txn_manager
        self._accumulator = self._client._message_accumulator
        self._accumulator._batch_ttl = math.inf  # no batch is dropped for want of a leader
        self._accumulator.reenqueue = self._send_again
        self._accumulator.drain_by_nodes = self._drain
        self._accumulator._pending_batches = _Pending()
        self._manager.increment_sequence_number = self._count
        self._client._sender = _WatchedSender(
            self,
            self._client.client,
            acks=-1,
            txn_manager=self._manager,
            retry_backoff_ms=RETRY_BACKOFF_MS,
            message_accumulator=self._accumulator,
            request_timeout_ms=timeout_ms,
        )

    async def start(self, after: "Producer | None") -> None:
        """`after`: the producer that this one follows. Raises LogUnavailable and ConfigError."""
        try:
            await started(self._client, self._cluster)
        except BaseException:
            await self.abandon()
            raise
        if after is not None and after._manager.has_pid() and after._manager.producer_epoch < LAST_EPOCH:
            self._manager._pid_and_epoch = PidAndEpoch(after._manager.producer_id, after._manager.producer_epoch + 1)

    def usable(self, topic: str) -> bool:
        return not self._abandoned and topic not in self._given_up

    def knows(self, topic: str) -> bool:
        """Whether the brokers had such a topic when they were asked last."""
        return self._client.client.cluster.partitions_for_topic(topic) is not None

    async def partitions(self, topic: str) -> Collection[int]:
        """Raises KafkaError, also when the producer is abandoned meanwhile: aiokafka would wait for ever then."""
        known: Collection[int] | None = self._client.client.cluster.partitions_for_topic(topic)
        if known is not None:
            return known
        asking: asyncio.Task[Collection[int]] = asyncio.create_task(self._client.partitions_for(topic))
        try:
            both: set[asyncio.Future[Any]] = {asking, self._end}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise KafkaError("the producer was given up")
            return asking.result()
        finally:
            asking.cancel()

    def breaks(self, topic: str, partition: int) -> int:
        """How often what waited in this partition was handed back so far."""
        return self._breaks[TopicPartition(topic, partition)]

    async def enqueue(self, batch: RecordBatch, topic: str, partition: int, breaks: int) -> Acknowledgement:
        """Waits for a free place, one on its way and one behind it, and returns the acknowledgement to come. It fails
        with Refusal, HandedBack or KafkaError, and must be looked at. Raises HandedBack and KafkaError.

        `breaks`: what `breaks` said when the caller had nothing on its way there. If it says more by now, something of
        the caller may have been handed back, and this batch must not overtake it."""
        tp = TopicPartition(topic, partition)
        while True:
            if partition not in await self.partitions(topic):  # the topic was made anew, smaller
                raise UnknownTopicOrPartitionError(f"{topic}/{partition}")
            if not self.usable(topic) or self._breaks[tp] != breaks:
                raise HandedBack
            waiting = self._accumulator._batches.get(tp)
            if not waiting:
                break
            await waiting[-1].wait_drain()
        acknowledgement: Acknowledgement = await self._accumulator.add_batch(batch, tp, ADD_TIMEOUT)  # at once
        self.heard(tp)
        return acknowledgement

    def heard(self, tp: TopicPartition) -> None:
        self._heard[tp] = time.monotonic()

    def silent_for(self, topic: str, partition: int) -> float:
        """Seconds since a batch was enqueued, or a broker said anything about one."""
        return time.monotonic() - self._heard.get(TopicPartition(topic, partition), math.inf)

    def give_up(self, topic: str) -> None:
        """Send nothing of this topic again. The sequence numbers of its partitions are not to be used any more."""
        self._given_up.add(topic)
        for tp in [tp for tp in self._accumulator._batches if tp.topic == topic]:
            self._hand_back(tp)

    async def abandon(self) -> None:
        """Fail every batch that it holds, so that whoever waits for one is released, and end it within a bounded time:
        `stop` alone would wait for batches that may never be acknowledged."""
        self._abandoned = True
        if not self._end.done():
            self._end.set_result(None)
        for tp in list(self._accumulator._batches):
            self._hand_back(tp)
        self._accumulator.fail_all(KafkaError("the producer was given up"))
        await ended(self._client.client.close(), ABANDON_TIMEOUT)  # a request on its way ends with it
        await ended(self._client.stop(), ABANDON_TIMEOUT)

    def _send_again(self, batch: Any) -> None:
        if not self.usable(batch.tp.topic):
            batch.failure(HandedBack())
        elif not batch.future.done():
            MessageAccumulator.reenqueue(self._accumulator, batch)

    def _count(self, tp: TopicPartition, records: int) -> None:
        """aiokafka goes on below 0 after the largest number, and the broker calls that an invalid record."""
        numbers = self._manager._sequence_numbers
        numbers[tp] = (numbers[tp] + records) % SEQUENCE_NUMBERS

    def _drain(self, **where: object) -> tuple[Mapping[int, object], bool]:
        """Node → what to send there; False: the sender need not look for leaders, that is done from here."""
        found, leaderless = MessageAccumulator.drain_by_nodes(self._accumulator, **where)
        if leaderless and not self._wants_leaders:
            self._wants_leaders = True
            asyncio.get_running_loop().call_later(RETRY_BACKOFF_MS / 1000, self._ask_for_leaders)
        return found, False

    def _ask_for_leaders(self) -> None:
        if not self._abandoned:
            self._client.client.force_metadata_update().add_done_callback(self._look_again)

    def _look_again(self, asked: "asyncio.Future[bool]") -> None:
        """A partition without a leader waits for the brokers, not for another producer: while they answer it is heard
        of."""
        self._wants_leaders = False
        answered = not asked.cancelled() and asked.result()
        for tp in self._accumulator._batches:
            if self._client.client.cluster.leader_for_partition(tp) in NO_LEADER:
                self.waits_for[tp.topic] = f"partition {tp.partition} has no leader"
                if answered:
                    self.heard(tp)
        self._accumulator._wakeup(self._accumulator.waiter())

    def _failed(self, error: KafkaError, batch: Any, code: int | None) -> bool:
        """Whether to send the batch again. `code`: the broker's answer, None where none came."""
        tp = batch.tp
        if error.retriable:
            metrics.retryable_errors.labels(type(error).__name__).inc()
            self.waits_for[tp.topic] = f"{type(error).__name__} {error}"
            if isinstance(error, UnknownTopicOrPartitionError):
                self.doubted.add(tp.topic)
            if self.usable(tp.topic):
                return True
        elif code is not None and not isinstance(error, OUT_OF_SEQUENCE):
            self._count(tp, -batch.record_count)
            batch.failure(Refusal(error, code))
        self._hand_back(tp)
        return False

    def _hand_back(self, tp: TopicPartition) -> None:
        self._breaks[tp] += 1
        for batch in self._accumulator._batches.pop(tp, ()):
            batch.failure(HandedBack())
            batch._drain_waiter.exception()  # looked at, where nobody waits for the place


class _Pending(set[object]):
    """Batches on their way. aiokafka takes one out to send it again, and once more when it ends before that."""

    def remove(self, batch: object) -> None:
        self.discard(batch)


class _WatchedSender(Sender):  # type: ignore[misc]
    """aiokafka's, with a handler that tells the producer what the brokers say."""

    def __init__(self, producer: Producer, client: object, **settings: object) -> None:
        super().__init__(client, **settings)
        self.producer = producer

    async def _send_produce_req(self, node_id: int, batches: Mapping[TopicPartition, object]) -> None:
        await _WatchedRequest(self, batches).do(node_id)
        self._in_flight.remove(node_id)
        self._muted_partitions.difference_update(batches)


class _WatchedRequest(SendProduceReqHandler):  # type: ignore[misc]
    def __init__(self, sender: _WatchedSender, batches: Mapping[TopicPartition, object]) -> None:
        super().__init__(sender, batches)
        self._answers: dict[TopicPartition, int] = {}  # codes

    def handle_response(self, response: Any) -> None:
        for topic, partitions in response.topics:
            for partition, code, *_ in partitions:
                tp = TopicPartition(topic, partition)
                self._answers[tp] = code
                self._sender.producer.heard(tp)
        super().handle_response(response)

    def _can_retry(self, error: KafkaError, batch: Any) -> bool:
        producer: Producer = self._sender.producer
        return producer._failed(error, batch, self._answers.get(batch.tp))
