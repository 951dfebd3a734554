"""What every event log does: publish, read, describe and create. Subscriptions: test_eventlog_subscription.py."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from ingest.errors import ConfigError
from ingest.event import Message
from ingest.eventlog import EventLog, Published, partition_of
from ingest.eventlog.kafka import KafkaLog
from tests.contract.eventlogs import (
    HEADERS,
    message,
    new_topic,
    numbered,
    offsets_by_partition,
    open_sqlite_log,
    publish,
    read_all,
    spec,
)
from tests.harness.names import unique


@pytest_asyncio.fixture(params=["sqlite", "kafka"])
async def event_log(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[EventLog]:
    if request.param == "kafka":
        yield KafkaLog(request.getfixturevalue("kafka").bootstrap)
        return
    async with open_sqlite_log(sqlite_path) as log:
        yield log


AWKWARD_VALUES = [
    b'{"text":"a\\u0000b","big":18446744073709551616,"price":1.10,"z":1,"a":2}',
    b"\xff\xfe\x00not utf-8\x80",
    b"",
    '{"text":"\N{SNOWMAN} \N{GRINNING FACE}"}'.encode(),
    b'{ "spaces" : [ 1 , 2 ] }\n',
    b"\\N\t\r\n",
]


async def test_what_was_published_is_read_byte_for_byte(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    headers = [("z", b"1"), ("a", b"\xff\x00"), ("z", b"2"), ("empty", b""), ("name-\N{SNOWMAN}", b"x")]
    await publish(event_log, topic, [message(f"key \N{SNOWMAN} {n}", v, headers) for n, v in enumerate(AWKWARD_VALUES)])
    records = await read_all(event_log, topic)
    assert [record.value for record in records] == AWKWARD_VALUES
    assert [record.key for record in records] == [f"key \N{SNOWMAN} {n}".encode() for n in range(len(AWKWARD_VALUES))]
    assert [list(record.headers) for record in records] == [headers] * len(AWKWARD_VALUES)
    assert {(record.topic, record.partition) for record in records} == {(topic, 0)}


async def test_an_empty_key_and_a_key_that_is_no_text_survive(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    odd = [Message.of(key, b"{}", []) for key in (b"", b"\xff\x00")]
    await publish(event_log, topic, odd)
    assert [record.key for record in await read_all(event_log, topic)] == [b"", b"\xff\x00"]


async def test_a_key_goes_to_the_partition_of_its_murmur2_hash(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=5)
    await publish(event_log, topic, [message(f"key-{n}") for n in range(100)])
    records = await read_all(event_log, topic)
    assert len(records) == 100
    assert all(record.partition == partition_of(record.key or b"", 5) for record in records)
    assert {record.partition for record in records} == set(range(5))


async def test_messages_with_one_key_keep_their_order_over_many_pages(event_log: EventLog) -> None:
    topic = await new_topic(event_log)
    async with event_log.publisher() as publisher:
        for first in range(0, 2000, 400):
            await publisher.publish(topic, numbered(400, first=first))
    records = await read_all(event_log, topic)
    assert len(records) == 2000
    for key in {record.key for record in records}:
        values = [int((record.value or b"")[5:-1]) for record in records if record.key == key]
        assert values == sorted(values)


async def test_a_page_of_many_batches_keeps_the_order_of_its_keys(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=2)
    page = [message(f"key-{n % 3}", b"%06d" % n + b"x" * 40_000) for n in range(150)]
    await publish(event_log, topic, page)
    records = await read_all(event_log, topic)
    for key in (b"key-0", b"key-1", b"key-2"):
        values = [record.value for record in records if record.key == key]
        assert values == [m.value for m in page if m.key == key]


async def test_offsets_of_a_partition_are_contiguous(event_log: EventLog) -> None:
    topic = await new_topic(event_log)
    await publish(event_log, topic, numbered(30))
    await publish(event_log, topic, numbered(30))
    for offsets in offsets_by_partition(await read_all(event_log, topic)).values():
        assert offsets == list(range(len(offsets)))


async def test_publishing_says_what_became_of_the_page(event_log: EventLog) -> None:
    topic = await new_topic(event_log)
    page = numbered(100)
    async with event_log.publisher() as publisher:
        published = await publisher.publish(topic, page)
        nothing = await publisher.publish(topic, [])
    payload = sum(len(m.key) + len(m.value) + sum(len(v) for _, v in m.headers) for m in page)
    assert published.acknowledged == 100
    assert published.oversized == ()
    assert payload <= published.bytes <= sum(m.size() for m in page)
    assert nothing == Published(0, 0, ())


async def test_publishing_a_page_again_repeats_it_in_the_same_order(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    page = numbered(10)
    async with event_log.publisher() as publisher:
        await publisher.publish(topic, page)
        await publisher.publish(topic, page)
    assert [record.value for record in await read_all(event_log, topic)] == [m.value for m in page] * 2


async def test_a_message_that_no_record_can_hold_is_reported_and_its_neighbours_are_published(
    event_log: EventLog,
) -> None:
    topic = await new_topic(event_log, partitions=2, max_message=20_000)
    page = numbered(10)
    page[0] = message("key-0", b"x" * 20_000)
    page[4] = message("key-4", b"x" * 90_000)
    page[9] = message("key-2", b"small", [("h", b"x" * 30_000)])
    async with event_log.publisher() as publisher:
        published = await publisher.publish(topic, page)
    assert published.oversized == (0, 4, 9)
    assert published.acknowledged == 7
    values = sorted(record.value or b"" for record in await read_all(event_log, topic))
    assert values == sorted(m.value for n, m in enumerate(page) if n not in (0, 4, 9))


async def test_a_message_just_below_the_limit_of_the_topic_is_published(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1, max_message=20_000)
    overhead = message("key-0", b"").size()
    incompressible = bytes(range(256)) * 80
    fits = message("key-0", incompressible[: 20_000 - overhead])
    assert fits.size() == 20_000
    async with event_log.publisher() as publisher:
        assert (await publisher.publish(topic, [message("key-0"), fits, message("key-0")])).oversized == ()
    assert len(await read_all(event_log, topic)) == 3


async def test_a_page_of_only_oversized_messages_publishes_nothing(event_log: EventLog) -> None:
    topic = await new_topic(event_log, max_message=20_000)
    async with event_log.publisher() as publisher:
        published = await publisher.publish(topic, [message("a", b"x" * 30_000), message("b", b"x" * 30_000)])
    assert published == Published(0, 0, (0, 1))
    assert await read_all(event_log, topic) == []


async def test_publishing_to_a_topic_that_does_not_exist_says_how_to_create_it(event_log: EventLog) -> None:
    async with event_log.publisher() as publisher:
        with pytest.raises(ConfigError, match=r"topics\.create"):
            await publisher.publish(unique("nowhere"), numbered(1))


async def test_a_page_has_one_time_and_records_carry_it(event_log: EventLog) -> None:
    topic = await new_topic(event_log)
    await publish(event_log, topic, numbered(50))
    times = {record.timestamp for record in await read_all(event_log, topic)}
    assert len(times) == 1
    assert times.pop() > 1_600_000_000_000


async def test_a_reader_reads_partition_by_partition_from_the_offsets_it_is_given(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=3)
    await publish(event_log, topic, numbered(60, keys=30))
    everything = await read_all(event_log, topic)
    assert [(r.partition, r.offset) for r in everything] == sorted((r.partition, r.offset) for r in everything)
    later = await read_all(event_log, topic, {0: 5, 2: 10_000})
    assert [(r.partition, r.offset) for r in later] == [
        (r.partition, r.offset) for r in everything if r.partition == 1 or (r.partition == 0 and r.offset >= 5)
    ]


async def test_a_reader_stops_at_the_ends_that_it_saw_first(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=2)
    await publish(event_log, topic, numbered(40))
    seen = 0
    async with event_log.reader() as reader, aclosing(reader.read(topic)) as records:
        async for _ in records:
            if seen == 0:
                await publish(event_log, topic, numbered(40))
            seen += 1
    assert seen == 40
    assert len(await read_all(event_log, topic)) == 80


async def test_a_reader_of_a_long_topic_misses_nothing(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=2)
    await publish(event_log, topic, numbered(3500))
    assert sorted(int((r.value or b"")[5:-1]) for r in await read_all(event_log, topic)) == list(range(3500))


async def test_reading_a_topic_that_does_not_exist_is_for_a_person(event_log: EventLog) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        await read_all(event_log, unique("nowhere"))


async def test_topics_are_created_once_and_left_as_they_are(event_log: EventLog) -> None:
    first, second = unique("a-topic"), unique("b-topic")
    async with event_log.admin() as admin:
        assert list(await admin.create([spec(first, partitions=3, max_message=50_000)])) == [first]
        assert list(await admin.create([spec(first, partitions=9), spec(second)])) == [second]
        assert list(await admin.create([])) == []
        described = await admin.describe([first, second])
        names = await admin.topics()
    assert described[first].spec == spec(first, partitions=3, max_message=50_000)
    assert described[second].spec == spec(second)
    assert list(names) == sorted(names)
    assert {first, second} <= set(names)


async def test_describing_tells_the_offsets_and_leaves_out_what_does_not_exist(event_log: EventLog) -> None:
    topic, missing = await new_topic(event_log, partitions=3), unique("nowhere")
    await publish(event_log, topic, numbered(20))
    counts = {p: len(offsets) for p, offsets in offsets_by_partition(await read_all(event_log, topic)).items()}
    async with event_log.admin() as admin:
        described = await admin.describe([topic, missing])
        none = await admin.describe([])
    assert set(described) == {topic}
    assert described[topic].first_offsets == (0, 0, 0)
    assert described[topic].end_offsets == tuple(counts.get(p, 0) for p in range(3))
    assert none == {}


async def test_headers_of_one_page_may_differ(event_log: EventLog) -> None:
    topic = await new_topic(event_log, partitions=1)
    await publish(event_log, topic, [message("a", b"1", []), message("a", b"2", HEADERS), message("a", b"3", [])])
    assert [list(r.headers) for r in await read_all(event_log, topic)] == [[], HEADERS, []]


async def test_a_log_keeps_its_identity(event_log: EventLog) -> None:
    async with event_log.admin() as admin, event_log.admin() as again:
        assert await admin.identity() == await again.identity()


async def test_another_log_has_another_identity(sqlite_path: Path) -> None:
    async with (
        open_sqlite_log(sqlite_path) as one,
        open_sqlite_log(sqlite_path.with_name("other.db")) as other,
        one.admin() as admin,
        other.admin() as of_the_other,
    ):
        assert await admin.identity() != await of_the_other.identity()
