"""The consumer when something is wrong: a bad record, an outage, someone who was faster. Real log, real store."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from checkpoints.sqlite import SqliteLeases
from consumers.run import Runner
from consumers.store import EventStore, Query, Written
from consumers.store.postgres import PostgresStore
from consumers.tally import Tally
from ingest import topics
from ingest.app import App
from ingest.config.loader import parse
from ingest.config.model import BatchLimits
from ingest.errors import BadRecord, ConfigError, LogUnavailable, StoreUnavailable
from ingest.event import Envelope, Event, Message, Record
from ingest.eventlog import EventLog, Published, Publisher, Span, partition_of
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.kafka.watchdog import Times
from ingest.postgres import open_postgres
from ingest.redaction import Redactor
from ingest.sources import SourceRecord
from migrations.runner import migrate
from tests.chaos import kafka_groups
from tests.contract.anew import make_anew
from tests.e2e.command import Engine, Ingest
from tests.harness import kafka as kafka_server
from tests.harness import postgres as postgres_server
from tests.harness.forwarder import forwarding
from tests.harness.names import unique
from tests.harness.processes import free_ports

ENVELOPE = Envelope("shop", "orders", 1)
DEADLINE = 120.0  # seconds that a test waits for what must come
BATCH = BatchLimits.model_validate({"wait": "50ms", "records": 1000})


def event(name: str, value: bytes = b'{"good":true}', key: str = "") -> Message:
    [message] = ENVELOPE.messages([SourceRecord(name, None, key or name, None, None, value)])
    return message


@dataclass
class Place:
    """One topic on one engine, and what reads it."""

    log: EventLog
    store: EventStore
    publisher: Publisher
    runner: Runner
    topic: str
    where: str | Path  # Kafka's bootstrap servers, or the SQLite file
    tallies: list[Tally] = field(default_factory=list)

    async def publish(self, *messages: Message) -> None:
        await self.publisher.publish(self.topic, messages)

    async def consume(self) -> Tally:
        """Everything that is there now."""
        self.runner.tallies.clear()
        return (await self.runner.once([self.topic], asyncio.Event()))[0]

    async def topic_id(self) -> str:
        return (await self.runner.admin.topic_ids([self.topic]))[self.topic]

    async def offsets(self) -> dict[int, int]:
        return dict(await self.store.offsets("warehouse", self.topic, await self.topic_id()))

    async def make_anew(self) -> None:
        async with self.log.admin() as admin:
            spec = (await admin.describe([self.topic]))[self.topic].spec
        await make_anew(self.log, spec, self.where)

    async def stored(self) -> list[str]:
        return sorted([row.event_id.removeprefix("shop:orders:") async for row in self.store.events(Query())])

    async def dead(self) -> list[Record]:
        async with self.log.reader() as reader:
            return [record async for record in reader.read(f"{self.topic}.dlq.warehouse")]


@asynccontextmanager
async def opened(engine: Engine, folder: Path) -> AsyncIterator[Place]:
    embedded = f"sqlite:///{folder / 'ingest.db'}"
    log_url = engine.environment.get("INGEST_LOG_URL", embedded)
    store_url = engine.environment.get("INGEST_STORE_URL", embedded)
    loaded = parse(
        f'version: 1\nlog: "{log_url}"\nstore: "{store_url}"\n'
        "topics: {partitions: 3, replication: 1, min_insync: 1, durability: relaxed}\n"
    )
    topic = unique("shop")
    async with App(loaded, Redactor()) as app:
        admin, log, store, publisher = await app.admin(), await app.log(), await app.store(), await app.publisher()

        async def prepare(names: Sequence[str]) -> None:
            await topics.ensure(admin, names, app.config.topics, replicated=app.replicated)

        await prepare([topic])
        runner = Runner("warehouse", BATCH, log, admin, store, publisher, prepare)
        where = log_url.removeprefix("kafka://") if app.replicated else folder / "ingest.db"
        yield Place(log, store, publisher, runner, topic, where)


async def test_bad_records_become_dead_letters_with_their_bytes_and_their_neighbours_are_stored(
    engine: Engine, tmp_path: Path
) -> None:
    async with opened(engine, tmp_path) as place:
        no_event = Message.of(b"k", b"no event at all", [("content-type", b"text/plain"), ("x", b"\xff")])
        broken = event("broken", b'{"half":')
        nul = event("nul\0id")
        good = [event(f"good-{n}") for n in range(50)]
        await place.publish(*good[:20], no_event, *good[20:30], broken, nul, *good[30:])
        tally = await place.consume()
        assert (tally.inserted, tally.duplicates, tally.dead_letters) == (50, 0, 3)
        assert len(await place.stored()) == 50
        letters = {record.value: record for record in await place.dead()}
        assert set(letters) == {no_event.value, broken.value, nul.value}
        for message in (no_event, broken, nul):
            letter = letters[message.value]
            headers = dict(letter.headers)
            assert letter.key == message.key
            assert list(letter.headers)[: len(message.headers)] == message.headers
            assert headers["dlq.original.topic"] == place.topic.encode()
            assert headers["dlq.error.message"]
        assert dict(letters[no_event.value].headers)["dlq.stage"] == b"decode"
        assert dict(letters[broken.value].headers)["dlq.stage"] == b"write"

        again = await place.consume()
        assert (again.inserted, again.dead_letters, len(await place.dead())) == (0, 0, 3)


async def test_in_one_batch_odd_values_are_stored_and_impossible_ones_are_dead_letters_with_their_code(
    engine: Engine, tmp_path: Path
) -> None:
    """The id that Postgres cannot index is one that SQLite can: 2,704 bytes that no compression makes fewer."""
    long = secrets.token_hex(4000)
    odd = {
        "nul": rb'{"a":"x\u0000y"}',
        "huge": b"[1e400]",
        "surrogate": rb'{"a":"\ud800"}',
        "deep": b"[" * 100 + b"]" * 100,
    }
    codes = {  # name → with Postgres, with SQLite
        "nul\0id": ("22021", "nul"),
        "no-json": ("22P02", "SQLITE_CONSTRAINT_CHECK"),
        "too-deep": ("54001", "SQLITE_CONSTRAINT_CHECK"),
        "not-utf8": ("22021", "not_utf8"),
        "nul-key": ("22021", "nul"),
        **({long: ("54000", "")} if engine.environment else {}),
    }
    bodies = {"no-json": b"hello", "too-deep": b"[" * 20_000 + b"]" * 20_000, "not-utf8": b'{"a":"\xff"}'}
    bad = {
        name: event(name, bodies.get(name, b'{"bad":%d}' % n), key="a\0b" if name == "nul-key" else "")
        for n, name in enumerate(codes)
    }
    messages = [event(f"good-{n}") for n in range(20)]
    messages[5:5] = [event(name, body) for name, body in odd.items()]
    messages[9:9] = bad.values()
    async with opened(engine, tmp_path) as place:
        await place.publish(*messages)
        tally = await place.consume()
        assert (tally.inserted, tally.dead_letters) == (20 + len(odd), len(bad))
        stored = {row.event_id.removeprefix("shop:orders:"): row.payload async for row in place.store.events(Query())}
        assert {name: stored[name].encode() for name in odd} == odd
        letters = {record.value: record for record in await place.dead()}
        assert len(letters) == len(bad)
        for name, message in bad.items():
            letter = letters[message.value]
            assert (letter.key, list(letter.headers)[: len(message.headers)]) == (message.key, message.headers)
            headers = dict(letter.headers)
            code = codes[name][0 if engine.environment else 1]
            assert (headers["dlq.stage"], headers["dlq.error.code"]) == (b"write", code.encode())


class Refusing:
    """A publisher that refuses the first few pages, before or after they are in the log."""

    def __init__(self, real: Publisher, refusals: int, *, after: bool) -> None:
        self._real, self.left, self._after = real, refusals, after

    async def publish(self, topic: str, messages: Sequence[Message]) -> Published:
        self.left -= 1
        if self.left < 0:
            return await self._real.publish(topic, messages)
        if self._after:
            await self._real.publish(topic, messages)
        raise LogUnavailable("refused by the test")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_offsets_do_not_move_until_the_dead_letter_is_acknowledged(
    engine: Engine, tmp_path: Path, after: bool
) -> None:
    async with opened(engine, tmp_path) as place:
        await place.publish(event("good"), event("broken", b"{"))
        place.runner.publisher = Refusing(place.publisher, 2, after=after)
        await place.consume()
        assert await place.stored() == ["good"]
        assert {record.value for record in await place.dead()} == {b"{"}
        assert len(await place.dead()) == (3 if after else 1)


class Around:
    """A store of which a test changes something."""

    def __init__(self, real: EventStore) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


async def test_a_dead_letter_is_not_written_again_while_the_store_does_not_answer(
    engine: Engine, tmp_path: Path
) -> None:
    async with opened(engine, tmp_path) as place:
        await place.publish(event("good", key="same"), event("broken", b"{", key="same"))
        write, failures = place.store.write, 2

        class Away(Around):
            async def write(self, consumer: str, events: Sequence[Event], spans: Sequence[Span]) -> Written:
                nonlocal failures
                if not events and failures:
                    failures -= 1
                    raise StoreUnavailable("away")
                return await write(consumer, events, spans)

        place.runner.store = Away(place.store)  # type: ignore[assignment]
        tally = await place.consume()
        assert (failures, tally.dead_letters, len(await place.dead())) == (0, 1, 1)


class Overtaken(Around):
    """A store in which someone else has written the first batch already, when we come to write it."""

    def __init__(self, real: EventStore) -> None:
        super().__init__(real)
        self._overtaken = False

    async def write(self, consumer: str, events: Sequence[Event], spans: Sequence[Span]) -> Written:
        if not self._overtaken:
            self._overtaken = True
            await self._real.write(consumer, events, spans)
        return await self._real.write(consumer, events, spans)


async def test_a_batch_that_someone_else_wrote_is_dropped_and_the_consumer_goes_on_where_the_store_stands(
    engine: Engine, tmp_path: Path
) -> None:
    async with opened(engine, tmp_path) as place:
        await place.publish(*(event(f"e{n:04}") for n in range(2500)))
        place.runner.store = Overtaken(place.store)  # type: ignore[assignment]
        tally = await place.consume()
        assert await place.stored() == [f"e{n:04}" for n in range(2500)]
        assert (tally.inserted, tally.duplicates) == (1500, 0)


async def test_a_consumer_starts_where_the_store_stands_not_where_the_group_committed(
    engine: Engine, tmp_path: Path
) -> None:
    async with opened(engine, tmp_path) as place:
        await place.publish(*(event(f"e{n}") for n in range(10)))
        await place.consume()
        offsets = await place.offsets()
        back = [Span(place.topic, p, offset, 0, await place.topic_id()) for p, offset in offsets.items()]
        await place.store.write("warehouse", (), back)  # as after a restore of an older backup
        again = await place.consume()
        assert (again.inserted, again.duplicates) == (0, 10)


async def test_a_topic_that_ends_in_a_transaction_marker_is_read_to_its_end(servers: Engine, tmp_path: Path) -> None:
    async with opened(servers, tmp_path) as place:
        await place.publish(*(event(f"e{n}") for n in range(10)))
        bootstrap = servers.environment["INGEST_LOG_URL"].removeprefix("kafka://")
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=place.topic)
        await producer.start()
        try:
            async with producer.transaction():
                last = event("last")
                await producer.send_and_wait(place.topic, last.value, key=last.key, headers=last.headers)
        finally:
            await producer.stop()
        async with place.log.admin() as admin, asyncio.timeout(30):
            ends: Sequence[int] = ()
            while sum(ends) < 12:
                await asyncio.sleep(0.05)
                ends = (await admin.describe([place.topic]))[place.topic].end_offsets
        assert (await place.consume()).inserted == 11
        assert await place.offsets() == {p: end for p, end in enumerate(ends) if end}


@pytest.mark.parametrize("again", [3, 40], ids=["shorter", "longer than what was read"])
async def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    engine: Engine, tmp_path: Path, again: int
) -> None:
    async with opened(engine, tmp_path) as place:
        await place.publish(*(event(f"old-{n}") for n in range(10)))
        await place.consume()
        await place.make_anew()
        async with place.log.publisher() as publisher:
            await publisher.publish(place.topic, [event(f"new-{n}") for n in range(again)])
        with capture_logs() as logged:
            tally = await place.consume()
        assert (tally.inserted, tally.duplicates, tally.replaced, tally.failed) == (again, 0, 1, None)
        assert "made anew" in tally.lost()
        assert sample("ingest_consumer_topics_replaced_total", place.topic) == 1
        assert [entry["topic"] for entry in logged if entry["log_level"] == "error"] == [place.topic]
        assert sum((await place.offsets()).values()) == again
        assert (await place.consume()).lost() == ""


async def test_offsets_that_were_trimmed_unread_are_told_and_counted_once(servers: Engine, tmp_path: Path) -> None:
    async with opened(servers, tmp_path) as place:
        await place.publish(*(event(f"e{n}", key="same") for n in range(10)))
        await place.consume()
        await place.publish(*(event(f"f{n}", key="same") for n in range(10)))
        [(partition, _)] = (await place.offsets()).items()
        await trim(place, partition, 14)
        tally = await place.consume()
        assert (tally.inserted, tally.trimmed) == (6, 4)
        assert "4 offsets" in tally.lost()
        await place.consume()
        assert sample("ingest_consumer_offsets_trimmed_total", place.topic) == 4


async def test_a_command_that_could_not_read_everything_says_so(servers: Engine, tmp_path: Path) -> None:
    async with opened(servers, tmp_path) as place:
        await place.publish(*(event(f"e{n}", key="same") for n in range(10)))
        await place.consume()
        await place.publish(*(event(f"f{n}", key="same") for n in range(10)))
        [(partition, _)] = (await place.offsets()).items()
        await trim(place, partition, 14)
        (tmp_path / "ingest.yaml").write_text(
            "version: 1\ntopics: {replication: 1, min_insync: 1, durability: relaxed}\n"
            f'consumers:\n  warehouse: {{kind: store, topics: ["{place.topic}"]}}\n'
        )
        ingest = Ingest(tmp_path, servers)
        done = await ingest("consume", "warehouse", "--once", code=1)
        assert f"{place.topic}: LOST: 4 offsets" in done.out
        [tally] = (await ingest("consume", "warehouse", "--once", "--json")).json
        assert (tally["inserted"], tally["trimmed"], tally["replaced"]) == (0, 0, 0)


async def trim(place: Place, partition: int, first: int) -> None:
    """The log deletes what is before `first`."""
    client = AIOKafkaAdminClient(bootstrap_servers=str(place.where))
    await client.start()
    await client.delete_records({TopicPartition(place.topic, partition): RecordsToDelete(before_offset=first)})
    await client.close()


async def test_a_dead_letter_topic_that_is_gone_is_made_again(engine: Engine, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as place:
        await place.publish(event("good"), event("broken", b"{"))
        prepare, asked = place.runner.prepare, 0

        async def deleted_at_first(names: Sequence[str]) -> None:
            nonlocal asked
            asked += 1
            if asked > 1:
                await prepare(names)

        place.runner.prepare = deleted_at_first
        tally = await place.consume()
        assert (tally.inserted, tally.dead_letters, tally.failed) == (1, 1, None)
        assert [record.value for record in await place.dead()] == [b"{"]


async def test_partitions_without_a_bad_record_are_read_on_while_the_dead_letters_cannot_be_written(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.burials.GRACE", 0.1)
    async with opened(engine, tmp_path) as place:
        if isinstance(place.where, str):
            place.runner.log = KafkaLog(place.where, times=Times(look_every=0.3))
        broken = event("broken", b"{")
        poisoned = partition_of(broken.key, 3)
        good = [event(f"good-{n}") for n in range(50)]
        later = [event(f"later-{n}") for n in range(50)]
        waiting = sum(partition_of(message.key, 3) == poisoned for message in [*good, broken, *later])
        elsewhere = sum(partition_of(message.key, 3) != poisoned for message in later)
        await place.publish(*good, broken)
        place.runner.publisher = refusing = Refusing(place.publisher, 1_000_000, after=False)
        async with running(place):
            await until(lambda: shows(place, "ingest_consumer_held_partitions", 1))
            [tally] = place.runner.tallies.values()
            assert f"dead letters of partition {poisoned} are not written: refused by the test" in (tally.blocked or "")
            await place.publish(*later)
            await until(lambda: has_counted(tally, 50 + elsewhere))
            assert set(await place.offsets()) == {0, 1, 2} - {poisoned}
            await until(lambda: lag_is(place, poisoned, waiting))
            refusing.left = 0
            await until(lambda: has_counted(tally, 100))
            await until(lambda: is_blocked(tally, False))
            assert sample("ingest_consumer_held_partitions", place.topic) == 0
        assert [record.value for record in await place.dead()] == [b"{"]
        assert (tally.duplicates, tally.dead_letters) == (0, 1)
        assert sum((await place.offsets()).values()) == 101


async def test_a_batch_whose_records_are_good_one_by_one_has_no_dead_letters(tmp_path: Path) -> None:
    async with opened(Engine("embedded", {}), tmp_path) as place:
        await place.publish(*(event(f"e{n}") for n in range(10)))
        write = place.store.write

        class Picky(Around):
            async def write(self, consumer: str, events: Sequence[Event], spans: Sequence[Span]) -> Written:
                if len(events) == 10:
                    raise BadRecord("too many at once", stage="write")
                return await write(consumer, events, spans)

        place.runner.store = Picky(place.store)  # type: ignore[assignment]
        tally = await place.consume()
        assert (tally.inserted, tally.dead_letters, sum((await place.offsets()).values())) == (10, 0, 10)


async def test_once_reads_the_other_partitions_to_their_end_before_it_fails_for_dead_letters_that_have_no_place(
    engine: Engine, tmp_path: Path
) -> None:
    async with opened(engine, tmp_path) as place:
        broken = event("broken", b"{")
        await place.publish(broken, *(event(f"good-{n}") for n in range(1_500)))

        async def nowhere(names: Sequence[str]) -> None:
            pass

        place.runner.prepare = nowhere
        tally = await place.consume()
        assert f"{place.topic}.dlq.warehouse does not exist" in (tally.failed or "")
        assert set(await place.offsets()) == {0, 1, 2} - {partition_of(broken.key, 3)}


async def test_metrics_of_a_consumer_are_there_from_the_start_and_those_of_partitions_end_with_it(
    engine: Engine, tmp_path: Path
) -> None:
    async with opened(engine, tmp_path) as place:
        async with running(place):
            await until(lambda: shows(place, "ingest_consumer_assigned_partitions", 3))
            for outcome in ("inserted", "duplicate", "dead_lettered", "stale"):
                assert sample("ingest_consumer_records_total", place.topic, outcome=outcome) == 0
            for name in ("offsets_trimmed", "topics_replaced", "rejoins"):
                assert sample(f"ingest_consumer_{name}_total", place.topic) == 0
            await until(lambda: lag_is_shown(place, {0, 1, 2}))
        assert sample("ingest_consumer_assigned_partitions", place.topic) == 0
        assert await lag_is_shown(place, set())


class Unsure(Overtaken):
    """A store whose first answer is lost: the batch is written, and nobody knows."""

    async def write(self, consumer: str, events: Sequence[Event], spans: Sequence[Span]) -> Written:
        if self._overtaken:
            return await self._real.write(consumer, events, spans)
        self._overtaken = True
        await self._real.write(consumer, events, spans)
        raise StoreUnavailable("the answer is lost")


async def test_a_batch_that_is_dropped_after_an_outage_ends_the_pause(engine: Engine, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as place:
        await place.publish(event("one"))
        place.runner.store = Unsure(place.store)  # type: ignore[assignment]
        async with running(place):
            await until(lambda: shows(place, "ingest_consumer_records_total", 1, outcome="stale"))
            assert sample("ingest_consumer_paused", place.topic) == 0
            assert [tally.blocked for tally in place.runner.tallies.values()] == [None]


async def test_a_store_that_does_not_say_where_to_begin_is_waited_for_inside_the_group(
    engine: Engine, tmp_path: Path
) -> None:
    async with opened(engine, tmp_path) as place:
        await place.publish(event("one"))
        offsets, failures = place.store.offsets, 2

        class Away(Overtaken):
            async def offsets(self, *arguments: str) -> Mapping[int, int]:
                nonlocal failures
                failures -= 1
                if failures >= 0:
                    raise StoreUnavailable("away")
                return await offsets(*arguments)

        place.runner.store = Away(place.store)  # type: ignore[assignment]
        async with running(place):
            await until(lambda: has_offsets(place, 1))
            assert sample("ingest_consumer_rejoins_total", place.topic) == 0


async def test_a_consumer_that_is_told_to_stop_does_not_wait_for_records(engine: Engine, tmp_path: Path) -> None:
    """A batch waits for its first record much longer than this test may take."""
    async with opened(engine, tmp_path) as place:
        place.runner.batch = BatchLimits.model_validate({"wait": "1h"})
        async with asyncio.timeout(60):
            async with running(place):
                await until(lambda: is_member(place))
    if not isinstance(place.where, Path):
        assert (await kafka_groups.describe(place.where, f"warehouse.{place.topic}")).members == []


async def test_a_store_that_is_away_from_one_member_does_not_hold_up_the_group(servers: Engine, tmp_path: Path) -> None:
    async with opened(servers, tmp_path) as place, opened(servers, tmp_path) as other:
        await place.publish(*(event(f"e{n}") for n in range(50)))

        class Away(Around):
            async def write(self, *arguments: object) -> Written:
                raise StoreUnavailable("away")

        place.runner.store = Away(place.store)  # type: ignore[assignment]
        for one in (place, other):
            one.runner.log = KafkaLog(str(place.where), times=Times(revoke_wait=10 * DEADLINE))
        other.topic = place.topic
        async with running(place):
            await until(lambda: shows(place, "ingest_consumer_paused", 1))
            async with running(other):
                await until(lambda: has_some_offsets(place))
        assert 0 < len(await place.stored()) < 50


async def has_some_offsets(place: Place) -> bool:
    return bool(await place.offsets())


@asynccontextmanager
async def running(place: Place, pattern: str = "") -> AsyncIterator[None]:
    """The consumer runs for ever beside the body."""
    stop = asyncio.Event()
    consuming = asyncio.create_task(place.runner.forever([pattern or place.topic], stop))
    try:
        yield
    finally:
        stop.set()
        await consuming


async def until(ready: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not await ready():  # noqa: ASYNC110 - a database is asked
            await asyncio.sleep(0.02)


async def has_offsets(place: Place, partitions: int) -> bool:
    return len(await place.offsets()) == partitions


async def is_member(place: Place) -> bool:
    """It waits for records."""
    if isinstance(place.where, Path):
        return await SqliteLeases(place.store._database).holder(f"consumer:warehouse.{place.topic}") is not None  # type: ignore[attr-defined]
    group = await kafka_groups.describe(place.where, f"warehouse.{place.topic}")
    return group.state == "Stable" and len(group.members) == 1


def sample(name: str, topic: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"topic": topic, "group": f"warehouse.{topic}", **labels})


async def shows(place: Place, name: str, value: float, **labels: str) -> bool:
    return sample(name, place.topic, **labels) == value


async def lag_is_shown(place: Place, partitions: set[int]) -> bool:
    name = "ingest_consumergroup_lag_records"
    return {p for p in range(3) if sample(name, place.topic, partition=str(p)) is not None} == partitions


async def lag_is(place: Place, partition: int, records: int) -> bool:
    return sample("ingest_consumergroup_lag_records", place.topic, partition=str(partition)) == records


async def test_once_beside_a_consumer_that_has_done_it_all_ends_at_once(engine: Engine, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as place, opened(engine, tmp_path) as other:
        await place.publish(event("one"))
        stop = asyncio.Event()
        running = asyncio.create_task(place.runner.forever([place.topic], stop))
        async with asyncio.timeout(60):
            while await place.stored() != ["one"]:  # noqa: ASYNC110 - a database is asked
                await asyncio.sleep(0.05)
        other.topic = place.topic
        async with asyncio.timeout(20):
            tally = await other.consume()
        assert (tally.inserted, tally.duplicates) == (0, 0)
        stop.set()
        await running


@asynccontextmanager
async def written_all_the_time(place: Place, key: str) -> AsyncIterator[None]:
    """While the body runs no batch is empty."""

    async def write_on() -> None:
        for n in count():
            await place.publish(event(f"busy-{n}", key=key))
            await asyncio.sleep(0.05)

    place.runner.batch = BatchLimits.model_validate({"wait": "1h"})
    await place.publish(event("busy", key=key))
    writing = asyncio.create_task(write_on())
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.wait([writing])


async def test_once_ends_on_a_topic_where_there_is_always_more_to_read(engine: Engine, tmp_path: Path) -> None:
    """One partition is done already, the other is written all the time, and no batch is ever empty."""
    async with opened(engine, tmp_path) as place:
        quiet, busy = "a", next(key for key in "bcdefgh" if partition_of(key.encode(), 3) != partition_of(b"a", 3))
        await place.publish(event("quiet", key=quiet))
        await place.consume()
        async with written_all_the_time(place, busy), asyncio.timeout(60):
            tally = await place.consume()
        assert tally.inserted >= 1


async def test_once_ends_where_a_transaction_marker_is_last_beside_a_partition_that_is_written_all_the_time(
    servers: Engine, tmp_path: Path
) -> None:
    async with opened(servers, tmp_path) as place:
        bootstrap = str(place.where)
        place.runner.log = KafkaLog(bootstrap, times=Times(look_every=0.3))
        last, transactional = event("last"), AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=place.topic)
        async with transactional as producer, producer.transaction():
            await producer.send_and_wait(place.topic, last.value, key=last.key, headers=last.headers, partition=0)
        busy = next(key for key in "abcdefgh" if partition_of(key.encode(), 3) == 1)
        async with written_all_the_time(place, busy), asyncio.timeout(60):
            await place.consume()
        assert (await place.offsets())[0] == 2


async def test_an_idle_consumer_is_blocked_for_as_long_as_the_store_does_not_answer(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.consumer.LOOK_EVERY", 0.5)
    async with opened(engine, tmp_path) as place:
        await place.publish(event("one"))
        offsets, away, looks = place.store.offsets, False, 0
        seen: list[bool] = []  # blocked?

        class Away(Around):
            async def offsets(self, *arguments: str) -> Mapping[int, int]:
                nonlocal looks
                if away:
                    looks += 1
                    raise StoreUnavailable("away")
                return await offsets(*arguments)

        async def looked(times: int) -> bool:
            return looks >= times

        place.runner.store = Away(place.store)  # type: ignore[assignment]
        place.runner.changed = lambda tally: seen.append(tally.blocked is not None)
        async with running(place):
            await until(lambda: has_offsets(place, 1))
            [tally] = place.runner.tallies.values()
            await until(lambda: has_counted(tally, 1))
            seen.clear()
            away = True
            await until(lambda: looked(3))
            assert seen == [True]
            away = False
            await until(lambda: is_blocked(tally, False))
            assert seen == [True, False]


async def test_one_topic_that_a_person_must_mend_does_not_stop_the_others(engine: Engine, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as place, opened(engine, tmp_path) as other:
        await place.publish(event("one"))
        await other.publish(event("two"))
        await place.store.write("warehouse", (), [Span(place.topic, partition, 0, 1000) for partition in range(3)])
        tallies = {t.topic: t for t in await place.runner.once([place.topic, other.topic], asyncio.Event())}
        assert "made anew" in (tallies[place.topic].failed or "")
        assert tallies[other.topic].failed is None
        assert await place.stored() == ["two"]


async def test_a_new_topic_that_a_person_must_mend_is_said_and_begun_when_it_is_mended_beside_the_others(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.run.DISCOVER_EVERY", 0.1)
    async with opened(engine, tmp_path) as place:
        prepare, mended = place.runner.prepare, False
        new = f"{place.topic}-new"

        async def refused(names: Sequence[str]) -> None:
            if f"{new}.dlq.warehouse" in names and not mended:
                raise ConfigError("not safe")
            await prepare(names)

        place.runner.prepare = refused
        async with running(place, f"{place.topic}*"):
            await place.publish(event("one"))
            await until(lambda: has_offsets(place, 1))
            await prepare([new])
            await place.publisher.publish(new, [event("new")])
            await until(lambda: is_failed(place, new))
            await place.publish(event("two"))
            await until(lambda: has_counted(place.runner.tallies[place.topic], 2))
            assert [tally.blocked for tally in place.runner.tallies.values()] == [None, "not safe"]
            mended = True
            await until(lambda: has_counted(place.runner.tallies[new], 1))


async def is_failed(place: Place, topic: str) -> bool:
    return topic in place.runner.tallies and place.runner.tallies[topic].failed is not None


async def test_topics_of_the_start_that_a_person_must_mend_end_it(engine: Engine, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as place:

        async def refused(names: Sequence[str]) -> None:
            raise ConfigError("not safe")

        place.runner.prepare = refused
        with pytest.raises(ExceptionGroup) as raised:
            await place.runner.forever([place.topic], asyncio.Event())
        assert str(raised.value.exceptions[0]) == "not safe"


async def test_a_store_that_restarts_loses_nothing_and_needs_no_restart_of_the_consumer(
    kafka_url: str, tmp_path: Path
) -> None:
    server = postgres_server.start(tmp_path / "postgres")
    try:
        url = await server.create_database("shop")
        await migrate(url)
        engine = Engine("", {"INGEST_LOG_URL": kafka_url, "INGEST_STORE_URL": url})
        async with opened(engine, tmp_path) as place:
            stop = asyncio.Event()
            consuming = asyncio.create_task(place.runner.forever([place.topic], stop))
            await place.publish(*(event(f"before-{n}") for n in range(100)))
            await stored_count(place, 100)
            server.kill()
            await place.publish(*(event(f"meanwhile-{n}") for n in range(100)))
            server.restart()
            await stored_count(place, 200)
            stop.set()
            (tally,) = await consuming
            assert tally.dead_letters == 0
            assert await place.dead() == []
    finally:
        server.close()


async def test_a_store_that_falls_silent_costs_the_consumer_no_membership_and_no_row(
    kafka_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """Packets vanish: every statement ends by the consumer's own clock, and it goes on when they pass again."""
    parts = urlsplit(postgres_url)
    async with forwarding(parts.port or 5432) as address:
        silent = urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{address.port}"))
        engine = Engine("", {"INGEST_LOG_URL": kafka_url, "INGEST_STORE_URL": postgres_url})
        async with opened(engine, tmp_path) as place, open_postgres(silent, statement_timeout=1.0) as postgres:
            place.runner.store = PostgresStore(postgres)
            group = f"warehouse.{place.topic}"
            bootstrap = kafka_url.removeprefix("kafka://")
            stop = asyncio.Event()
            consuming = asyncio.create_task(place.runner.forever([place.topic], stop))
            await place.publish(*(event(f"before-{n}") for n in range(100)))
            await stored_count(place, 100)
            members = (await kafka_groups.describe(bootstrap, group)).members
            address.silence()
            await place.publish(*(event(f"meanwhile-{n}") for n in range(100)))
            async with asyncio.timeout(60):
                while place.runner.tallies[place.topic].blocked is None:  # noqa: ASYNC110 - another task is waited for
                    await asyncio.sleep(0.05)
            assert (await kafka_groups.describe(bootstrap, group)).members == members
            address.speak()
            await stored_count(place, 200)
            assert (await kafka_groups.describe(bootstrap, group)).members == members
            stop.set()
            (tally,) = await consuming
            assert (tally.dead_letters, await place.dead()) == (0, [])


async def stored_count(place: Place, count: int) -> None:
    assert isinstance(place.store, PostgresStore)
    async with asyncio.timeout(DEADLINE):
        while await counted(place.store) != count:  # noqa: ASYNC110 - a database is asked
            await asyncio.sleep(0.05)


async def counted(store: EventStore) -> int | None:
    """None while the store does not answer."""
    try:
        return await store.count(Query())
    except StoreUnavailable:
        return None


async def test_a_broker_that_restarts_is_waited_for_inside_the_group(postgres_url: str, tmp_path: Path) -> None:
    broker = kafka_server.start(tmp_path / "kafka")
    try:
        engine = Engine("", {"INGEST_LOG_URL": broker.url, "INGEST_STORE_URL": postgres_url})
        async with opened(engine, tmp_path) as place:
            place.runner.log = KafkaLog(broker.bootstrap, times=Times(look_every=0.5, heartbeat=0.5))
            await place.publish(*(event(f"before-{n}") for n in range(100)))
            async with running(place):
                await stored_count(place, 100)
                [tally] = place.runner.tallies.values()
                await until(lambda: has_counted(tally, 100))  # and has told the broker
                broker.kill()
                await until(lambda: is_blocked(tally, True))
                broker.restart()
                async with place.log.publisher() as publisher:
                    await publisher.publish(place.topic, [event(f"after-{n}") for n in range(100)])
                await stored_count(place, 200)
                await until(lambda: is_blocked(tally, False))
                assert sample("ingest_consumer_rejoins_total", place.topic) == 0
        assert (tally.inserted, tally.duplicates) == (200, 0)
    finally:
        broker.close()


async def test_a_consumer_that_begins_while_the_log_is_away_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "ingest.yaml").write_text('version: 1\nconsumers:\n  archive: {kind: store, topics: ["shop.*"]}\n')
    [port] = free_ports(1)
    ingest = Ingest(tmp_path, Engine("", {"INGEST_LOG_URL": f"kafka://127.0.0.1:{port}"}))
    begun = await ingest.start("consume", "archive", "--once")
    assert begun.stderr is not None
    tries = 0
    async with asyncio.timeout(60):
        while tries < 2:
            tries += b"cannot begin yet" in await begun.stderr.readline()
    begun.terminate()
    await asyncio.wait_for(begun.communicate(), 60)
    assert begun.returncode == 3


async def has_counted(tally: Tally, events: int) -> bool:
    return tally.inserted == events


async def is_blocked(tally: Tally, expected: bool) -> bool:
    return (tally.blocked is not None) is expected
