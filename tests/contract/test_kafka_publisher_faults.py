"""What a publisher does when brokers refuse a record, a page or a topic, lose a topic, or do not answer."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.codec import zstd_decode
from aiokafka.errors import KafkaError, ProducerFenced, UnknownTopicOrPartitionError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.util import calc_crc32c
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from ingest import deadletter, topics
from ingest.config.model import Topics
from ingest.errors import BadRecord, ConfigError, LogUnavailable
from ingest.event import Form, Message
from ingest.eventlog import partition_of
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.kafka.cluster import Cluster
from ingest.eventlog.kafka.producer import HandedBack, Producer
from ingest.eventlog.kafka.publisher import Patience
from tests.contract.eventlogs import HEADERS, message, new_topic, numbered, read_all
from tests.harness import kafka as kafka_server
from tests.harness.kafka import Kafka
from tests.harness.names import unique

HEAD = 40  # bytes between the checksum of a batch and its records
LAST_SEQUENCE = 2**31 - 1
DEADLINE = 120.0  # seconds that a test waits for what must come
SMALL = Topics(partitions=1, replication=1, min_insync=1, durability="relaxed")


@pytest.fixture
def log(kafka: Kafka) -> KafkaLog:
    return KafkaLog(kafka.bootstrap)


async def configure(cluster: AIOKafkaAdminClient, topic: str, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    await cluster.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])


def rebuilds() -> float:
    metric = next(m for m in REGISTRY.collect() if m.name == "ingest_producer_rebuilds")
    return sum(sample.value for sample in metric.samples if sample.name.endswith("_total"))


def shown(name: str, topic: str) -> float:
    return REGISTRY.get_sample_value(f"ingest_producer_{name}", {"topic": topic}) or 0.0


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not ready():  # noqa: ASYNC110 - the other side is a broker
            await asyncio.sleep(0.02)


def bulky(count: int, key: str = "k") -> list[Message]:
    """Messages of 2 KB that do not compress: 250 of them are a batch."""
    return [message(key, b"%d " % n + random.Random(n).randbytes(2_000)) for n in range(count)]


def key_of(partition: int, partitions: int) -> str:
    return next(key for key in map(str, range(1_000)) if partition_of(key.encode(), partitions) == partition)


def one_record(value: bytes) -> BatchBuilder:
    batch = BatchBuilder(10_000, 0)
    batch.append(timestamp=time.time_ns() // 1_000_000, key=b"k", value=value)
    return batch


@asynccontextmanager
async def open_producer(kafka: Kafka) -> AsyncIterator[Producer]:
    producer = Producer(Cluster(kafka.bootstrap), 30.0)
    try:
        await producer.start(None)
        yield producer
    finally:
        await producer.abandon()


class Keyless(Message, frozen=True):
    """What a compacted topic refuses: the one fault of a single record that a broker without plug-ins looks for."""

    def size(self) -> int:
        return 200


def keyless(value: bytes = b"no key") -> Message:
    return Keyless(None, value, Form(tuple(HEADERS)))  # type: ignore[arg-type]


async def compacted(log: KafkaLog, cluster: AIOKafkaAdminClient) -> str:
    topic = await new_topic(log, partitions=1)
    await configure(cluster, topic, cleanup_policy="compact")
    return topic


async def values(log: KafkaLog, topic: str, partition: int = 0) -> Sequence[bytes | None]:
    return [record.value for record in await read_all(log, topic) if record.partition == partition]


@pytest.mark.parametrize("used_before", [True, False])
async def test_a_page_under_a_limit_that_fell_is_published_in_order_but_for_what_is_too_large(
    log: KafkaLog, cluster: AIOKafkaAdminClient, used_before: bool
) -> None:
    topic, neighbour = await new_topic(log, partitions=2), await new_topic(log, partitions=1)
    key, other = key_of(1, 2), key_of(0, 2)
    large = message(key, random.Random(1).randbytes(300_000))
    small = [message(key, b"%d" % n + bytes(2_000)) for n in range(100, 900)]  # fit when they are compressed
    page = [large, *bulky(100, key), *small]  # the first batch is refused, those behind it would not be
    async with log.publisher() as publisher:
        await publisher.publish(topic, [message(key if used_before else other, b"before")])
        await configure(cluster, topic, max_message_bytes="250000")
        before = rebuilds()
        published, undisturbed = await asyncio.gather(
            publisher.publish(topic, page), publisher.publish(neighbour, bulky(900))
        )
        assert (published.acknowledged, published.oversized, published.refused) == (900, (0,), ())
        assert undisturbed.acknowledged == 900
        assert rebuilds() == before
    there = [value for value in await values(log, topic, 1) if value != b"before"]
    assert there == [m.value for m in page[1:]]
    assert await values(log, neighbour) == [m.value for m in bulky(900)]


async def test_a_limit_that_falls_while_pages_are_published_loses_and_doubles_nothing(
    log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    topic = await new_topic(log, partitions=1)
    pages = [bulky(300, str(n)) for n in range(20)]
    async with log.publisher() as publisher:
        for n, page in enumerate(pages):
            lowering = asyncio.create_task(configure(cluster, topic, max_message_bytes=str(400_000 // (n + 1))))
            assert (await publisher.publish(topic, page)).acknowledged == 300
            await lowering
    assert await values(log, topic) == [m.value for page in pages for m in page]


async def test_a_record_that_the_broker_refuses_is_reported_and_its_neighbours_are_published_in_order(
    log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    topic = await compacted(log, cluster)
    page = numbered(400)
    page[0] = page[211] = page[212] = page[399] = keyless()
    async with log.publisher() as publisher:
        before = rebuilds()
        published = await publisher.publish(topic, page)
        again = await publisher.publish(topic, numbered(1, first=400))
        assert rebuilds() == before
    assert [(refused.at, refused.code) for refused in published.refused] == [
        (at, "invalid_record") for at in (0, 211, 212, 399)
    ]
    assert (published.acknowledged, again.acknowledged) == (396, 1)
    good = [m for m in page if m.key is not None] + numbered(1, first=400)
    assert await values(log, topic) == [m.value for m in good]


async def test_one_refused_record_alone_in_its_page_is_reported(log: KafkaLog, cluster: AIOKafkaAdminClient) -> None:
    topic = await compacted(log, cluster)
    async with log.publisher() as publisher:
        published = await publisher.publish(topic, [keyless()])
    assert (published.acknowledged, len(published.refused)) == (0, 1)


@pytest.mark.parametrize("count", [3, 500])
async def test_a_topic_that_refuses_a_whole_page_is_for_a_person_and_nothing_is_set_aside(
    log: KafkaLog, cluster: AIOKafkaAdminClient, count: int
) -> None:
    topic = await compacted(log, cluster)
    async with log.publisher() as publisher:
        with pytest.raises(ConfigError, match="refuses every record: invalid_record"):
            await publisher.publish(topic, [keyless()] * count)
        assert (await publisher.publish(topic, numbered(10))).acknowledged == 10
    assert len(await values(log, topic)) == 10


async def test_a_topic_deleted_while_it_is_written_is_for_a_person_and_the_others_go_on(
    log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    topic, neighbour = await new_topic(log, partitions=2), await new_topic(log, partitions=1)
    async with log.publisher() as publisher, asyncio.timeout(DEADLINE):
        await publisher.publish(topic, numbered(10))
        await publisher.publish(neighbour, numbered(10))
        await cluster.delete_topics([topic])
        with pytest.raises(ConfigError, match=f"{topic} does not exist"):
            while True:  # the broker takes records until it has heard of it
                await publisher.publish(topic, numbered(10))
        assert (await publisher.publish(neighbour, numbered(10))).acknowledged == 10
        with pytest.raises(ConfigError, match=f"{topic} does not exist"):
            await publisher.publish(topic, numbered(10))
        async with log.admin() as admin:
            await topics.ensure(admin, [topic], SMALL, replicated=True)
        assert (await publisher.publish(topic, numbered(10))).acknowledged == 10
    assert len(await read_all(log, topic)) == 10


async def test_a_dead_letter_topic_deleted_meanwhile_is_made_again_where_topics_may_be_created(
    log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    letters = deadletter.topic_for(unique("orders"), "source")
    async with asyncio.timeout(DEADLINE), log.publisher() as publisher, log.admin() as admin:

        async def prepare(names: Sequence[str]) -> None:
            await topics.ensure(admin, names, SMALL, replicated=True)

        async def refuse(names: Sequence[str]) -> None:
            await topics.ensure(admin, names, SMALL.model_copy(update={"create": False}), replicated=True)

        await prepare([letters])
        await publisher.publish(letters, numbered(1))
        await cluster.delete_topics([letters])
        with pytest.raises(ConfigError, match=r"topics: \{create: true\}"):
            while True:
                await topics.Restoring(publisher, refuse).publish(letters, numbered(1))
        assert (await topics.Restoring(publisher, prepare).publish(letters, numbered(3))).acknowledged == 3
    assert len(await read_all(log, letters)) == 3


async def test_a_producer_that_was_replaced_writes_nothing_behind_its_successor(kafka: Kafka, log: KafkaLog) -> None:
    topic = await new_topic(log, partitions=1)

    async def send(producer: Producer, value: bytes) -> None:
        await (await producer.enqueue(one_record(value), topic, 0, breaks=0))

    former, successor = (Producer(Cluster(kafka.bootstrap), 30.0) for _ in range(2))
    try:
        await former.start(None)
        await send(former, b"first")
        await successor.start(former)
        await send(former, b"before it wrote")
        await send(successor, b"second")
        with pytest.raises(ProducerFenced):
            await send(former, b"late")
        await send(successor, b"third")
    finally:
        await former.abandon()
        await successor.abandon()
    assert await values(log, topic) == [b"first", b"before it wrote", b"second", b"third"]


async def test_a_broker_that_freezes_is_an_outage_then_the_page_is_published_and_stopping_is_bounded(
    tmp_path: Path,
) -> None:
    kafka = kafka_server.start(tmp_path / "kafka")
    try:
        topic, another = [await new_topic(KafkaLog(kafka.bootstrap), partitions=2) for _ in range(2)]
        short = KafkaLog(kafka.bootstrap, patience=Patience(deadline=2.0))
        stuck = KafkaLog(kafka.bootstrap, patience=Patience(deadline=DEADLINE, request=1.0))
        async with asyncio.timeout(DEADLINE), short.publisher() as publisher, stuck.publisher() as patient:
            await publisher.publish(topic, numbered(10))
            await patient.publish(another, [message("other", b"%d" % 1000)])
            kafka.pause()
            with pytest.raises(LogUnavailable, match="0 of 10 messages acknowledged in 2 s"):
                await publisher.publish(topic, numbered(10, first=10))
            assert shown("oldest_unacked_timestamp_seconds", topic) > 0
            assert shown("unacked_records", topic) == 0
            before = rebuilds()
            others = [message("other", b"%d" % n) for n in range(1001, 1011)]
            waiting = asyncio.create_task(patient.publish(another, others))
            await until(lambda: rebuilds() > before)
            kafka.resume()
            assert (await waiting).acknowledged == 10
            await publisher.publish(topic, numbered(10, first=10))
            await publisher.publish(topic, numbered(10, first=20))
            assert shown("oldest_unacked_timestamp_seconds", topic) == 0
            kafka.pause()
            cut_short = asyncio.create_task(publisher.publish(topic, numbered(10, first=30)))
            await until(lambda: shown("unacked_records", topic) > 0)
            cut_short.cancel()
            await asyncio.wait({cut_short})
        kafka.resume()
        other = [record.value for record in await read_all(KafkaLog(kafka.bootstrap), another)]
        by_key: dict[bytes | None, list[bytes]] = {}
        for record in await read_all(KafkaLog(kafka.bootstrap), topic):
            by_key.setdefault(record.key, []).append(record.value or b"")
    finally:
        kafka.close()
    assert list(dict.fromkeys(other)) == [b"%d" % n for n in range(1000, 1011)]
    for n in range(7):
        first_copies = [int(value[5:-1]) for value in dict.fromkeys(by_key[b"key-%d" % n])]
        assert first_copies[: len(range(n, 30, 7))] == list(range(n, 30, 7))


async def test_a_topic_that_may_elect_unclean_leaders_is_refused_or_warned_of(
    log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    topic = await new_topic(log, partitions=1)
    await configure(cluster, topic, unclean_leader_election_enable="true")
    async with log.admin() as admin:
        with capture_logs() as logged:
            await topics.ensure(admin, [topic], SMALL, replicated=True)
        warned = next(entry for entry in logged if "topics" in entry)
        assert topic in warned["topics"]
        assert "unclean.leader.election.enable true" in warned["topics"]
        with pytest.raises(ConfigError, match=f"{topic} .*unclean.leader.election.enable true"):
            strict = SMALL.model_copy(update={"durability": "production"})
            await topics.ensure(admin, [topic], strict, replicated=True)


async def test_pages_of_one_partition_do_not_disturb_each_other_when_a_record_of_one_is_refused(
    log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    topic = await compacted(log, cluster)
    poisoned = [*numbered(50), keyless(), *numbered(50, first=50)]
    async with log.publisher() as publisher:
        await publisher.publish(topic, numbered(1))
        before = rebuilds()
        published, undisturbed = await asyncio.gather(
            publisher.publish(topic, poisoned), publisher.publish(topic, numbered(100, first=100))
        )
        assert rebuilds() == before
    assert (published.acknowledged, [refused.at for refused in published.refused]) == (100, [50])
    assert (undisturbed.acknowledged, undisturbed.refused) == (100, ())


async def test_sequence_numbers_begin_anew_after_the_largest(log: KafkaLog) -> None:
    topic = await new_topic(log, partitions=1)
    async with log.publisher() as publisher:
        await publisher.publish(await new_topic(log, partitions=1), numbered(1))
        producer = publisher._producers._producer  # type: ignore[attr-defined]
        producer._manager._sequence_numbers[TopicPartition(topic, 0)] = LAST_SEQUENCE - 15
        before = rebuilds()
        for first in range(0, 50, 10):
            assert await publisher.publish(topic, numbered(10, first=first)) == (10, ANY, (), ())
        assert rebuilds() == before
    assert await values(log, topic) == [m.value for m in numbered(50)]


async def test_a_partition_that_is_gone_when_a_producer_first_asks_is_told_as_such(kafka: Kafka, log: KafkaLog) -> None:
    topic = await new_topic(log, partitions=1)
    async with open_producer(kafka) as producer:
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.enqueue(one_record(b"v"), topic, 5, breaks=0)


async def test_who_asks_for_a_topic_is_released_when_the_producer_is_abandoned(kafka: Kafka) -> None:
    topic = unique("nowhere")
    async with open_producer(kafka) as producer, asyncio.timeout(DEADLINE):
        sending = asyncio.create_task(producer.enqueue(one_record(b"v"), topic, 0, breaks=0))
        await until(lambda: topic in producer._client.client._topics)
        await producer.abandon()
        with pytest.raises(KafkaError, match="given up"):
            await sending


async def send_to_what_is_deleted(producer: Producer, cluster: AIOKafkaAdminClient, topic: str) -> None:
    """Returns when the broker does not take records any more; the producer's hook has met one then."""
    await (await producer.enqueue(one_record(b"v"), topic, 0, breaks=0))
    await cluster.delete_topics([topic])
    async with asyncio.timeout(DEADLINE):
        while True:  # the broker takes records until it has heard of it
            await (await producer.enqueue(one_record(b"v"), topic, 0, breaks=0))


@pytest.mark.parametrize("queued_again", [False, True])
async def test_what_was_given_up_is_not_sent_again(
    kafka: Kafka, log: KafkaLog, cluster: AIOKafkaAdminClient, queued_again: bool
) -> None:
    topic = await new_topic(log, partitions=1)
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with open_producer(kafka) as producer:
        again = producer._accumulator.reenqueue

        def give_up(batch: object) -> None:
            if queued_again:
                again(batch)
            producer.give_up(topic)
            if not queued_again:
                again(batch)

        producer._accumulator.reenqueue = give_up
        with pytest.raises(HandedBack):
            await send_to_what_is_deleted(producer, cluster, topic)
    assert complaints == []


async def test_leaders_that_are_missing_are_asked_for_without_haste(
    kafka: Kafka, log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    topic = await new_topic(log, partitions=1)
    async with open_producer(kafka) as producer:
        client, times = producer._client.client, list[float]()
        update, again = client._metadata_update, producer._accumulator.reenqueue

        async def timed(*arguments: object) -> bool:
            times.append(time.monotonic())
            return bool(await update(*arguments))

        def begin(batch: object) -> None:
            client._metadata_update = timed
            again(batch)

        producer._accumulator.reenqueue = begin
        sending = asyncio.create_task(send_to_what_is_deleted(producer, cluster, topic))
        await until(lambda: len(times) > 12)
        assert producer.waits_for[topic] == "partition 0 has no leader"
        producer.give_up(topic)
        with pytest.raises(HandedBack):
            await sending
    assert times[-1] - times[0] > 1.0  # however slow a machine is, it takes no less


async def test_a_header_that_is_null_survives_also_in_a_dead_letter_and_its_pointer(log: KafkaLog) -> None:
    topic = await new_topic(log, partitions=1)
    foreign: list[tuple[str, bytes]] = [("null", None), ("", b"")]  # type: ignore[list-item]  # Kafka allows it
    async with log.publisher() as publisher:
        await publisher.publish(topic, [message("k", headers=foreign)])
        [record] = await read_all(log, topic)
        letter = deadletter.of_record(record, "postgres", BadRecord("no ce_id", stage="decode", code="no_header"))
        await publisher.publish(topic, [letter, deadletter.pointer(letter, "here")])
    assert [list(record.headers)[:2] for record in await read_all(log, topic)] == [foreign] * 3


async def test_a_batch_that_waited_for_memory_does_not_overtake_one_that_was_refused(
    log: KafkaLog, cluster: AIOKafkaAdminClient
) -> None:
    topic = await compacted(log, cluster)
    page = bulky(600)
    page[0] = keyless()
    async with log.publisher() as publisher:
        publisher._unacknowledged._limit = 1  # type: ignore[attr-defined]  # one batch at a time
        published = await publisher.publish(topic, page)
    assert (published.acknowledged, [refused.at for refused in published.refused]) == (599, [0])
    assert await values(log, topic) == [m.value for m in page[1:]]


@pytest.mark.parametrize("damaged", [5, 1_000])
async def test_a_record_that_arrives_damaged_is_sent_again_and_believed_to_be_bad_only_after_some_tries(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    topic = await new_topic(log, partitions=1)
    sent = 0

    def checksum(rest: bytes) -> int:
        nonlocal sent
        broken = b"broken" in zstd_decode(rest[HEAD:])
        sent += broken
        return int(calc_crc32c(rest)) ^ (broken and sent <= damaged)

    monkeypatch.setattr("ingest.eventlog.kafka.batches.calc_crc32c", checksum)
    page = [*numbered(3), message("k", b"broken"), *numbered(3, first=3)]
    async with log.publisher() as publisher:
        published = await publisher.publish(topic, page)
    refused = [(one.at, one.code) for one in published.refused]
    assert refused == ([] if damaged == 5 else [(3, "corrupt_message")])
    assert await values(log, topic) == [m.value for n, m in enumerate(page) if n != 3 or not refused]
