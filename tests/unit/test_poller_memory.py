"""What a run remembers by itself, and when it asks the database: on a real SQLite file."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

import pytest

from checkpoints import Checkpoints, StreamId
from checkpoints.sqlite import SqliteCheckpoints, SqliteLeases
from ingest import remembered
from ingest.eventlog import TopicSpec
from ingest.eventlog.sqlite import SqliteAdmin, SqlitePublisher
from ingest.poller import Poller, Target
from ingest.report import Report
from ingest.sources import Page, Saved, SourceRecord, Watch, nothing_saved
from ingest.sqlite import Database, open_database
from migrations.runner import migrate
from tests.unit.polling import here

STREAM = StreamId("api", "events")
TARGET = Target(STREAM, "api.events", 100_000)
CURSOR = b'{"fingerprint":"","updated_at":""}'
LIMIT = 5  # ids


class Asked(SqliteCheckpoints):
    """Counts how often it is asked what was seen."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.times = 0

    async def seen(self, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
        self.times += 1
        return await super().seen(stream, ids)


class Pages:
    """A source that gives these pages, each a list of (id, position); the version of a record is always the same.
    `below`: from the second page on, ids at positions below are not worth remembering. `dead`: the pages that say of
    theirs that they are gone."""

    def __init__(
        self,
        *pages: Sequence[tuple[str, int]],
        below: int | None = None,
        remember_all: bool = False,
        dead: Sequence[int] = (),
    ) -> None:
        self._pages, self._below, self._all, self._dead = pages, below, remember_all, dead

    async def pages(
        self, cursor: bytes | None, watch: Watch, saved: Saved = nothing_saved
    ) -> AsyncGenerator[Page, None]:
        for n, rows in enumerate(self._pages, 1):
            records = [SourceRecord(id, "v1", id, None, position, b"{}", n in self._dead) for id, position in rows]
            stop = "the end" if n == len(self._pages) else None
            yield Page(records, [], CURSOR, self._below if n > 1 else None, self._all, stop)


async def run(database: Database, checkpoints: Checkpoints, source: Pages) -> Report:
    """One run under a lease that is given back."""
    await SqliteAdmin(database).create([TopicSpec(TARGET.topic, 1, 1, 1, -1, 1_000_000)])
    claim = await checkpoints.claim(STREAM, "host:1:test", 600.0)
    assert claim is not None
    report = Report(STREAM)
    await Poller(TARGET, claim, source, SqlitePublisher(database), checkpoints, here, report).run(asyncio.Event())
    await SqliteLeases(database).release(claim.lease)
    return report


async def test_a_first_run_publishes_a_repeated_record_once_and_asks_nobody(sqlite_path: Path) -> None:
    await migrate(f"sqlite:///{sqlite_path}")
    async with open_database(sqlite_path) as database:
        checkpoints = Asked(database)
        report = await run(database, checkpoints, Pages([("a", 1), ("b", 2)], [("b", 2), ("c", 3)]))
    assert (report.events, report.unchanged, checkpoints.times) == (3, 1, 0)


async def test_a_later_run_asks_what_the_one_before_it_published(sqlite_path: Path) -> None:
    await migrate(f"sqlite:///{sqlite_path}")
    async with open_database(sqlite_path) as database:
        checkpoints = Asked(database)
        await run(database, checkpoints, Pages([("a", 1), ("b", 2)]))
        report = await run(database, checkpoints, Pages([("b", 2)], [("a", 1), ("c", 3)]))
    assert (report.events, report.unchanged, checkpoints.times) == (1, 2, 2)


async def test_a_run_that_remembers_much_asks_the_database_from_then_on(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "IN_MEMORY", LIMIT)
    await migrate(f"sqlite:///{sqlite_path}")
    first = [(f"id{n}", n) for n in range(LIMIT + 1)]
    async with open_database(sqlite_path) as database:
        checkpoints = Asked(database)
        report = await run(database, checkpoints, Pages(first, first, remember_all=True))
    assert (report.events, report.unchanged, checkpoints.times) == (LIMIT + 1, LIMIT + 1, 1)


async def test_a_run_forgets_what_the_database_forgets(sqlite_path: Path) -> None:
    await migrate(f"sqlite:///{sqlite_path}")
    async with open_database(sqlite_path) as database:
        checkpoints = Asked(database)
        page = [("old", 1), ("new", 9)]
        report = await run(database, checkpoints, Pages(page, [("newer", 10)], page, below=5))
    assert (report.events, report.unchanged, checkpoints.times) == (4, 1, 0)


async def test_a_record_that_comes_back_with_the_version_of_its_delete_is_published_again(sqlite_path: Path) -> None:
    await migrate(f"sqlite:///{sqlite_path}")
    async with open_database(sqlite_path) as database:
        report = await run(database, Asked(database), Pages([("a", 1)], [("a", 1)], [("a", 1)], dead=[1, 2]))
    assert (report.events, report.deletes, report.unchanged) == (2, 1, 1)
