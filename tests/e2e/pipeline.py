"""From an API to the rows, by the command: one source, and one consumer of all that it publishes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.e2e.command import Engine, Ingest
from tests.e2e.readings import Reading
from tests.harness.apis import Record
from tests.harness.names import unique

EMBEDDED = Engine("embedded", {})
CONFIGURATION = """
version: 1
sources:
  %(name)s:%(source)s
consumers:
  warehouse: {kind: store, topics: ["%(name)s.*"]}
topics: {partitions: 3, replication: 1, min_insync: 1, durability: relaxed}
"""


class Synced(NamedTuple):
    """Events that became rows, events that were rows already, and records that were not published again."""

    inserted: int
    duplicates: int
    unchanged: int


def as_it_is(record: Record) -> Record:
    return record


class Pipeline:
    """The command, with one source that reads `api`."""

    def __init__(self, folder: Path, engine: Engine, reading: Reading) -> None:
        self.source = unique("shop")
        text = CONFIGURATION % {"name": self.source, "source": reading.source.rstrip()}
        (folder / "ingest.yaml").write_text(text)
        self.ingest = Ingest(folder, engine, **reading.environment)

    async def sync(self, *arguments: str) -> Synced:
        """From the API to the rows."""
        ran = (await self.ingest("run", "--once", "--json", *arguments)).json
        assert all(run["outcome"] == "complete" for run in ran), ran
        consumed = (await self.ingest("consume", "warehouse", "--once", "--json")).json
        assert sum(topic["dead_letters"] for topic in consumed) == 0
        inserted, duplicates = (sum(topic[count] for topic in consumed) for count in ("inserted", "duplicates"))
        assert inserted + duplicates == sum(run["events"] for run in ran)
        return Synced(inserted, duplicates, sum(run["unchanged"] for run in ran))

    async def runs(self) -> dict[str, Record]:
        """What each stream of the source says of its run, by its name."""
        ran = (await self.ingest("run", "--once", "--json")).json
        assert all(run["outcome"] == "complete" for run in ran), ran
        return {run["stream"]: run for run in ran}

    async def differences(self) -> list[tuple[str, str, int]]:
        """Where, what and how many, as `ingest verify` finds them: it lists the API again."""
        [verified] = (await self.ingest("verify", "--json", code=None)).json
        return [(found["where"], found["kind"], found["total"]) for found in verified["findings"]]

    async def newest(self, stream: str = "orders", picked: Callable[[Record], Record] = as_it_is) -> dict[str, Record]:
        """What the store has of the stream: the newest payload of every id, but of those that are deleted."""
        rows = await self._last(stream)
        return {id: picked(row["payload"]) for id, row in rows.items() if not _is_delete(row)}

    async def deleted(self, stream: str = "orders") -> set[str]:
        return {id for id, row in (await self._last(stream)).items() if _is_delete(row)}

    async def _last(self, stream: str) -> dict[str, Record]:
        """The last event of every id."""
        done = await self.ingest("events", "--format", "jsonl")
        rows = [json.loads(line) for line in done.out.split("\n") if line]
        rows = sorted((row for row in rows if row["stream"] == stream), key=lambda row: int(row["offset"]))
        return {row["key"]: row for row in rows}


def _is_delete(row: Record) -> bool:
    return str(row["type"]).endswith(".deleted")
