"""What only the SQLite log does: one reader per group, several processes on one file, records that were trimmed."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from checkpoints.sqlite import SqliteLeases
from ingest.errors import ConfigError, LogUnavailable, Superseded
from ingest.eventlog.sqlite import READ_RECORDS, SqliteLog
from ingest.sqlite import Database, open_database
from migrations.runner import migrate
from tests.contract.eventlogs import (
    DEADLINE,
    LEASE_TTL,
    WAIT,
    Store,
    batches_of,
    ends_of,
    message,
    new_topic,
    numbered,
    open_sqlite_log,
    publish,
    read_all,
    records_of,
    some_batch,
)


@pytest_asyncio.fixture
async def database(sqlite_path: Path) -> AsyncIterator[Database]:
    await migrate(f"sqlite:///{sqlite_path}")
    async with open_database(sqlite_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def log(database: Database) -> SqliteLog:
    return SqliteLog(database, SqliteLeases(database), "here:1:a")


def _lease_was_renewed(connection: sqlite3.Connection) -> bool:
    row = connection.execute("SELECT renewed_at > taken_at FROM leases WHERE name = 'consumer:g'").fetchone()
    return bool(row[0])


def moved(path: Path) -> Path:
    return path.rename(path.with_name("moved.db"))


def put_back(away: Path, path: Path) -> None:
    away.rename(path)


async def test_a_second_reader_of_a_group_is_refused_and_told_who_reads(log: SqliteLog, sqlite_path: Path) -> None:
    topic = await new_topic(log)
    async with (
        open_sqlite_log(sqlite_path, "there:2:b") as other,
        log.subscribe(topic, "g", Store(), records=1, bytes=1, wait=WAIT),
    ):
        with pytest.raises(LogUnavailable, match="here:1:a"):
            async with other.subscribe(topic, "g", Store(), records=1, bytes=1, wait=WAIT):
                pass
        with pytest.raises(LogUnavailable, match="here:1:a"):
            async with log.subscribe(topic, "g", Store(), records=1, bytes=1, wait=WAIT):
                pass


async def test_a_group_is_free_again_when_its_reader_is_closed(log: SqliteLog, sqlite_path: Path) -> None:
    topic = await new_topic(log)
    await publish(log, topic, numbered(5))
    async with open_sqlite_log(sqlite_path, "there:2:b") as other:
        for one in (log, other, log):
            async with one.subscribe(topic, "g", Store(), records=9, bytes=999, wait=WAIT) as subscription:
                assert len(records_of(await batches_of(subscription, 5))) == 5


async def test_a_reader_that_lost_its_lease_is_told_and_its_batches_are_lost(database: Database) -> None:
    leases = SqliteLeases(database)
    log = SqliteLog(database, leases, "here:1:a", lease_ttl=LEASE_TTL)
    topic = await new_topic(log)
    await publish(log, topic, numbered(5))
    async with log.subscribe(topic, "g", Store(), records=9, bytes=999, wait=WAIT) as subscription:
        batch = await some_batch(subscription)
        await database.write(lambda c: c.execute("UPDATE leases SET holder = 'there:2:b', fence = fence + 1").close())
        with pytest.raises(Superseded, match="there:2:b"):
            async with asyncio.timeout(DEADLINE):
                while True:
                    await subscription.next_batch()
        assert batch.lost
    assert await leases.holder("consumer:g") == "there:2:b"


async def test_a_lease_is_renewed_while_its_reader_reads(database: Database) -> None:
    leases = SqliteLeases(database)
    log = SqliteLog(database, leases, "here:1:a", lease_ttl=LEASE_TTL)
    topic = await new_topic(log)
    async with log.subscribe(topic, "g", Store(), records=9, bytes=999, wait=WAIT) as subscription:
        async with asyncio.timeout(DEADLINE):
            while not await database.read(_lease_was_renewed):
                await subscription.next_batch()
        assert await leases.holder("consumer:g") == "here:1:a"
    assert await leases.holder("consumer:g") is None


async def test_a_lease_is_renewed_again_after_a_person_mended_the_file(database: Database, sqlite_path: Path) -> None:
    log = SqliteLog(database, SqliteLeases(database), "here:1:a", lease_ttl=LEASE_TTL)
    topic = await new_topic(log)
    with capture_logs() as logged:
        async with log.subscribe(topic, "g", Store(), records=9, bytes=999, wait=WAIT):
            away = moved(sqlite_path)
            async with asyncio.timeout(DEADLINE):
                while not [entry for entry in logged if "lease not renewed" in entry["event"]]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            put_back(away, sqlite_path)
            async with asyncio.timeout(DEADLINE):
                while not await database.read(_lease_was_renewed):  # noqa: ASYNC110 - a database is asked
                    await asyncio.sleep(0.02)


async def test_processes_that_publish_at_the_same_time_make_one_log(log: SqliteLog, sqlite_path: Path) -> None:
    topic = await new_topic(log)
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(open_sqlite_log(sqlite_path, f"there:{n}:x")) for n in range(3)]
        pages = [publish(one, topic, numbered(50, first=n * 1000)) for n in range(10) for one in (log, *others)]
        await asyncio.gather(*pages)
    records = await read_all(log, topic)
    assert len(records) == 2000
    for partition, end in ends_of(records).items():
        assert [r.offset for r in records if r.partition == partition] == list(range(end))


async def test_a_reader_sees_what_another_process_publishes(log: SqliteLog, sqlite_path: Path) -> None:
    topic = await new_topic(log)
    async with (
        open_sqlite_log(sqlite_path, "there:2:b") as other,
        log.subscribe(topic, "g", Store(), records=9, bytes=999, wait=WAIT) as subscription,
    ):
        assert not (await subscription.next_batch()).records
        await publish(other, topic, numbered(3))
        assert len(records_of(await batches_of(subscription, 3))) == 3


async def test_a_busy_partition_does_not_starve_the_others(log: SqliteLog) -> None:
    topic = await new_topic(log, partitions=2)
    busy, quiet = ("key-0", "key-1")
    await publish(log, topic, [message(busy)] * 500)
    await publish(log, topic, [message(quiet)] * 10)
    async with log.subscribe(topic, "g", Store(), records=20, bytes=99_999, wait=WAIT) as subscription:
        batch = await some_batch(subscription)
    assert {record.key for record in batch.records} == {busy.encode(), quiet.encode()}
    assert len(batch.records) == 20


async def test_offsets_trimmed_unread_are_said_to_be_lost_and_the_span_starts_at_the_store(
    log: SqliteLog, database: Database
) -> None:
    topic = await new_topic(log, partitions=1)
    await publish(log, topic, numbered(10))
    await database.write(lambda c: c.execute('DELETE FROM log WHERE "offset" < 7').close())
    with capture_logs() as logged:
        async with log.subscribe(topic, "g", Store({0: 4}), records=9, bytes=999, wait=WAIT) as subscription:
            batch = await some_batch(subscription)
    assert [record.offset for record in batch.records] == [7, 8, 9]
    assert (batch.spans[0].start, batch.spans[0].end) == (4, 10)
    assert [(entry["partition"], entry["first"], entry["count"]) for entry in logged] == [(0, 4, 3)]


async def test_offsets_go_on_after_everything_but_the_newest_was_trimmed(log: SqliteLog, database: Database) -> None:
    topic = await new_topic(log, partitions=1)
    await publish(log, topic, numbered(10))
    await database.write(lambda c: c.execute('DELETE FROM log WHERE "offset" < 9').close())
    await publish(log, topic, numbered(2))
    assert [record.offset for record in await read_all(log, topic)] == [9, 10, 11]
    async with log.admin() as admin:
        info = (await admin.describe([topic]))[topic]
    assert (info.first_offsets, info.end_offsets) == ((9,), (12,))


async def test_a_reader_stops_at_the_end_that_it_saw_first_although_the_log_is_trimmed_meanwhile(
    log: SqliteLog, database: Database
) -> None:
    topic = await new_topic(log, partitions=1)
    await publish(log, topic, numbered(READ_RECORDS + 500))
    async with log.reader() as reader:
        read = reader.read(topic)
        first = await anext(read)
        await publish(log, topic, numbered(500))
        await database.write(lambda c: c.execute('DELETE FROM log WHERE "offset" < ?', (READ_RECORDS + 400,)).close())
        rest = [record.offset async for record in read]
    assert [first.offset, *rest] == [*range(READ_RECORDS), *range(READ_RECORDS + 400, READ_RECORDS + 500)]


async def test_a_partition_added_later_is_read_from_its_first_offset(log: SqliteLog, database: Database) -> None:
    topic = await new_topic(log, partitions=1)
    await publish(log, topic, numbered(4))
    async with log.subscribe(topic, "g", Store(), records=99, bytes=9_999, wait=WAIT) as subscription:
        await batches_of(subscription, 4)
        await database.write(lambda c: c.execute("UPDATE topics SET partitions = 4").close())
        await publish(log, topic, numbered(20))
        records = records_of(await batches_of(subscription, 20))
    assert len({record.partition for record in records}) > 1
    assert {record.offset for record in records if record.partition != 0} >= {0}


async def test_a_full_disk_is_an_outage_of_the_log_and_leaves_no_part_of_the_page(
    log: SqliteLog, database: Database
) -> None:
    topic = await new_topic(log)
    await database.write(lambda c: c.execute("PRAGMA max_page_count = 60").close())
    with pytest.raises(LogUnavailable, match="full"):
        await publish(log, topic, [message(f"key-{n}", b"x" * 10_000) for n in range(100)])
    await database.write(lambda c: c.execute("PRAGMA max_page_count = 100000").close())
    assert await read_all(log, topic) == []


async def test_a_file_without_tables_is_for_a_person(tmp_path: Path) -> None:
    async with open_database(tmp_path / "bare.db") as database:
        log = SqliteLog(database, SqliteLeases(database), "here:1:a")
        with pytest.raises(ConfigError, match="ingest migrate"):
            await publish(log, "orders", numbered(1))
