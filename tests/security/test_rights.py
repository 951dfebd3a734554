"""What a user of Kafka may not do is said at the start, with the commands that allow it; and these are enough."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from ingest.config.credentials import Credentials
from ingest.errors import ConfigError
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.kafka.watchdog import Times
from tests.contract.eventlogs import DEADLINE, WAIT, Store, new_topic, numbered, publish
from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi
from tests.harness.fake_api import numbered as rows
from tests.harness.names import unique
from tests.security.kafka_guarded import PASSWORD, STRANGERS, Guarded, allow, forbid

BOB, DAVE = STRANGERS
COMMAND = re.compile(
    r'kafka-acls\.sh --bootstrap-server localhost:\d+ --command-config \S+ --add --allow-principal "User:(\w+)"'
    r"((?: --operation \w+)+) --(topic|group|cluster)(?: ([\w.-]+))?"
)
FILE = """
version: 1
log: {{security: {{mechanism: PLAIN, protocol: SASL_PLAINTEXT, username: bob, password: "${{env:PASSWORD}}"}}}}
sources:
  {source}:
    base_url: {api}
    streams:
      orders: {{path: /orders, records: $.data, id: id}}
consumers:
  warehouse: {{kind: store, topics: ["{source}.orders"], batch: {{wait: 50ms}}}}
topics: {{partitions: 2, replication: 1, min_insync: 1, durability: relaxed}}
"""


def opened_by(user: str, guarded: Guarded, times: Times = Times()) -> KafkaLog:  # noqa: B008 - it is frozen
    credentials = Credentials("SASL_PLAINTEXT", "PLAIN", user, lambda: PASSWORD)
    return KafkaLog(guarded.server("OPEN"), credentials, times=times)


async def obey(guarded: Guarded, said: str) -> list[tuple[str, str]]:
    """Run the commands of a message; what they allowed on what."""
    done = []
    for user, operations, kind, name in COMMAND.findall(said):
        for operation in operations.replace("--operation", "").split():
            await allow(guarded.kafka, user, operation, kind, *([name] if name else []))
            done.append((operation, f"{kind} {name}".rstrip()))
    return done


async def until_let(ingest: Ingest, guarded: Guarded, *verb: str) -> list[Sequence[tuple[str, str]]]:
    """Do what the command says as long as it ends with 2; what that was, each time."""
    found: list[Sequence[tuple[str, str]]] = []
    while True:
        done = await ingest(*verb, code=None)
        if done.code != 2:
            assert done.code == 0, done.out + done.err
            return found
        found.append(await obey(guarded, done.err))
        assert found[-1], done.err
        assert len(found) < 5, found


async def test_a_poller_and_a_consumer_say_what_they_lack_and_the_commands_are_enough(
    guarded: Guarded, tmp_path: Path
) -> None:
    source = unique("shop")
    topic = f"{source}.orders"
    engine = Engine("guarded", {"INGEST_LOG_URL": f"kafka://{guarded.server('OPEN')}", "PASSWORD": PASSWORD})
    ingest = Ingest(tmp_path, engine)
    async with FakeApi() as api:
        api.serve("orders", rows(5))
        (tmp_path / "ingest.yaml").write_text(FILE.format(source=source, api=api.url))
        letters = f"{topic}.dlq.source"
        assert await until_let(ingest, guarded, "run", "--once") == [
            [(operation, f"topic {name}") for name in (topic, letters) for operation in ("Write", "DescribeConfigs")],
            [("Create", f"topic {topic}"), ("Create", f"topic {letters}")],
        ]
        letters = f"{topic}.dlq.warehouse"
        assert await until_let(ingest, guarded, "consume", "warehouse", "--once") == [
            [("Read", f"topic {topic}"), ("Read", f"group warehouse.{topic}")],
            [("Write", f"topic {letters}"), ("DescribeConfigs", f"topic {letters}")],
            [("Create", f"topic {letters}")],
        ]
        events = await ingest("events", "--format", "jsonl")
        assert len(events.out.splitlines()) == 5


async def test_a_consumer_that_may_not_even_see_its_topic_says_so(guarded: Guarded, tmp_path: Path) -> None:
    """It is not in the broker's list of topics: there would be nothing to consume."""
    topic = f"{unique('shop')}.orders"
    (tmp_path / "ingest.yaml").write_text(FILE.format(source=topic.removesuffix(".orders"), api="http://127.0.0.1:1"))
    engine = Engine("guarded", {"INGEST_LOG_URL": f"kafka://{guarded.server('OPEN')}", "PASSWORD": PASSWORD})
    refused = await Ingest(tmp_path, engine)("consume", "warehouse", code=2)
    assert f"User:bob lacks Read and DescribeConfigs on topic {topic}; Read on group warehouse.{topic}" in refused.err


async def test_a_right_that_is_taken_away_while_we_run_is_named(guarded: Guarded) -> None:
    ours = KafkaLog(guarded.kafka.bootstrap)
    topic, group = await new_topic(ours, partitions=1), unique("group")
    for operation in ("Read", "Write", "DescribeConfigs"):
        await allow(guarded.kafka, BOB, operation, "topic", topic)
    await allow(guarded.kafka, BOB, "Read", "group", group)
    log, store = opened_by(BOB, guarded, Times(heartbeat=0.2)), Store()

    async def consume() -> None:
        async with log.subscribe(topic, group, store, records=50, bytes=99_999, wait=WAIT) as subscription:
            while True:
                await publish(ours, topic, numbered(1))
                batch = await subscription.next_batch()
                await subscription.commit(batch)
                if batch.records:
                    await forbid(guarded.kafka, BOB, "Read", "topic", topic)

    async def write() -> None:
        async with log.publisher() as publisher:
            while True:
                await publisher.publish(topic, numbered(1))
                await forbid(guarded.kafka, BOB, "Write", "topic", topic)

    cases: list[tuple[Callable[[], Awaitable[None]], str]] = [(consume, "Read"), (write, "Write")]
    for act, operation in cases:
        with pytest.raises(ConfigError) as raised:
            async with asyncio.timeout(DEADLINE):
                await act()
        assert f"User:bob lacks {operation} on topic {topic}. Allow it: kafka-acls.sh" in str(raised.value)
        await obey(guarded, str(raised.value))
    await forbid(guarded.kafka, BOB, "Read", "group", group)
    with pytest.raises(ConfigError, match=f"User:bob lacks Read on group {group}"):
        async with asyncio.timeout(DEADLINE):
            await consume()


async def test_who_may_write_nowhere_gets_no_producer_and_is_told(guarded: Guarded) -> None:
    topic = await new_topic(KafkaLog(guarded.kafka.bootstrap))
    await allow(guarded.kafka, DAVE, "DescribeConfigs", "topic", topic)
    await allow(guarded.kafka, DAVE, "Describe", "topic", topic)
    with pytest.raises(ConfigError, match=r"User:dave lacks IdempotentWrite on the cluster\. Allow it: .* --cluster"):
        await publish(opened_by(DAVE, guarded), topic, numbered(1))
