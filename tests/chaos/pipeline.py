"""One pipeline on one engine: an API in the tests' own process, everything else in processes that may be killed."""

import signal
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from migrations.runner import migrate
from tests.chaos import configuration, evidence, kafka_groups
from tests.chaos.configuration import CONSUMER, STREAM
from tests.chaos.evidence import Place
from tests.chaos.history import History, Saved, complaints
from tests.chaos.processes import Process
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.listings import Listing
from tests.harness.names import unique
from tests.harness.processes import tail

RECORDS, PAGE = 800, 100
PAGES = RECORDS // PAGE
PARTITIONS = 2


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
        words = command if command[0] == "victim" else ("ingest", *command)
        process = Process(f"{len(self.processes):02d}-{command[0]}", words, self.folder, self.env)
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
        """Both commands once more, side by side: they say so, and leave the log and the store as they are."""
        before = await evidence.ends(self.place), await self.stored()
        again = self.start("run", "--once")
        assert (await self.consume())["inserted"] == 0
        assert await again.ended() == 0, tail(again.output)
        assert f"{self.place.source}/events: nothing new" in again.output.read_text()
        assert (await evidence.ends(self.place), await self.stored()) == before


async def prepare(folder: Path, api: FakeApi, database: str, bootstrap: str | None) -> Pipeline:
    """`database`: Postgres' URL, or the path of a SQLite file. The API's log is at `served.jsonl` in `folder`."""
    place = Place(database, bootstrap, unique("billing"), STREAM, CONSUMER)
    if bootstrap is None:
        await migrate(f"sqlite:///{database}")
        urls = {"INGEST_LOG_URL": f"sqlite:///{database}", "INGEST_STORE_URL": f"sqlite:///{database}"}
    else:
        urls = {"INGEST_LOG_URL": f"kafka://{bootstrap}", "INGEST_STORE_URL": database}
    await evidence.watch_cursors(place)
    configuration.write(folder, place.source, api.url, partitions=PARTITIONS, batch=100)
    env = {**urls, "INGEST_STATE_URL": urls["INGEST_STORE_URL"], "COLUMNS": "200"}
    listing = api.serve("events", numbered(RECORDS), page_size=PAGE)
    return Pipeline(folder, api, listing, place, env, folder / "served.jsonl")
