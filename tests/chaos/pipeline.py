"""One pipeline on one engine: an API in the tests' own process, everything else in processes that may be killed."""

import asyncio
import json
import signal
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from migrations.runner import migrate
from tests.chaos import evidence, kafka_groups
from tests.chaos.evidence import Place
from tests.chaos.history import History, Saved, complaints
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.listings import Listing
from tests.harness.names import unique
from tests.harness.processes import Child, tail

RECORDS, PAGE = 800, 100
PAGES = RECORDS // PAGE
PARTITIONS = 3
DEADLINE = 60.0  # seconds that a process may take
POLL = 0.02  # seconds
REPOSITORY = Path(__file__).resolve().parents[2]
CONSUMER = "warehouse"

CONFIGURATION = """
version: 1
topics: {{partitions: {partitions}, replication: 1, min_insync: 1, durability: relaxed}}
sources:
  {source}:
    base_url: {url}
    streams:
      events:
        path: /events
        records: $.data
        id: id
        version: updated_at
        key: account
        paginate: {{type: next_url, from: $.next}}
        incremental: {{type: timestamp, field: updated_at, since: {{param: since}}, order: asc}}
consumers:
  warehouse:
    kind: store
    topics: ["{source}.events"]
    batch: {{records: 100, wait: 200ms}}
"""


async def until(ready: Callable[[], Awaitable[bool]], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not await ready():
        assert time.monotonic() < deadline, f"it did not come to pass: {what()}"
        await asyncio.sleep(POLL)


class Process:
    """A child that is awaited without holding up the API."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: dict[str, str]) -> None:
        self.name = name
        self.output = folder / f"{name}.out"
        self._child = Child([sys.executable, "-m", *command], log=self.output, cwd=folder, env=env)

    async def ended(self) -> int:
        """The exit code; minus the number of the signal that killed it."""

        async def gone() -> bool:
            return self._child.returncode is not None

        await until(gone, lambda: f"{self.name} ends\n{tail(self.output)}")
        assert self._child.returncode is not None
        return self._child.returncode

    async def reaches(self, ready: Callable[[], Awaitable[bool]]) -> None:
        """Waits until `ready` while the process runs; it may not end before."""

        async def ready_or_over() -> bool:
            assert self._child.returncode is None, f"{self.name} ended too early\n{tail(self.output)}"
            return await ready()

        await until(ready_or_over, lambda: f"{self.name} gets there\n{tail(self.output)}")

    async def frozen(self) -> None:
        async def stopped() -> bool:
            state = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return state == "T"

        await self.reaches(stopped)

    def send(self, number: signal.Signals) -> None:
        self._child.send(number)

    def kill(self) -> None:
        self._child.kill()

    def said(self) -> Any:
        """The JSON that it printed last: one object of its only stream or topic."""
        text = self.output.read_text()
        [found] = json.loads(text[text.index("[\n") :])
        return found


@dataclass
class Pipeline:
    folder: Path
    api: FakeApi
    listing: Listing
    place: Place
    env: dict[str, str]
    served: Path
    processes: list[Process] = field(default_factory=list)

    def start(self, *command: str) -> Process:
        """`run …` and `consume …` are the product's; `victim …` is tests/chaos/victim.py."""
        first, *rest = command
        module = ["tests.chaos.victim"] if first == "victim" else ["ingest.cli", first]
        process = Process(f"{len(self.processes):02d}-{first}", [*module, *rest], self.folder, self.env)
        self.processes.append(process)
        return process

    async def finish(self, *command: str) -> Any:
        """A command that ends well; what it said."""
        process = self.start(*command, "--json")
        code = await process.ended()
        assert code == 0, f"{command} ended with {code}\n{tail(process.output)}"
        return process.said()

    async def killed(self, *command: str) -> None:
        """A victim that dies of its fate."""
        process = self.start("victim", *command, "SIGKILL")
        code = await process.ended()
        assert code == -signal.SIGKILL, f"it was to be killed, and ended with {code}\n{tail(process.output)}"

    async def run(self) -> Any:
        return await self.finish("run", "--once")

    async def consume(self) -> Any:
        return await self.finish("consume", CONSUMER, "--once")

    async def time_passes(self) -> None:
        """As long as it takes until the dead count as dead. In a SQLite file they do so at once, by their locks."""
        if self.place.bootstrap is not None:
            await self.leases_end()
            await kafka_groups.evict(self.place.bootstrap, self.group)

    async def leases_end(self) -> None:
        """All leases are past their time, and were not given back."""
        if self.place.bootstrap is None:
            connection = sqlite3.connect(self.place.database)
            connection.execute("UPDATE leases SET expires_at = 1 WHERE expires_at > 1")
            connection.commit()
            connection.close()
        else:
            postgres = await asyncpg.connect(self.place.database)
            await postgres.execute(
                "UPDATE ingest.leases SET expires_at = clock_timestamp() WHERE expires_at > clock_timestamp()"
            )
            await postgres.close()

    @property
    def group(self) -> str:
        return f"{CONSUMER}.{self.place.topic}"

    def asked(self, since: int = 0) -> list[str]:
        """The page tokens of the requests from number `since` on; "" is the first page of a listing."""
        return [request.query.get("token", "") for request in self.api.requests[since:]]

    async def cursors(self) -> list[Saved]:
        return await evidence.saved_cursors(self.place)

    async def stored(self) -> int:
        return await evidence.stored(self.place)

    async def history(self) -> History:
        return await evidence.gather(self.place, self.served)

    async def proves(self, *, repeats: int, drained: bool, zombie: bool = False) -> History:
        """The history, in which nothing is wrong."""
        history = await self.history()
        assert complaints(history, repeats=repeats, drained=drained, zombie=zombie) == []
        return history

    async def nothing_is_new(self) -> None:
        """Both commands once more, side by side."""
        again = self.start("run", "--once")
        assert (await self.consume())["inserted"] == 0
        assert await again.ended() == 0, tail(again.output)
        assert f"{self.place.source}/events: nothing new" in again.output.read_text()


async def prepare(folder: Path, api: FakeApi, database: str, bootstrap: str | None) -> Pipeline:
    """`database`: Postgres' URL, or the path of a SQLite file. The API's log is at `served.jsonl` in `folder`."""
    place = Place(database, bootstrap, unique("billing"), "events", CONSUMER)
    if bootstrap is None:
        await migrate(f"sqlite:///{database}")
        urls = {"INGEST_LOG_URL": f"sqlite:///{database}", "INGEST_STORE_URL": f"sqlite:///{database}"}
    else:
        urls = {"INGEST_LOG_URL": f"kafka://{bootstrap}", "INGEST_STORE_URL": database}
    await evidence.watch_cursors(place)
    text = CONFIGURATION.format(partitions=PARTITIONS, source=place.source, url=api.url)
    (folder / "ingest.yaml").write_text(text)
    env = {**urls, "INGEST_STATE_URL": urls["INGEST_STORE_URL"], "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
    listing = api.serve("events", numbered(RECORDS), page_size=PAGE)
    return Pipeline(folder, api, listing, place, env, folder / "served.jsonl")
