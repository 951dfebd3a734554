"""Brokers that are killed, frozen and stopped while pages are published: three of them, every topic with three copies.

What was acknowledged is in the log, the first copies of a key's events are in order, and nothing is restarted for it.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from ingest import topics
from ingest.config.model import Topics
from ingest.deadletter import topic_for
from ingest.eventlog import EventLog
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.kafka.publisher import Patience
from ingest.report import Outcome
from tests.contract.eventlogs import message, read_all
from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.kafka import Kafka
from tests.harness.listings import Answer
from tests.harness.names import unique
from tests.unit import polling

DEADLINE = 120.0  # seconds that a test waits for what must come
KEYS = 20


async def new_topic(log: EventLog, *names: str, partitions: int = 1, min_insync: int = 2) -> str:
    """`names`: else a unique one."""
    made = names or (unique("orders"),)
    async with log.admin() as admin:
        await topics.ensure(admin, made, Topics(partitions=partitions, min_insync=min_insync), replicated=True)
    return made[0]


async def leader_of(kafka: Kafka, topic: str, partition: int = 0) -> int:
    async with kafka.admin() as admin:
        [found] = await admin.describe_topics([topic])
    return int(next(p["leader"] for p in found["partitions"] if p["partition"] == partition))


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not ready():  # noqa: ASYNC110 - the other side is a broker
            await asyncio.sleep(0.05)


async def by_key(log: EventLog, topic: str) -> Mapping[bytes | None, list[int]]:
    """Key → numbers as they stand in the log, without second copies."""
    found: dict[bytes | None, dict[int, None]] = {}
    for record in await read_all(log, topic):
        found.setdefault(record.key, {})[int(record.value or b"-1")] = None
    return {key: list(values) for key, values in found.items()}


@asynccontextmanager
async def load(log: EventLog, topic: str) -> AsyncIterator[list[int]]:
    """Pages published one after the other while the body runs; the numbers that were acknowledged, as they come."""
    acknowledged: list[int] = []
    stop = asyncio.Event()

    async def publish() -> None:
        async with log.publisher() as publisher:
            while not stop.is_set():
                first = len(acknowledged)
                numbers = range(first, first + 200)
                published = await publisher.publish(topic, [message(str(n % KEYS), b"%d" % n) for n in numbers])
                assert published.acknowledged == len(numbers)
                acknowledged.extend(numbers)

    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        group.create_task(publish())
        yield acknowledged
        stop.set()


async def more(acknowledged: list[int], records: int) -> None:
    wanted = len(acknowledged) + records
    await until(lambda: len(acknowledged) >= wanted)


def in_order(acknowledged: list[int]) -> Mapping[bytes | None, list[int]]:
    return {b"%d" % key: [n for n in acknowledged if n % KEYS == key] for key in range(KEYS)}


async def test_a_leader_killed_under_load_loses_nothing_and_the_publisher_goes_on(three_brokers: Kafka) -> None:
    log = KafkaLog(three_brokers.bootstrap)
    topic = await new_topic(log, partitions=3)
    async with load(log, topic) as acknowledged:
        await more(acknowledged, 2_000)
        three_brokers.kill(await leader_of(three_brokers, topic))
        await more(acknowledged, 2_000)
        three_brokers.heal()
        await more(acknowledged, 2_000)
    assert await by_key(log, topic) == in_order(acknowledged)


async def test_a_leader_frozen_under_load_loses_nothing_and_the_publisher_goes_on(three_brokers: Kafka) -> None:
    log = KafkaLog(three_brokers.bootstrap, patience=Patience(deadline=DEADLINE, request=3.0))
    topic = await new_topic(log)
    async with load(log, topic) as acknowledged:
        await more(acknowledged, 2_000)
        frozen = await leader_of(three_brokers, topic)
        three_brokers.pause(frozen)
        await more(acknowledged, 2_000)
        three_brokers.resume(frozen)
        await more(acknowledged, 2_000)
    assert await by_key(log, topic) == in_order(acknowledged)


async def test_with_too_few_copies_in_sync_nothing_is_acknowledged_and_no_cursor_moves_until_they_are_back(
    three_brokers: Kafka, sqlite_path: Path
) -> None:
    log = KafkaLog(three_brokers.bootstrap)
    names = polling.TOPIC, topic_for(polling.TOPIC, "source")
    await new_topic(log, *names, min_insync=3)
    three_brokers.kill(1)

    async def in_sync() -> int:
        return (await admin.describe(names))[polling.TOPIC].in_sync

    async with FakeApi() as api, log.publisher() as publisher, log.admin() as admin:
        async with asyncio.timeout(DEADLINE):
            while await in_sync() == 3:  # noqa: ASYNC110 - the controller misses it after a while
                await asyncio.sleep(0.1)
        with capture_logs() as logged:
            await topics.ensure(admin, names, Topics(partitions=1, min_insync=3), replicated=True)
        warned = [entry for entry in logged if "cannot be written now" in entry["event"]]
        assert [(entry["topic"], entry["in_sync"], entry["min_insync"]) for entry in warned] == [
            (name, 2, 3) for name in names
        ]
        api.serve("events", numbered(30), page_size=10, style="cursor")
        refused = refusals()
        async with polling.process(sqlite_path, publisher=lambda _: publisher) as one:
            polling_it = asyncio.create_task(one.poll(api.url, polling_keys()))
            await until(lambda: refusals() > refused)
            assert await one.cursor() is None
            assert (await admin.describe(names))[polling.TOPIC].end_offsets == (0,)
            three_brokers.heal()
            async with asyncio.timeout(DEADLINE):
                report = await polling_it
            assert (report.outcome, report.events) == (Outcome.COMPLETE, 30)
            assert await one.cursor() is not None
    assert len(await read_all(log, polling.TOPIC)) == 30


def refusals() -> float:
    name = "ingest_producer_retryable_errors_total"
    return REGISTRY.get_sample_value(name, {"error": "NotEnoughReplicasError"}) or 0.0


def polling_keys() -> dict[str, object]:
    return {"paginate": {"type": "cursor", "from": "$.next_cursor", "param": "cursor"}}


async def test_a_run_ended_while_the_brokers_are_frozen_fails_and_the_next_one_publishes_everything(
    three_brokers: Kafka, tmp_path: Path
) -> None:
    source = unique("shop")
    ingest = Ingest(tmp_path, Engine("kafka", {"INGEST_LOG_URL": three_brokers.url}))

    def freeze(answer: Answer) -> Answer:
        for broker in (1, 2, 3):
            three_brokers.pause(broker)
        return answer

    async with FakeApi() as api:
        api.serve("orders", numbered(30), page_size=10)
        (tmp_path / "ingest.yaml").write_text(f"""
version: 1
sources:
  {source}:
    base_url: {api.url}
    streams:
      orders: {{path: /orders, records: $.data, id: id, paginate: {{type: next_url, from: $.next}}}}
topics: {{partitions: 3}}
""")
        api.misbehave([freeze])
        process = await ingest.start("run", "--once", "--json")
        await until(lambda: len(api.requests) > 1)  # the second page is fetched while the first is published
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE):
            await process.communicate()
        assert process.returncode == 1
        assert (await ingest("checkpoints", "list", "--json")).json == []  # no cursor was ever saved
        three_brokers.heal()
        [report] = (await ingest("run", "--once", "--json")).json
        assert report["events"] == 30
    records = await read_all(KafkaLog(three_brokers.bootstrap), f"{source}.orders")
    assert {json.loads(record.value or b"")["id"] for record in records} == {one["id"] for one in numbered(30)}
