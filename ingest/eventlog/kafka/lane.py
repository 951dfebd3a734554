"""Brings one partition's part of a page to its topic, in order, on as many producers as it takes.

A batch is sent while the one before it is on its way. When one fails, what was not acknowledged is sent again, in
order and from there: by another producer where this one cannot go on, in halves where the broker refused the batch, so
that a refused message is found and its neighbours are published in their order.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from aiokafka.errors import KafkaError

from ingest.errors import LogUnavailable
from ingest.eventlog.kafka.batches import RecordBatch
from ingest.eventlog.kafka.cluster import FOR_A_PERSON
from ingest.eventlog.kafka.delivery import TOO_LARGE, Delivery
from ingest.eventlog.kafka.producer import OUT_OF_SEQUENCE, Acknowledgement, HandedBack, Producer, Refusal
from ingest.retry import backoff

BATCHES_AHEAD = 2  # per partition: one on its way, one in the queue
DOUBTS = 3  # doubtful refusals of one message, after which the next one is believed
RETRY_BASE, RETRY_CAP = 0.2, 5.0  # seconds until what failed is sent again


class Sent(NamedTuple):
    indexes: Sequence[int]
    bytes: int  # before compression
    acknowledgement: Acknowledgement


@dataclass
class Lane:
    """One partition's part of a page: `todo` holds indexes of messages, in order, in pieces of at least one batch."""

    delivery: Delivery
    partition: int
    todo: deque[Sequence[int]]
    producer: Producer | None = None
    doubts: int = 0  # of the first message of `todo`
    sent: deque[Sent] = field(default_factory=deque)

    async def run(self) -> None:
        """Until every message is acknowledged or refused. Has no end of its own. Raises ConfigError."""
        failures = 0
        while self.todo:
            before = self.delivery.acknowledged
            try:
                async with self.delivery.producers.producer() as self.producer:
                    await self._use(self.producer)
            except LogUnavailable as exc:  # no producer could be had
                self.delivery.waits_for = str(exc)
            if self.todo:
                failures = 1 if self.delivery.acknowledged > before else failures + 1
                await asyncio.sleep(backoff(failures, RETRY_BASE, RETRY_CAP))

    async def look(self, patience: float) -> None:
        """Have the producer replaced when it was silent for `patience` seconds with a batch on its way."""
        if self.producer is None or all(one.acknowledgement.done() for one in self.sent):
            return
        self.delivery.waits_for = self.producer.waits_for.get(self.delivery.topic, self.delivery.waits_for)
        if self.producer.silent_for(self.delivery.topic, self.partition) > patience:
            await self.delivery.producers.replace(self.producer, "stuck")

    async def _use(self, producer: Producer) -> None:
        """Until nothing is left, or this producer cannot go on."""
        topic = self.delivery.topic
        try:
            while self.todo and producer.usable(topic):
                if not await self._piece(producer, self.todo.popleft()):
                    return
        except BaseException:
            if not all(one.acknowledgement.done() for one in self.sent):
                producer.give_up(topic)
                self.delivery.producers.retire(producer, "given_up")
            raise

    async def _piece(self, producer: Producer, indexes: Sequence[int]) -> bool:
        """Send it, and put back what is not acknowledged. Nothing that was sent is open afterwards. False: better to
        wait before more is sent."""
        limit, before = self.delivery.page.limit, self.delivery.acknowledged
        unsent = await self._send(producer, indexes)
        back: list[int] = []
        refused: tuple[Sequence[int], Refusal] | None = None
        failure: BaseException | None = None
        while self.sent:
            error = await _outcome(self.sent[0])
            sent = self.sent.popleft()
            if error is None:
                self._acknowledged(sent)
            elif isinstance(error, Refusal):  # at most one: what is behind it is handed back
                refused = sent.indexes, error
            else:
                back += sent.indexes
                failure = failure if isinstance(error, HandedBack) else error
        self._put_back([*back, *unsent])
        if refused is not None:
            await self._refused(*refused, limit)
            return not refused[1].doubtful
        if failure is None:
            return not unsent or self.delivery.acknowledged > before
        self.delivery.waits_for = f"{type(failure).__name__} {failure}".rstrip()
        if producer.usable(self.delivery.topic):
            reason = "sequence" if isinstance(failure, OUT_OF_SEQUENCE) else "failed"
            await self.delivery.producers.replace(producer, reason)
        return False

    async def _send(self, producer: Producer, indexes: Sequence[int]) -> Sequence[int]:
        """Returns those that were not sent, because one before them was not acknowledged."""
        page, unsent = self.delivery.page, 0
        breaks = producer.breaks(self.delivery.topic, self.partition)
        async with aclosing(page.batches(indexes)) as batches:
            async for batch in batches:
                if len(self.sent) == BATCHES_AHEAD:
                    if await _outcome(self.sent[0]) is not None:
                        return indexes[unsent:]
                    self._acknowledged(self.sent.popleft())
                end = _end(indexes, unsent, batch.record_count(), page.oversized)
                own = _without(page.oversized, indexes[unsent:end])
                try:
                    self.sent.append(await self._enqueue(producer, batch, own, breaks))
                except HandedBack:  # one before it may have been
                    return indexes[unsent:]
                except KafkaError as exc:
                    if isinstance(exc, FOR_A_PERSON):
                        raise self.delivery.meaning(exc) from exc
                    self.delivery.waits_for = f"{type(exc).__name__} {exc}".rstrip()
                    return indexes[unsent:]
                unsent = end
        return ()

    async def _enqueue(self, producer: Producer, batch: RecordBatch, indexes: Sequence[int], breaks: int) -> Sent:
        topic, size, flow = self.delivery.topic, batch.size(), self.delivery.unacknowledged
        await flow.take(topic, len(indexes), size)
        try:
            acknowledgement = await producer.enqueue(batch, topic, self.partition, breaks)
        except BaseException:
            flow.give(topic, len(indexes), size)
            raise

        def settled(acknowledgement: Acknowledgement) -> None:
            flow.give(topic, len(indexes), size)
            if not acknowledgement.cancelled():
                acknowledgement.exception()  # looked at, also where nobody waits for it any more

        acknowledgement.add_done_callback(settled)
        return Sent(indexes, size, acknowledgement)

    async def _refused(self, indexes: Sequence[int], refusal: Refusal, limit: int) -> None:
        """Find out which of them it is. `limit`: of the topic, when the batch was built."""
        if issubclass(refusal.error, FOR_A_PERSON):
            raise self.delivery.meaning(refusal.error(refusal.text))
        if issubclass(refusal.error, TOO_LARGE) and await self.delivery.smaller_than(limit):
            self._put_back(indexes)
        elif len(indexes) == 1 and refusal.doubtful and self.doubts < DOUBTS:
            self.doubts += 1
            self.delivery.waits_for = f"{refusal.name}: {refusal.text}"
            self._put_back(indexes)
        elif len(indexes) == 1:
            self.doubts = 0
            self.delivery.refuse(indexes[0], refusal)
        else:
            half = len(indexes) // 2
            self._put_back(indexes[half:])
            self._put_back(indexes[:half])

    def _acknowledged(self, sent: Sent) -> None:
        self.doubts = 0
        self.delivery.acknowledge(len(sent.indexes), sent.bytes)

    def _put_back(self, indexes: Sequence[int]) -> None:
        if left := _without(self.delivery.page.oversized, indexes):
            self.todo.appendleft(left)


def _without(oversized: Sequence[int], indexes: Sequence[int]) -> Sequence[int]:
    if not oversized:
        return indexes
    out = set(oversized)
    return [index for index in indexes if index not in out]


def _end(indexes: Sequence[int], start: int, count: int, oversized: Sequence[int]) -> int:
    """Where the next batch begins, when one of `count` messages began at `start`."""
    if not oversized:
        return start + count
    out, end = set(oversized), start
    while count:
        count -= indexes[end] not in out
        end += 1
    return end


async def _outcome(sent: Sent) -> BaseException | None:
    """None: acknowledged. Not a plain `await`: that would cancel the acknowledgement along with `publish`."""
    await asyncio.wait({sent.acknowledgement})
    return sent.acknowledgement.exception()
