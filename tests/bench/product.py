"""The product under measurement, as its users run it: one configuration file and the `ingest` command.

Nothing of it is imported here, every run is a fresh process, and what a run should have done is counted afterwards by
someone else: the offsets that the log and the store keep.
"""

import asyncio
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from tests.bench.measure import Failed, Process, Usage
from tests.bench.servers import Api

INGEST = Path(sys.executable).with_name("ingest")
LOOK_EVERY = 0.02  # seconds between two looks at how far the consumer is
EVENTS = ("--stream", "events")
TIMEOUT = 600.0  # seconds for one run

CONFIG = """\
version: 1
topics: {{replication: 1, min_insync: 1, durability: relaxed, partitions: 4}}
sources:
  bench:
    base_url: {api.url}
    streams:
      events:
        topic: {topic}
        path: /v1/events
        params: {{limit: {page}}}
        records: $.data
        id: id
        occurred_at: created
        paginate: {{type: cursor, from: last.id, param: starting_after, more: $.has_more}}
        {incremental}
        every: 50ms
{beside}
      nothing: {{topic: {topic}, path: /v1/events, params: {{since: 4000000000}}, records: $.data, id: id}}
consumers:
  warehouse: {{kind: store, topics: [{topic}]}}
  again: {{kind: store, topics: [{topic}]}}
  third: {{kind: store, topics: [{topic}]}}
"""
BESIDE = """\
      beside{n}:
        topic: {topic}
        path: /v1/events
        params: {{limit: {page}}}
        records: $.data
        id: id
        paginate: {{type: cursor, from: last.id, param: starting_after, more: $.has_more}}"""
ASCENDING = 'incremental: {type: timestamp, field: created, format: unix, since: {param: "created[gte]"}, order: asc}'
EVERYTHING = ""  # no incremental: every run reads all, and every id is remembered


@dataclass(frozen=True)
class Place:
    """Where one run of the product works. Without addresses it is the embedded default, in `directory`."""

    directory: Path
    api: Api
    topic: str
    log_url: str | None = None
    store_url: str | None = None
    incremental: str = ASCENDING
    page: int = 1000  # records
    beside: int = 0  # streams that list the same, each for itself
    _file: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_file", self.directory / "ingest.yaml")
        beside = "\n".join(BESIDE.format(n=n, topic=self.topic, page=self.page) for n in range(self.beside))
        self._file.write_text(
            CONFIG.format(api=self.api, topic=self.topic, incremental=self.incremental, page=self.page, beside=beside)
        )

    def start(self, *arguments: str) -> Process:
        env = {"INGEST_LOG_URL": self.log_url, "INGEST_STORE_URL": self.store_url}
        return Process(
            [INGEST, *arguments, "--config", self._file, "--ops", "off"],
            env={name: value for name, value in env.items() if value is not None},
            cwd=self.directory,
        )

    async def poll(self) -> Usage:
        return await self.start("run", *EVENTS, "--once", "--json").wait(TIMEOUT)

    async def poll_all(self) -> Usage:
        """Every stream that has something to list."""
        beside = [option for n in range(self.beside) for option in ("--stream", f"beside{n}")]
        return await self.start("run", *EVENTS, *beside, "--once", "--json").wait(TIMEOUT)

    async def make_topic(self) -> None:
        """By polling what is empty: a consumer that finds no topic looks again only after half a minute."""
        await self.start("run", "--stream", "nothing", "--once").wait(TIMEOUT)

    async def consume(self, consumer: str = "warehouse") -> Usage:
        return await self.start("consume", consumer, "--once", "--json").wait(TIMEOUT)

    async def both(self) -> tuple[float, Usage, Usage]:
        """Poller and consumer started together. Seconds from their start to the last row, and what each used."""
        consumer, poller = self.start("consume", "warehouse"), self.start("run", *EVENTS, "--once", "--json")
        async with written(self) as count:
            while (rows := await count()) < self.api.records:
                poller.look()
                consumer.look()
                if consumer.ended() or time.perf_counter() - poller.started > TIMEOUT:
                    poller.terminate()
                    raise Failed(f"{rows} of {self.api.records} rows: {(await consumer.wait(0.1)).output}")
                await asyncio.sleep(LOOK_EVERY)
            seconds = time.perf_counter() - consumer.started
        consumer.terminate()
        return seconds, await poller.wait(TIMEOUT), await consumer.wait(TIMEOUT)


class written:
    """Counts what the store holds of the topic, by the offsets that move in the transaction of the rows."""

    STATEMENT = "SELECT coalesce(sum(next_offset), 0) FROM {} WHERE consumer = 'warehouse'"

    def __init__(self, place: Place) -> None:
        self._place = place

    async def __aenter__(self) -> Callable[[], Awaitable[int]]:
        if self._place.store_url is None:
            return self._of_file
        self._connection = await asyncpg.connect(self._place.store_url)
        return self._of_postgres

    async def __aexit__(self, *exc: object) -> None:
        if self._place.store_url is not None:
            await self._connection.close()

    async def _of_postgres(self) -> int:
        return int(await self._connection.fetchval(self.STATEMENT.format("ingest.offsets")))

    async def _of_file(self) -> int:
        file = self._place.directory / ".ingest" / "ingest.db"
        if not file.exists():
            return 0
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        try:
            return int(connection.execute(self.STATEMENT.format("offsets")).fetchone()[0])
        except sqlite3.OperationalError:  # not migrated yet, or busy
            return 0
        finally:
            connection.close()
