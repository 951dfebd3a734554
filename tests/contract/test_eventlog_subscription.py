"""What every subscription does: it starts where the store stands, hands out batches, takes back what is not written."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from ingest.errors import ConfigError, StoreUnavailable, Transient
from ingest.eventlog import Batch, EventLog
from ingest.eventlog.kafka import KafkaLog
from tests.contract.eventlogs import (
    DEADLINE,
    WAIT,
    Store,
    batches_of,
    ends_of,
    message,
    new_topic,
    numbered,
    offsets_by_partition,
    open_sqlite_log,
    publish,
    read_all,
    records_of,
    some_batch,
)
from tests.harness.names import unique


@pytest_asyncio.fixture(params=["sqlite", "kafka"])
async def event_log(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[EventLog]:
    if request.param == "kafka":
        yield KafkaLog(request.getfixturevalue("kafka").bootstrap)
        return
    async with open_sqlite_log(sqlite_path) as log:
        yield log


async def test_a_subscription_reads_everything_from_the_beginning_when_the_store_is_empty(event_log: EventLog) -> None:
    topic, store = await new_topic(event_log), Store()
    await publish(event_log, topic, numbered(500))
    async with event_log.subscribe(topic, unique("g"), store, records=100, bytes=1_000_000, wait=WAIT) as subscription:
        batches: list[Batch] = []
        while len(records_of(batches)) < 500:
            batches.append(await some_batch(subscription))
            store.write(batches[-1])
            await subscription.commit(batches[-1])
    assert sorted(int((r.value or b"")[5:-1]) for r in records_of(batches)) == list(range(500))
    assert store.stands == ends_of(records_of(batches))
    assert all(len(batch.records) <= 100 for batch in batches)


async def test_records_are_handed_out_byte_for_byte_with_their_places(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    headers = [("b", b"\xff"), ("a", b""), ("b", b"2")]
    await publish(event_log, topic, [message("k", b"\xff\x00\xfe", headers), message("k", b'"\\u0000"', headers)])
    async with event_log.subscribe(topic, unique("g"), Store(), records=9, bytes=9_999, wait=WAIT) as subscription:
        first, second = records_of(await batches_of(subscription, 2))
    assert (first.key, first.value, list(first.headers)) == (b"k", b"\xff\x00\xfe", headers)
    assert (second.topic, second.partition, second.offset, second.value) == (topic, 0, 1, b'"\\u0000"')
    assert second.timestamp > 1_600_000_000_000


async def test_spans_join_without_a_gap_and_end_after_the_last_record(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=3)
    await publish(event_log, topic, numbered(300))
    async with event_log.subscribe(topic, unique("g"), Store(), records=40, bytes=1_000_000, wait=WAIT) as subscription:
        batches = await batches_of(subscription, 300)
    ends: dict[int, int] = {}
    for batch in batches:
        offsets = offsets_by_partition(batch.records)
        assert {span.partition for span in batch.spans} == set(offsets)
        assert len(batch.spans) == len(offsets)
        for span in batch.spans:
            assert span.topic == topic
            assert span.start == ends.get(span.partition, 0)
            assert offsets[span.partition] == list(range(span.start, span.end))
            ends[span.partition] = span.end


async def test_a_subscription_starts_where_the_store_stands_and_not_where_its_group_committed(
    event_log: EventLog,
) -> None:
    topic, group = await new_topic(event_log, partitions=2), unique("g")
    await publish(event_log, topic, numbered(100))
    async with event_log.subscribe(topic, group, Store(), records=500, bytes=1_000_000, wait=WAIT) as subscription:
        for batch in await batches_of(subscription, 100):
            await subscription.commit(batch)
    ends = ends_of(await read_all(event_log, topic))
    behind = Store({0: 5, 1: ends[1] - 3})  # as if the last writes had been rolled back
    async with event_log.subscribe(topic, group, behind, records=500, bytes=1_000_000, wait=WAIT) as subscription:
        batches = await batches_of(subscription, ends[0] - 5 + 3)
        assert not (await subscription.next_batch()).records
    assert offsets_by_partition(records_of(batches)) == {
        0: list(range(5, ends[0])),
        1: list(range(ends[1] - 3, ends[1])),
    }


async def test_a_store_ahead_of_what_was_committed_is_believed(event_log: EventLog) -> None:
    """A crash after the write and before the commit."""
    topic, group = await new_topic(event_log, partitions=1), unique("g")
    await publish(event_log, topic, numbered(50))
    async with event_log.subscribe(topic, group, Store({0: 40}), records=99, bytes=99_999, wait=WAIT) as subscription:
        records = records_of(await batches_of(subscription, 10))
    assert [record.offset for record in records] == list(range(40, 50))


async def test_batches_may_be_read_ahead_and_committed_later(event_log: EventLog) -> None:
    topic, store = await new_topic(event_log, partitions=1), Store()
    await publish(event_log, topic, numbered(90))
    async with event_log.subscribe(topic, unique("g"), store, records=30, bytes=1_000_000, wait=WAIT) as subscription:
        first, second, third = [await some_batch(subscription) for _ in range(3)]
        for batch in (first, second, third):
            store.write(batch)
            await subscription.commit(batch)
    assert [r.offset for r in records_of([first, second, third])] == list(range(90))
    assert not (first.lost or second.lost or third.lost)


async def test_rewind_loses_what_was_handed_out_and_begins_again_at_the_store(event_log: EventLog) -> None:
    topic, store = await new_topic(event_log, partitions=1), Store()
    await publish(event_log, topic, numbered(90))
    async with event_log.subscribe(topic, unique("g"), store, records=30, bytes=1_000_000, wait=WAIT) as subscription:
        written = await some_batch(subscription)
        store.write(written)
        await subscription.commit(written)
        failed, ahead = await some_batch(subscription), await some_batch(subscription)
        asked = store.asked
        await subscription.rewind()
        again = await batches_of(subscription, 60)
    assert (written.lost, failed.lost, ahead.lost) == (False, True, True)
    assert store.asked > asked
    assert [r.offset for r in records_of(again)] == list(range(30, 90))
    assert again[0].spans[0].start == 30


async def test_partitions_may_be_left_out_until_the_next_rewind(event_log: EventLog) -> None:
    topic, store = await new_topic(event_log, partitions=3), Store()
    await publish(event_log, topic, numbered(90))
    every = offsets_by_partition(await read_all(event_log, topic))
    async with event_log.subscribe(topic, unique("g"), store, records=30, bytes=1_000_000, wait=WAIT) as subscription:
        await some_batch(subscription)
        await subscription.rewind({0, 1})
        only = await batches_of(subscription, len(every[2]))
        assert not (await subscription.next_batch()).spans
        assert offsets_by_partition(records_of(only)) == {2: every[2]}
        assert subscription.lag() == {0: len(every[0]), 1: len(every[1]), 2: 0}
        assert subscription.partitions() == {0, 1, 2}
        await subscription.rewind({2})
        rest = await batches_of(subscription, len(every[0]) + len(every[1]))
    assert offsets_by_partition(records_of(rest)) == {partition: every[partition] for partition in (0, 1)}


async def test_a_lost_batch_may_be_committed_and_moves_nothing(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    await publish(event_log, topic, numbered(20))
    async with event_log.subscribe(topic, unique("g"), Store(), records=10, bytes=1_000_000, wait=WAIT) as subscription:
        lost = await some_batch(subscription)
        await subscription.rewind()
        await subscription.commit(lost)
        assert lost.lost
        assert (await some_batch(subscription)).records[0].offset == 0


async def test_groups_read_a_topic_independently(event_log: EventLog) -> None:
    topic = await new_topic(event_log)
    await publish(event_log, topic, numbered(60))
    async with (
        event_log.subscribe(topic, unique("g"), Store(), records=100, bytes=99_999, wait=WAIT) as one,
        event_log.subscribe(topic, unique("g"), Store(), records=100, bytes=99_999, wait=WAIT) as other,
    ):
        first = await batches_of(one, 60)
        for batch in first:
            await one.commit(batch)
        second = await batches_of(other, 60)
    values = [sorted(record.value or b"" for record in records_of(batches)) for batches in (first, second)]
    assert values[0] == values[1]
    assert len(values[0]) == 60


async def test_a_batch_stays_about_within_its_bytes(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=2)
    await publish(event_log, topic, [message(f"key-{n}", b"x" * 10_000) for n in range(60)])
    async with event_log.subscribe(topic, unique("g"), Store(), records=999, bytes=50_000, wait=WAIT) as subscription:
        batches = await batches_of(subscription, 60)
    sizes = [sum(len(record.value or b"") for record in batch.records) for batch in batches]
    assert max(sizes) <= 50_000 + 2 * 10_000  # the last record of each partition may go beyond
    assert sorted((r.partition, r.offset) for r in records_of(batches)) == sorted(
        (partition, offset)
        for partition, offsets in offsets_by_partition(records_of(batches)).items()
        for offset in range(len(offsets))
    )


async def test_a_record_larger_than_a_batch_is_handed_out_alone(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    await publish(event_log, topic, [message("k", b"x" * 5_000), message("k", b"small")])
    async with event_log.subscribe(topic, unique("g"), Store(), records=10, bytes=1_000, wait=WAIT) as subscription:
        assert [len(batch.records) for batch in await batches_of(subscription, 2)] == [1, 1]


async def test_a_topic_without_records_gives_empty_batches(event_log: EventLog) -> None:
    topic = await new_topic(event_log)
    async with event_log.subscribe(topic, unique("g"), Store(), records=10, bytes=1_000, wait=WAIT) as subscription:
        batch = await subscription.next_batch()
        await subscription.commit(batch)
    assert (tuple(batch.records), batch.spans, batch.lost) == ((), (), False)


async def test_what_is_published_later_arrives(event_log: EventLog) -> None:
    topic = await new_topic(event_log)
    async with event_log.subscribe(topic, unique("g"), Store(), records=10, bytes=9_999, wait=WAIT) as subscription:
        assert not (await subscription.next_batch()).records
        await publish(event_log, topic, numbered(3))
        assert len(records_of(await batches_of(subscription, 3))) == 3
        await publish(event_log, topic, numbered(2))
        assert len(records_of(await batches_of(subscription, 2))) == 2


async def test_lag_counts_what_was_not_handed_out(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=2)
    await publish(event_log, topic, numbered(50))
    async with event_log.subscribe(topic, unique("g"), Store(), records=10, bytes=99_999, wait=WAIT) as subscription:
        left = 50 - len((await some_batch(subscription)).records)
        async with asyncio.timeout(DEADLINE):
            while sum(subscription.lag().values()) != left:  # Kafka tells the end of a partition with its first records
                left -= len((await subscription.next_batch()).records)
        await batches_of(subscription, left)
        assert subscription.lag() == {0: 0, 1: 0}


async def test_a_store_that_stands_beyond_the_end_of_the_log_is_for_a_person(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    await publish(event_log, topic, numbered(5))
    async with event_log.subscribe(topic, unique("g"), Store({0: 6}), records=9, bytes=999, wait=WAIT) as subscription:
        with pytest.raises(ConfigError, match="made anew"):
            async with asyncio.timeout(DEADLINE):
                while True:
                    await subscription.next_batch()


async def test_a_store_that_does_not_answer_is_asked_again_by_the_next_call(event_log: EventLog) -> None:
    topic, attempts = await new_topic(event_log), 0

    async def start(topic_id: str) -> Mapping[int, int]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise StoreUnavailable("the store is away")
        return {}

    await publish(event_log, topic, numbered(5))
    async with event_log.subscribe(topic, unique("g"), start, records=9, bytes=999, wait=WAIT) as subscription:
        with pytest.raises(Transient, match="the store is away"):
            async with asyncio.timeout(DEADLINE):
                while True:
                    await subscription.next_batch()
        assert len(records_of(await batches_of(subscription, 5))) == 5
    assert attempts == 2


async def test_a_cancelled_wait_loses_no_record(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    batches = []
    async with event_log.subscribe(topic, unique("g"), Store(), records=5, bytes=9_999, wait=WAIT) as subscription:
        for first in range(0, 50, 5):
            waiting = asyncio.create_task(subscription.next_batch())
            await asyncio.sleep(0)
            await publish(event_log, topic, numbered(5, first=first))
            waiting.cancel()
            await asyncio.wait({waiting})
            if not waiting.cancelled():
                batches.append(waiting.result())
        batches += await batches_of(subscription, 50 - len(records_of(batches)))
    assert [r.offset for r in records_of(batches)] == list(range(50))


async def test_idling_keeps_what_was_read_ahead(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    await publish(event_log, topic, numbered(40))
    async with event_log.subscribe(topic, unique("g"), Store(), records=10, bytes=9_999, wait=WAIT) as subscription:
        first = await some_batch(subscription)
        await subscription.idle(0.05)
        rest = await batches_of(subscription, 30)
        assert not first.lost
    assert [r.offset for r in records_of([first, *rest])] == list(range(40))


async def test_subscribing_to_a_topic_that_does_not_exist_is_for_a_person(event_log: EventLog) -> None:
    with pytest.raises(ConfigError, match=r"topics\.create"):
        async with event_log.subscribe(unique("nowhere"), unique("g"), Store(), records=1, bytes=1, wait=WAIT):
            pass
