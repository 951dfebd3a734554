"""A SQLite log keeps what its topics say, and its offsets never begin again."""

import sqlite3
from pathlib import Path

import pytest

from consumers.store import Written
from tests.chaos.test_sqlite_faults import message, opened
from tests.contract.eventlogs import WAIT, Store, batches_of, open_sqlite_log, records_of, some_batch
from tests.contract.test_store import TOPIC, span

DAY = 86_400_000  # milliseconds


def keeps(path: Path, milliseconds: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE topics SET retention_ms = ?", (milliseconds,))
    connection.commit()
    connection.close()


def ages(path: Path, up_to: int, milliseconds: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute('UPDATE log SET timestamp = timestamp - ? WHERE "offset" < ?', (milliseconds, up_to))
    connection.commit()
    connection.close()


def left(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    offsets = [offset for (offset,) in connection.execute('SELECT "offset" FROM log ORDER BY "offset"')]
    connection.close()
    return offsets


async def test_what_is_older_than_the_topic_keeps_is_trimmed_and_offsets_go_on(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message(str(n)) for n in range(10)])
    keeps(sqlite_path, DAY)
    ages(sqlite_path, 6, 2 * DAY)
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message("10")])
    assert left(sqlite_path) == [6, 7, 8, 9, 10]
    ages(sqlite_path, 11, 2 * DAY)
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message("11")])
        assert left(sqlite_path) == [11]
        ages(sqlite_path, 12, 2 * DAY)
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message("12")])
    assert left(sqlite_path) == [12], "offsets never begin again"


async def test_nothing_is_trimmed_for_ever_nor_behind_a_record_that_is_young(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message(str(n)) for n in range(5)])
    ages(sqlite_path, 5, 1000 * DAY)
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message("5")])
    assert left(sqlite_path) == [0, 1, 2, 3, 4, 5], "-1: for ever"
    keeps(sqlite_path, DAY)
    ages(sqlite_path, 1, -1000 * DAY)  # the clock was set back after the first
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message("6")])
    assert left(sqlite_path) == [0, 1, 2, 3, 4, 5, 6]


async def test_a_consumer_whose_unread_records_are_trimmed_is_named(
    sqlite_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message(str(n)) for n in range(10)])
        assert await parts.store.write("slow", [], [span(0, 4)]) == Written(0, 0)
        await parts.store.write("quick", [], [span(0, 10)])
        await parts.store.write("former", [], [span(0, 4)._replace(topic_id="a topic of this name that was deleted")])
    keeps(sqlite_path, DAY)
    ages(sqlite_path, 9, 2 * DAY)
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message("10")])
    said = capsys.readouterr()
    text = said.out + said.err
    assert "trimmed before it was read" in text
    assert "slow" in text
    assert "quick" not in text
    assert "former" not in text


async def test_what_is_trimmed_under_a_reader_is_counted_as_lost(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as parts:
        await parts.publisher.publish(TOPIC, [message(str(n)) for n in range(10)])
    keeps(sqlite_path, DAY)
    ages(sqlite_path, 6, 2 * DAY)
    async with (
        open_sqlite_log(sqlite_path) as log,
        log.subscribe(TOPIC, "g", Store(), records=3, bytes=1_000_000, wait=WAIT) as subscription,
    ):
        batches = [await some_batch(subscription)]
        async with opened(sqlite_path) as parts:
            await parts.publisher.publish(TOPIC, [message("10")])
        batches += await batches_of(subscription, 5)
    assert [record.offset for record in records_of(batches)] == [0, 1, 2, 6, 7, 8, 9, 10]
    assert [batch.trimmed for batch in batches] == [0, 3, 0]
    assert [(s.start, s.end) for batch in batches for s in batch.spans] == [(0, 3), (3, 9), (9, 11)]
