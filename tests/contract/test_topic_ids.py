"""Two topics that had the same name, one after the other, are not taken for one another. On every log."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer

from ingest.errors import ConfigError
from ingest.eventlog import UNKNOWN_TOPIC, EventLog
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.kafka.metadata import topic_ids
from ingest.eventlog.kafka.watchdog import Times
from ingest.eventlog.place import located, same_place
from tests.contract.anew import delete, make_anew
from tests.contract.eventlogs import (
    DEADLINE,
    WAIT,
    Store,
    batches_of,
    new_topic,
    numbered,
    open_sqlite_log,
    publish,
    records_of,
    spec,
)
from tests.harness.kafka import Kafka
from tests.harness.names import unique


class Place(NamedTuple):
    log: EventLog
    where: str | Path


@pytest_asyncio.fixture(params=["sqlite", "kafka"])
async def place(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Place]:
    if request.param == "kafka":
        bootstrap = request.getfixturevalue("kafka").bootstrap
        yield Place(KafkaLog(bootstrap, times=Times(look_every=0.2, heartbeat=0.2, metadata_age=0.2)), bootstrap)
        return
    async with open_sqlite_log(sqlite_path) as log:
        yield Place(log, sqlite_path)


async def test_a_topic_keeps_its_id_and_one_that_is_made_anew_has_another(place: Place) -> None:
    topic, other = await new_topic(place.log), await new_topic(place.log)
    async with place.log.admin() as admin:
        before = await admin.topic_ids([topic, other, unique("nowhere")])
        assert await admin.topic_ids([topic]) == {topic: before[topic]}
        where = await located(admin, topic)
        await make_anew(place.log, spec(topic), place.where)
        after = await admin.topic_ids([topic, other])
        assert not same_place(where, await located(admin, topic))
    assert set(before) == {topic, other}
    assert len({before[topic], before[other], after[topic], UNKNOWN_TOPIC}) == 4
    assert after[other] == before[other]


async def test_a_subscription_says_in_which_topic_it_reads(place: Place) -> None:
    topic, store = await new_topic(place.log, partitions=1), Store()
    await publish(place.log, topic, numbered(5))
    async with place.log.subscribe(topic, unique("g"), store, records=9, bytes=9_999, wait=WAIT) as subscription:
        [batch] = await batches_of(subscription, 5)
    async with place.log.admin() as admin:
        assert {store.topic_id, batch.spans[0].topic_id} == set((await admin.topic_ids([topic])).values())


@pytest.mark.parametrize("again", [3, 40], ids=["shorter", "longer than what was read"])
async def test_a_topic_that_is_made_anew_while_it_is_read_is_read_from_its_beginning(place: Place, again: int) -> None:
    topic, store = await new_topic(place.log, partitions=1), Store()
    await publish(place.log, topic, numbered(10))
    async with place.log.subscribe(topic, unique("g"), store, records=99, bytes=99_999, wait=WAIT) as subscription:
        [first] = await batches_of(subscription, 10)
        await subscription.commit(first)
        await make_anew(place.log, spec(topic, partitions=1), place.where)
        await publish(place.log, topic, numbered(again, first=100))
        store.stands.clear()  # the store knows nothing of the new one
        read: set[bytes] = set()
        async with asyncio.timeout(DEADLINE):
            while len(read) < again:
                batch = await subscription.next_batch()
                if not batch.lost and any(span.topic_id != first.spans[0].topic_id for span in batch.spans):
                    read |= {record.value or b"" for record in batch.records}
    assert sorted(read) == sorted(message.value for message in numbered(again, first=100))


async def test_a_topic_that_vanishes_is_an_end_of_the_membership(place: Place) -> None:
    topic = await new_topic(place.log, partitions=1)
    await publish(place.log, topic, numbered(3))
    with pytest.raises(Exception, match=topic):
        async with place.log.subscribe(topic, unique("g"), Store(), records=9, bytes=999, wait=WAIT) as subscription:
            assert len(records_of(await batches_of(subscription, 3))) == 3
            await delete(topic, place.where)
            async with asyncio.timeout(DEADLINE):
                while True:
                    await subscription.next_batch()


async def test_an_id_is_written_as_kafkas_own_tools_print_it(kafka: Kafka) -> None:
    log = KafkaLog(kafka.bootstrap)
    topic = await new_topic(log)
    async with log.admin() as admin:
        assert re.fullmatch(r"[A-Za-z0-9_-]{22}", (await admin.topic_ids([topic]))[topic])


async def test_brokers_that_have_no_ids_leave_them_unknown(kafka: Kafka) -> None:
    """Kafka before 2.8, as aiokafka sees it: the highest version of Metadata that it offers is 9."""
    topic = await new_topic(KafkaLog(kafka.bootstrap))
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap)
    await consumer.start()
    try:
        client = consumer._client
        assert await client.ready(client.get_random_node())
        for connection in client._conns.values():
            connection._versions = {**cast(dict[int, tuple[int, int]], connection._versions), 3: (0, 9)}
        assert await topic_ids(client, [topic]) == {topic: UNKNOWN_TOPIC}
    finally:
        await consumer.stop()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("kafka:a/orders/x", "kafka:a/orders/x", True),
        ("kafka:a/orders/x", "kafka:a/orders/y", False),
        ("kafka:a/orders", "kafka:a/orders/y", True),
        ("kafka:a/orders/x", "kafka:a/orders", True),
        ("kafka:a/orders/x", "kafka:b/orders/x", False),
        ("kafka:a/orders", "kafka:a/orders2", False),
        ("kafka:a/orders", "kafka:a/orders2/x", False),
    ],
)
def test_a_place_without_an_id_fits_every_topic_of_its_name(one: str, other: str, same: bool) -> None:
    assert same_place(one, other) is same


async def test_a_topic_that_is_not_there_has_no_place(place: Place) -> None:
    """Else what was seen in the topic that is gone would count in the one that is made in its stead."""
    async with place.log.admin() as admin:
        with pytest.raises(ConfigError, match="does not exist"):
            await located(admin, unique("gone"))
