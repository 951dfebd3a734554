"""A poller on a real SQLite file, as one process after the other opens it, and wrappers that fail at a chosen step."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from checkpoints import Checkpoints, Claim, HistoryEntry, Save, StreamId
from checkpoints.sqlite import SqliteCheckpoints, SqliteLeases
from consumers.store.sqlite import SqliteStore
from ingest.changes import Changes
from ingest.event import Event, Message, Record, decode
from ingest.eventlog import Published, Publisher, TopicSpec
from ingest.eventlog.place import located
from ingest.eventlog.sqlite import SqliteAdmin, SqliteLog
from ingest.poller import Target
from ingest.report import Report
from ingest.run import Runner, Stream
from ingest.sqlite import Database, open_database
from migrations.runner import migrate
from tests.unit.sources import NONE, Keys, opened

STREAM = StreamId("api", "events")
TOPIC = "api.events"
LETTERS = "api.events.dlq.source"
TTL = 600.0  # seconds: no lease ends during a test unless its process does

Step = Callable[[], None]
"""Runs at a chosen step; raises to fail there."""
Steps = Mapping[int, Step]
NEVER: Steps = {}


class Killed(Exception):
    """Stands for the end of a process: nobody catches it."""


def fails(error: Exception) -> Step:
    def step() -> None:
        raise error

    return step


class StumblingPublisher:
    """Before its n-th call it does `before[n]`, after it `after[n]`; calls count from 0."""

    def __init__(self, publisher: Publisher, before: Steps = NEVER, after: Steps = NEVER) -> None:
        self._publisher, self._before, self._after = publisher, before, after
        self.calls = 0

    async def publish(self, topic: str, messages: Sequence[Message]) -> Published:
        call, self.calls = self.calls, self.calls + 1
        self._before.get(call, _nothing)()
        published = await self._publisher.publish(topic, messages)
        self._after.get(call, _nothing)()
        return published


class StumblingCheckpoints(SqliteCheckpoints):
    """The same for `save`; what was saved is kept in `saves`."""

    def __init__(self, database: Database, before: Steps = NEVER, after: Steps = NEVER) -> None:
        super().__init__(database)
        self._before, self._after = before, after
        self.calls = 0
        self.saves: list[Save] = []

    async def save(self, claim: Claim, save: Save) -> None:
        call, self.calls = self.calls, self.calls + 1
        self._before.get(call, _nothing)()
        await super().save(claim, save)
        self.saves.append(save)
        self._after.get(call, _nothing)()


async def here(topic: str) -> str:
    return f"here/{topic}/1"


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Process:
    """One process. Leaving its context is dying: what it did not release stays taken, and others see that it died."""

    database: Database
    log: SqliteLog
    publisher: Publisher
    checkpoints: Checkpoints
    leases: SqliteLeases
    holder: str

    async def poll(
        self,
        url: str,
        keys: Keys = NONE,
        above: Keys = NONE,
        stop: asyncio.Event | None = None,
        changes: Changes | None = None,
    ) -> Report:
        """One run of the stream, as `ingest run --once` does it; with `changes` as one of several in a process."""
        locate = partial(located, SqliteAdmin(self.database))
        runner = Runner(self.publisher, self.checkpoints, self.leases, self.holder, locate, lease_ttl=TTL)
        async with opened(url, keys, above) as source:
            target = Target(STREAM, TOPIC, keys.get("seen_limit", 100_000))
            [report] = await runner.once([Stream(target, source, 1.0, changes or Changes())], stop or asyncio.Event())
        return report

    async def records(self, topic: str = TOPIC) -> list[Record]:
        async with self.log.reader() as reader:
            return [record async for record in reader.read(topic)]

    async def events(self) -> list[Event]:
        return [decode(record) for record in await self.records()]

    async def ids(self) -> list[str]:
        return [event.subject for event in await self.events()]

    async def stored(self) -> int:
        """How many rows the events of the log are in the store."""
        return (await SqliteStore(self.database).write("test", await self.events(), [])).inserted

    async def cursor(self) -> bytes | None:
        found = {one.stream: one.cursor for one in await self.checkpoints.list()}
        return found.get(STREAM)

    async def history(self) -> Sequence[HistoryEntry]:
        return await self.checkpoints.history(STREAM)


@asynccontextmanager
async def process(
    path: Path,
    *,
    publisher: Callable[[Publisher], Publisher] = lambda publisher: publisher,
    checkpoints: Callable[[Database], Checkpoints] = SqliteCheckpoints,
    max_message: int = 1_000_000,
    letters_max: int = 2_000_000,
) -> AsyncIterator[Process]:
    await migrate(f"sqlite:///{path}")
    async with open_database(path) as database:
        holder = f"here:1:{uuid.uuid4().hex}"
        log = SqliteLog(database, SqliteLeases(database), holder)
        async with log.admin() as admin:
            await admin.create([_spec(TOPIC, max_message), _spec(LETTERS, letters_max)])
        async with log.publisher() as plain:
            yield Process(database, log, publisher(plain), checkpoints(database), SqliteLeases(database), holder)


def _spec(name: str, max_message: int) -> TopicSpec:
    """One partition, so that the order of the log is the order of publishing."""
    return TopicSpec(name, 1, replication=1, min_insync=1, retention_ms=-1, max_message=max_message)


async def poll(path: Path, url: str, keys: Keys = NONE, above: Keys = NONE) -> Report:
    """One run in a process of its own, which ends well."""
    async with process(path) as one:
        return await one.poll(url, keys, above)
