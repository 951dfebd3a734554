"""A member of a Kafka group that loses its footing finds it again, or is given up so that a new one can be made."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from structlog.testing import capture_logs

from ingest.errors import LogUnavailable
from ingest.eventlog import Subscription
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.kafka.intake import Intake
from ingest.eventlog.kafka.subscription import KafkaSubscription
from ingest.eventlog.kafka.watchdog import Look, Times
from tests.chaos import kafka_groups
from tests.contract.eventlogs import (
    DEADLINE,
    WAIT,
    Store,
    batches_of,
    message,
    new_topic,
    numbered,
    publish,
    records_of,
    some_batch,
)
from tests.harness.kafka import Kafka
from tests.harness.names import unique

QUICK = Times(heartbeat=0.2, look_every=0.3, metadata_age=0.3)


@asynccontextmanager
async def member(
    log: KafkaLog, topic: str, group: str, store: Store, *, wait: float = WAIT
) -> AsyncIterator[Subscription]:
    async with log.subscribe(topic, group, store, records=50, bytes=1_000_000, wait=wait) as subscription:
        yield subscription


def inside(subscription: Subscription) -> AIOKafkaConsumer:
    return cast(KafkaSubscription, subscription)._consumer


async def until_it_gives_up(subscription: Subscription) -> str:
    with pytest.raises(LogUnavailable) as raised:
        async with asyncio.timeout(DEADLINE):
            while True:
                await subscription.next_batch()
    return str(raised.value)


TASKS: Mapping[str, Callable[[AIOKafkaConsumer], "asyncio.Task[None]"]] = {
    "coordination": lambda consumer: consumer._coordinator._coordination_task,
    "fetching": lambda consumer: consumer._fetcher._fetch_task,
}


@pytest.mark.parametrize("task", TASKS)
async def test_a_member_whose_inner_task_dies_is_given_up_and_a_new_one_goes_on(kafka: Kafka, task: str) -> None:
    log, group, store = KafkaLog(kafka.bootstrap, times=QUICK), unique("g"), Store()
    topic = await new_topic(log, partitions=2)
    await publish(log, topic, numbered(20))
    async with member(log, topic, group, store) as first:
        batches = await batches_of(first, 20)
        for batch in batches:
            store.write(batch)
        TASKS[task](inside(first)).cancel()
        await until_it_gives_up(first)
    await publish(log, topic, numbered(20, first=20))
    async with member(log, topic, group, store) as second:
        batches += await batches_of(second, 20)
    assert len(records_of(batches)) == len({record.value for record in records_of(batches)}) == 40


async def test_a_cancelled_read_inside_is_an_outage_and_no_cancellation_of_ours(kafka: Kafka) -> None:
    """Else the task of a topic would end in silence, and the process with success."""
    log = KafkaLog(kafka.bootstrap)
    topic = await new_topic(log)
    async with member(log, topic, unique("g"), Store()) as subscription:
        reading = asyncio.create_task(subscription.next_batch())
        while not (taking := cast(KafkaSubscription, subscription)._taking):  # noqa: ASYNC110 - it starts at once
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(LogUnavailable):
            await reading


async def test_records_that_are_there_and_do_not_come_end_the_membership(kafka: Kafka) -> None:
    log = KafkaLog(kafka.bootstrap, times=QUICK)
    topic = await new_topic(log, partitions=2)
    async with member(log, topic, unique("g"), Store()) as subscription:
        await publish(log, topic, numbered(20))
        await batches_of(subscription, 20)
        inside(subscription).pause(TopicPartition(topic, 1))  # stands for aiokafka no longer fetching it
        await publish(log, topic, numbered(20))
        assert "partition 1 stands at" in await until_it_gives_up(subscription)


async def test_a_watchdog_that_fails_ends_the_membership(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody would watch it any more, and nobody would know."""
    log = KafkaLog(kafka.bootstrap, times=QUICK)
    topic = await new_topic(log)

    def fail(*_: object) -> None:
        raise KeyError("a bug")

    async with member(log, topic, unique("g"), Store()) as subscription:
        monkeypatch.setattr(cast(KafkaSubscription, subscription)._lookout.watchdog, "looked", fail)
        assert "a bug" in await until_it_gives_up(subscription)


async def test_a_partition_that_waits_for_its_turn_is_no_reason_to_give_up(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch holds the records of one partition here; it is left to chance whose, and some wait for many fetches."""
    monkeypatch.setattr("ingest.eventlog.kafka.membership.FETCH_BYTES", 1)
    log = KafkaLog(kafka.bootstrap, times=QUICK)
    topic = await new_topic(log, partitions=24)
    async with log.publisher() as publisher:
        for n in range(20):
            await publisher.publish(topic, numbered(100, keys=100, first=100 * n))
    async with member(log, topic, unique("g"), Store()) as subscription:
        assert len(records_of(await batches_of(subscription, 2000))) == 2000


async def test_an_idle_member_is_not_given_up(kafka: Kafka) -> None:
    log = KafkaLog(kafka.bootstrap, times=QUICK)
    topic = await new_topic(log, partitions=2)
    async with member(log, topic, unique("g"), Store()) as subscription:
        await publish(log, topic, numbered(20))
        await batches_of(subscription, 20)
        watchdog = cast(KafkaSubscription, subscription)._lookout.watchdog
        looks: list[Look | None] = []
        async with asyncio.timeout(DEADLINE):
            while len(looks) < 5:
                await subscription.next_batch()
                if watchdog._last not in looks:
                    looks.append(watchdog._last)


class Stubborn(ConsumerRebalanceListener):  # type: ignore[misc]
    """A member that does not let go of its partitions."""

    def __init__(self) -> None:
        self.assigned, self.let_go = asyncio.Event(), asyncio.Event()

    async def on_partitions_assigned(self, assigned: object) -> None:
        self.assigned.set()

    async def on_partitions_revoked(self, revoked: object) -> None:
        if self.assigned.is_set():
            await self.let_go.wait()


async def test_a_member_without_an_assignment_for_long_is_given_up(kafka: Kafka) -> None:
    log, group = KafkaLog(kafka.bootstrap, times=Times(rebalance=0.5)), unique("g")
    topic, stubborn = await new_topic(log), Stubborn()
    other = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=group, rebalance_timeout_ms=60_000)
    await other.start()
    try:
        other.subscribe([topic], listener=stubborn)
        await asyncio.wait_for(stubborn.assigned.wait(), DEADLINE)
        async with member(log, topic, group, Store()) as subscription:
            assert "no assignment" in await until_it_gives_up(subscription)
            stubborn.let_go.set()
    finally:
        stubborn.let_go.set()
        await other.stop()


async def test_a_member_that_the_group_has_forgotten_joins_again_and_goes_on(kafka: Kafka) -> None:
    log, group, store = KafkaLog(kafka.bootstrap, times=Times(heartbeat=0.1)), unique("g"), Store()
    topic = await new_topic(log, partitions=2)
    await publish(log, topic, numbered(20))
    async with member(log, topic, group, store) as subscription:
        for batch in await batches_of(subscription, 20):
            store.write(batch)
            await subscription.commit(batch)
        asked = store.asked
        await kafka_groups.evict(kafka.bootstrap, group)
        async with asyncio.timeout(DEADLINE):
            while store.asked == asked:
                await subscription.next_batch()
        await publish(log, topic, numbered(20, first=20))
        again = await batches_of(subscription, 20)
    assert {int((r.value or b"")[5:-1]) for r in records_of(again)} == set(range(20, 40))


async def test_an_assignment_ends_the_wait_for_records(kafka: Kafka) -> None:
    """It comes while the first batch is waited for, and here that waits much longer than the test."""
    log = KafkaLog(kafka.bootstrap)
    topic = await new_topic(log)
    await publish(log, topic, numbered(20))
    async with member(log, topic, unique("g"), Store(), wait=10 * DEADLINE) as subscription:
        async with asyncio.timeout(DEADLINE):
            batch = await subscription.next_batch()
    assert batch.records


async def test_partitions_that_are_added_are_read_from_their_beginning(
    kafka: Kafka, cluster: AIOKafkaAdminClient
) -> None:
    log, store = KafkaLog(kafka.bootstrap, times=QUICK), Store()
    topic = await new_topic(log, partitions=4)
    await publish(log, topic, numbered(50, keys=50))
    async with member(log, topic, unique("g"), store) as subscription:
        for batch in await batches_of(subscription, 50):
            await subscription.commit(batch)
        await cluster.create_partitions({topic: NewPartitions(total_count=8)})
        async with log.admin() as admin, asyncio.timeout(DEADLINE):
            while (await admin.describe([topic]))[topic].spec.partitions < 8:  # noqa: ASYNC110 - a broker is asked
                await asyncio.sleep(0.02)
        await publish(log, topic, numbered(200, keys=200, first=1000))
        read: set[tuple[int, int]] = set()
        async with asyncio.timeout(DEADLINE):
            while len(read) < 250:
                batch = await subscription.next_batch()
                if not batch.lost:
                    read |= {(record.partition, record.offset) for record in batch.records}
                    await subscription.commit(batch)
    assert {partition for partition, _ in read} == set(range(8))


async def test_more_consumers_than_partitions_are_said_to_sit_idle(kafka: Kafka) -> None:
    log, group = KafkaLog(kafka.bootstrap, times=Times(heartbeat=0.1)), unique("g")
    topic = await new_topic(log, partitions=1)
    with capture_logs() as logged:
        async with (
            member(log, topic, group, Store()) as one,
            member(log, topic, group, Store()) as two,
            member(log, topic, group, Store()) as three,
        ):
            async with asyncio.timeout(DEADLINE):
                while not [entry for entry in logged if entry.get("consumers") == 3]:
                    await asyncio.gather(*(subscription.next_batch() for subscription in (one, two, three)))
    [warning] = [entry for entry in logged if entry.get("consumers") == 3]
    assert (warning["event"], warning["log_level"]) == ("more consumers than partitions", "warning")
    assert (warning["topic"], warning["partitions"], warning["idle"]) == (topic, 1, 2)


@pytest.mark.parametrize("left", [5, 0], ids=["some are left", "all are trimmed"])
async def test_offsets_trimmed_while_they_are_read_are_counted(
    kafka: Kafka, cluster: AIOKafkaAdminClient, left: int
) -> None:
    """More is there than aiokafka fetches ahead, so what is deleted now was not fetched."""
    log, count = KafkaLog(kafka.bootstrap), 90
    topic = await new_topic(log, partitions=1)
    large = [message("k", random.Random(n).randbytes(50_000)) for n in range(count)]
    await publish(log, topic, large)
    async with member(log, topic, unique("g"), Store()) as subscription:
        batches = [await some_batch(subscription)]
        await cluster.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=count - left)})
        with capture_logs() as logged:
            async with asyncio.timeout(DEADLINE):
                while sum(batch.trimmed for batch in batches) == 0:
                    batches.append(await subscription.next_batch())
    read = [record.offset for record in records_of(batches)]
    spans = [span for batch in batches for span in batch.spans]
    [trimmed] = [batch.trimmed for batch in batches if batch.trimmed]
    assert read == [n for n in range(count) if n < count - left - trimmed or n >= count - left]
    assert (spans[0].start, spans[-1].end) == (0, count)
    assert [e["count"] for e in logged if e["log_level"] == "error"] == [trimmed]


async def test_every_gap_is_looked_at_and_markers_of_transactions_are_not_taken_for_trimmed_offsets(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record at a time, so that there are several gaps between the records of one batch."""
    monkeypatch.setattr("ingest.eventlog.kafka.intake.PIECE", 1)
    looked_at: list[tuple[int, int, int]] = []
    find = Intake.find_trimmed

    async def looking(self: Intake, jumps: Sequence[tuple[int, int, int]]) -> None:
        looked_at.extend(jumps)
        await find(self, jumps)

    monkeypatch.setattr(Intake, "find_trimmed", looking)
    log = KafkaLog(kafka.bootstrap)
    topic = await new_topic(log, partitions=1)
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=topic)
    await producer.start()
    try:
        for _ in range(3):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"{}", key=b"k")
    finally:
        await producer.stop()
    with capture_logs() as logged:
        async with member(log, topic, unique("g"), Store()) as subscription:
            batches = await batches_of(subscription, 3)
    assert [record.offset for record in records_of(batches)] == [0, 2, 4]
    assert looked_at[:2] == [(0, 1, 2), (0, 3, 4)]
    assert sum(batch.trimmed for batch in batches) == 0
    assert [entry for entry in logged if entry["log_level"] == "error"] == []
