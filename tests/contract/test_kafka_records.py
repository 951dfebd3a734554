"""Our records beside aiokafka's own, unpacked from the same fetches and in pieces: nothing is lost on the way."""

from collections.abc import Sequence

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ingest.event import Record
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.kafka.records import KafkaRecord, unpack_lightly
from tests.contract.eventlogs import Store, batches_of, new_topic, numbered, publish
from tests.harness.kafka import Kafka

WAIT_MS = 30_000  # for records that are there


Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def event(n: int, stream: str = "invoices") -> Sent:
    shared = [("ce_specversion", b"1.0"), ("ce_source", f"/billing/{stream}".encode()), ("ce_ingestfence", b"7")]
    return b"key%d" % n, b"{}", [*shared, ("ce_id", b"e%d" % n), ("ce_subject", b"%d" % n)]


def _messages() -> list[Sent]:
    """A stream, one more that mixes with it, and what others may write to a topic."""
    ours = [event(n, "refunds" if n % 5 == 4 else "invoices") for n in range(60)]
    foreign: list[Sent] = [
        (None, b"no key and no headers", []),
        (b"k", None, [("ce_specversion", b"1.0")]),
        (b"", b"", [("ce_specversion", None), ("ce_specversion", b"1.0"), ("", b"\xff")]),
    ]
    return [*ours[:20], *foreign, *ours[20:]]


async def send(kafka: Kafka, topic: str, messages: Sequence[Sent], compression: str | None = None) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, compression_type=compression) as producer:
        for key, value, headers in messages:
            await producer.send(topic, value, key=key, headers=headers)
        await producer.flush()


@pytest.mark.parametrize("compression", [None, "lz4"])
async def test_records_hold_what_aiokafka_reads(kafka: Kafka, compression: str | None) -> None:
    topic = await new_topic(KafkaLog(kafka.bootstrap), partitions=1)
    sent = _messages()
    await send(kafka, topic, sent, compression)

    async def read(lightly: bool) -> list[KafkaRecord]:
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
        async with consumer:
            if lightly:
                unpack_lightly(consumer)
            consumer.assign([TopicPartition(topic, 0)])
            found: list[KafkaRecord] = []
            while len(found) < len(sent):
                found += [r for some in (await consumer.getmany(timeout_ms=WAIT_MS)).values() for r in some]
            return found

    ours, theirs = await read(True), await read(False)
    assert {type(record) for record in ours} == {KafkaRecord}
    assert [(one.key, one.value, list(one.headers)) for one in ours] == sent
    names = KafkaRecord.__struct_fields__
    assert [[getattr(one, name) for name in names] for one in ours] == [
        [getattr(one, name) for name in names] for one in theirs
    ]


async def test_records_share_the_headers_that_they_have_in_common(kafka: Kafka) -> None:
    log = KafkaLog(kafka.bootstrap)
    topic = await new_topic(log, partitions=1)
    await send(kafka, topic, [event(n) for n in range(5)])
    records: list[Record] = []
    async with log.subscribe(topic, "group", Store(), records=10, bytes=1_000_000, wait=1.0) as subscription:
        while len(records) < 5:
            records += (await subscription.next_batch()).records
    _, second, *others = records
    for record in others:
        shared = [a is b for a, b in zip(record.headers, second.headers, strict=True)]
        assert shared == [True] * 3 + [False] * 2


async def test_a_batch_that_is_read_in_pieces_has_one_span_a_partition(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store moves one offset a partition."""
    monkeypatch.setattr("ingest.eventlog.kafka.intake.PIECE", 7)
    log = KafkaLog(kafka.bootstrap)
    topic = await new_topic(log, partitions=3)
    await publish(log, topic, numbered(300))
    async with log.subscribe(topic, "group", Store(), records=100, bytes=1_000_000, wait=1.0) as subscription:
        batches = await batches_of(subscription, 300)
    assert all(len(batch.records) <= 100 for batch in batches)
    assert any(len(batch.records) > 7 for batch in batches)
    stands = {0: 0, 1: 0, 2: 0}
    for batch in batches:
        assert len({span.partition for span in batch.spans}) == len(batch.spans)
        for span in batch.spans:
            offsets = [record.offset for record in batch.records if record.partition == span.partition]
            assert (span.start, offsets) == (stands[span.partition], list(range(span.start, span.end)))
            stands[span.partition] = span.end
