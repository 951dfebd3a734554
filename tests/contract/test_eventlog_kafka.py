"""What only the Kafka log does: members that share a topic, brokers that refuse or do not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from structlog.testing import capture_logs

from ingest.errors import ConfigError, LogUnavailable
from ingest.eventlog import Batch, Subscription
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.kafka.intake import FIRST_PIECE
from ingest.eventlog.kafka.subscription import KafkaSubscription
from ingest.eventlog.kafka.watchdog import Times
from tests.contract.eventlogs import (
    DEADLINE,
    WAIT,
    Store,
    message,
    new_topic,
    numbered,
    offsets_by_partition,
    publish,
    read_all,
    records_of,
    some_batch,
    spec,
)
from tests.harness.kafka import Kafka
from tests.harness.names import unique


@pytest.fixture
def log(kafka: Kafka) -> KafkaLog:
    return KafkaLog(kafka.bootstrap)


@asynccontextmanager
async def member(log: KafkaLog, topic: str, group: str, store: Store) -> AsyncIterator[Subscription]:
    async with log.subscribe(topic, group, store, records=50, bytes=1_000_000, wait=WAIT) as subscription:
        yield subscription


async def committed(cluster: AIOKafkaAdminClient, group: str) -> dict[int, int]:
    """Partition → committed offset, as lag tools see it."""
    found = await cluster.list_consumer_group_offsets(group)
    return {tp.partition: offset.offset for tp, offset in found.items()}


async def test_members_of_a_group_share_the_partitions_and_read_everything_once(log: KafkaLog) -> None:
    topic, group, store = await new_topic(log, partitions=4), unique("g"), Store()
    read: list[tuple[int, Batch]] = []

    async def consume(n: int, subscription: Subscription) -> None:
        batch = await subscription.next_batch()
        if batch.spans and not batch.lost:
            store.write(batch)
            read.append((n, batch))
            await subscription.commit(batch)

    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(log, topic, group, store)) for _ in range(2)]
        async with asyncio.timeout(DEADLINE):
            while {len(m.lag()) for m in members} != {2}:
                await asyncio.gather(*(m.next_batch() for m in members))
        await publish(log, topic, numbered(400, keys=40))
        async with asyncio.timeout(DEADLINE):
            while sum(len(batch.records) for _, batch in read) < 400:
                await asyncio.gather(*(consume(n, m) for n, m in enumerate(members)))
    partitions = [{span.partition for m, batch in read if m == n for span in batch.spans} for n in range(2)]
    assert partitions[0] | partitions[1] == {0, 1, 2, 3}
    assert not partitions[0] & partitions[1]
    assert len(records_of([batch for _, batch in read])) == 400


async def test_a_revocation_waits_for_the_batch_that_is_written_and_loses_what_was_read_ahead(log: KafkaLog) -> None:
    topic, group, store = await new_topic(log, partitions=2), unique("g"), Store()
    await publish(log, topic, numbered(200, keys=40))
    async with member(log, topic, group, store) as first:
        writing, ahead = await some_batch(first), await some_batch(first)
        async with member(log, topic, group, store) as second:
            async with asyncio.timeout(DEADLINE):
                while not ahead.lost:  # the revocation has begun
                    await asyncio.gather(first.next_batch(), second.next_batch())
            assert not writing.lost
            store.write(writing)
            await first.commit(writing)
            rest: list[Batch] = []
            async with asyncio.timeout(DEADLINE):
                while sum(len(batch.records) for batch in (writing, *rest)) < 200:
                    for subscription in (first, second):
                        batch = await subscription.next_batch()
                        if batch.spans and not batch.lost:
                            store.write(batch)
                            rest.append(batch)
                            await subscription.commit(batch)
    assert not writing.lost
    for offsets in offsets_by_partition(records_of([writing, *rest])).values():
        assert sorted(offsets) == list(range(len(offsets)))


async def test_a_revocation_does_not_wait_for_a_batch_that_nobody_is_writing(kafka: Kafka) -> None:
    """The store does not answer, and the whole group would wait for nothing, here for longer than the test."""
    log = KafkaLog(kafka.bootstrap, times=Times(revoke_wait=10 * DEADLINE))
    topic, group, store = await new_topic(log, partitions=2), unique("g"), Store()
    await publish(log, topic, numbered(200, keys=40))
    async with member(log, topic, group, store) as first:
        batch = await some_batch(first)
        idling = asyncio.create_task(first.idle(10 * DEADLINE))
        async with member(log, topic, group, store) as second:
            assert len({record.partition for record in records_of([await some_batch(second)])}) == 1
            assert batch.lost
        idling.cancel()


async def test_closing_ends_the_wait_of_a_revocation_and_the_batch_is_lost(log: KafkaLog) -> None:
    topic, group, store = await new_topic(log, partitions=2), unique("g"), Store()
    await publish(log, topic, numbered(200, keys=40))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(member(log, topic, group, store))
        never_written, ahead = await some_batch(first), await some_batch(first)
        async with member(log, topic, group, store) as second:
            async with asyncio.timeout(DEADLINE):
                while not ahead.lost:
                    await asyncio.gather(first.next_batch(), second.next_batch())
            await stack.aclose()
            assert never_written.lost
            while sum(store.stands.values()) < 200:
                batch = await some_batch(second)
                if not batch.lost:
                    store.write(batch)
                    await second.commit(batch)


async def test_offsets_are_committed_for_lag_tools_and_never_move_back(
    log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    topic, group, store = await new_topic(log, partitions=1), unique("g"), Store()
    await publish(log, topic, numbered(100))
    async with member(log, topic, group, store) as subscription:
        first, second = await some_batch(subscription), await some_batch(subscription)
        await subscription.commit(second)
        assert await committed(cluster, group) == {0: 100}
        await subscription.commit(first)
        assert await committed(cluster, group) == {0: 100}


async def test_a_lost_batch_is_not_committed(log: KafkaLog, cluster: AIOKafkaAdminClient) -> None:
    topic, group = await new_topic(log, partitions=1), unique("g")
    await publish(log, topic, numbered(20))
    async with member(log, topic, group, Store()) as subscription:
        batch = await some_batch(subscription)
        await subscription.rewind()
        await subscription.commit(batch)
        assert await committed(cluster, group) == {}


async def test_offsets_trimmed_unread_are_said_to_be_lost_and_the_span_starts_at_the_store(
    log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    topic = await new_topic(log, partitions=1)
    await publish(log, topic, numbered(10))
    await cluster.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=7)})
    with capture_logs() as logged:
        async with member(log, topic, unique("g"), Store({0: 4})) as subscription:
            batches: list[Batch] = []
            async with asyncio.timeout(DEADLINE):
                while not records_of(batches):  # the span may come in two pieces: what was trimmed, what is left
                    batches.append(await subscription.next_batch())
    spans = [span for batch in batches for span in batch.spans]
    assert [record.offset for record in records_of(batches)] == [7, 8, 9]
    assert sum(batch.trimmed for batch in batches) == 3
    assert (spans[0].start, spans[-1].end) == (4, 10)
    assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
    assert [(entry["partition"], entry["first"], entry["count"]) for entry in logged] == [(0, 4, 3)]


async def test_no_more_is_unpacked_than_a_batch_holds(log: KafkaLog) -> None:
    """Brokers count the bytes of a fetch as they are compressed: what is in it may be many times as large."""
    topic = await new_topic(log, partitions=1)
    large, limit = 20_000, 100_000
    await publish(log, topic, [message("k", b"x" * large) for _ in range(200)])
    unpacked, records = [], 0
    async with log.subscribe(topic, unique("g"), Store(), records=5000, bytes=limit, wait=WAIT) as subscription:
        while records < 200:
            batch = await some_batch(subscription)
            records += len(batch.records)
            ahead = sum(map(len, cast(KafkaSubscription, subscription)._intake.taken.values()))
            unpacked.append(large * (len(batch.records) + ahead))
            await subscription.commit(batch)
    assert max(unpacked) <= limit + FIRST_PIECE * large


async def test_too_few_brokers_for_the_replication_is_for_a_person(log: KafkaLog) -> None:
    async with log.admin() as admin:
        with pytest.raises(ConfigError, match="replication: 1"):
            await admin.create([spec(unique("orders"))._replace(replication=3)])


async def test_a_name_that_kafka_refuses_is_for_a_person(log: KafkaLog) -> None:
    async with log.admin() as admin:
        with pytest.raises(ConfigError, match="InvalidTopicError"):
            await admin.create([spec("no/slashes")])


async def test_a_broker_that_is_not_there_is_an_outage() -> None:
    log = KafkaLog("127.0.0.1:1")
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1"):
        await publish(log, "orders", numbered(1))
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1"):
        async with log.subscribe("orders", "g", Store(), records=1, bytes=1, wait=WAIT):
            pass
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1"):
        await read_all(log, "orders")
