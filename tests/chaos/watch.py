"""Looks on while a chaos run goes: where offsets and cursors stand, how large the processes are, how fresh the rows.

What it cannot see because a server is away it leaves out. It speaks to the servers directly, never through a proxy.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import httpx
from aiokafka.admin import AIOKafkaAdminClient
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos import evidence
from tests.chaos.evidence import Place
from tests.chaos.feed import micros
from tests.chaos.fleet import Fleet, Member

EVERY = 0.5  # seconds between two looks
PATIENCE = 5.0  # seconds for an answer
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
T = TypeVar("T")

INSERTED = ("ingest_consumer_records_total", "inserted")
ACKNOWLEDGED = ("ingest_producer_records_total", "acked")


class Size(NamedTuple):
    """Of a process. `age`: seconds since its start; `memory` in bytes."""

    age: float
    memory: int
    files: int


class Committed(NamedTuple):
    """What Kafka had for the group, and what the store had right after that: partition → next offset."""

    kafka: Mapping[int, int]
    store: Mapping[int, int]


@dataclass
class Watch:
    place: Place
    fleet: Fleet
    fresh: int = 0
    """When the newest record was made that is in the store: microseconds since 1970."""
    sizes: dict[str, list[Size]] = field(default_factory=dict)
    """By process."""
    committed: list[Committed] = field(default_factory=list)
    counts: dict[str, dict[tuple[str, str], int]] = field(default_factory=dict)
    """By process: its counters, as they were when it was last asked."""
    pages: dict[str, str] = field(default_factory=dict)
    """By process: the last page of metrics that it gave."""
    rebalances: int = 0
    _members: frozenset[str] = frozenset()

    async def go_on(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_again(self._sizes))
            group.create_task(_again(self._fresh))
            group.create_task(_again(self.scrape))
            if self.place.bootstrap is not None:
                group.create_task(_again(self._group))

    async def active(self) -> Member | None:
        """The poller that holds the stream; None: nobody, or nobody can say."""
        try:
            rows = await asyncio.wait_for(
                evidence.query(
                    self.place, f"SELECT holder FROM {self.schema}leases WHERE name LIKE 'stream:%'"
                ),
                PATIENCE,
            )
        except evidence.OUTAGES:
            return None
        pids = {int(holder.split(":")[1]) for (holder,) in rows}
        running = [p for p in self.fleet.pollers if p.running]
        return next((p for p in running if p.process is not None and p.process.pid in pids), None)

    async def head(self) -> int:
        """How far the saved cursor has come, of a listing that is complete: microseconds since 1970."""
        rows = await evidence.query(self.place, f"SELECT cursor FROM {self.schema}checkpoints")
        marks = [json.loads(cursor).get("high_water") for (cursor,) in rows]
        return min((micros(mark) if mark else 0 for mark in marks), default=0)

    async def offsets(self) -> dict[int, int]:
        rows = await evidence.query(self.place, f"SELECT partition, next_offset FROM {self.schema}offsets")
        return {int(partition): int(offset) for partition, offset in rows}

    async def group_offsets(self) -> dict[int, int]:
        """Kafka's own."""
        async with _admin(self.place) as admin:
            group = f"{self.place.consumer}.{self.place.topic}"
            found = await admin.list_consumer_group_offsets(group)
        return {tp.partition: meta.offset for tp, meta in found.items() if meta.offset >= 0}

    async def scrape(self) -> None:
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            for member in self.fleet.members:
                process, ops = member.process, member.ops
                if process is None or not ops or not member.running or process.stands_still():
                    continue
                with suppress(httpx.HTTPError):
                    page = (await client.get(f"http://{ops}/metrics")).text
                    self.pages[process.name] = page
                    self.counts[process.name] = counters(page)

    def total(self, counter: tuple[str, str]) -> int:
        return sum(counts.get(counter, 0) for counts in self.counts.values())

    @property
    def schema(self) -> str:
        return "" if self.place.bootstrap is None else "ingest."

    async def _sizes(self) -> None:
        for member in self.fleet.members:
            if member.process is not None and member.running:
                size = _size(member.process.pid, time.monotonic() - member.started_at)
                if size is not None:
                    self.sizes.setdefault(member.process.name, []).append(size)

    async def _fresh(self) -> None:
        newest = f"SELECT occurred_at FROM {self.schema}events ORDER BY ingested_at DESC LIMIT 1000"
        for (when,) in await evidence.query(self.place, newest):
            self.fresh = max(self.fresh, micros(when) if isinstance(when, str) else round(when.timestamp() * 1e6))

    async def _group(self) -> None:
        """Kafka first: it is told after the store."""
        kafka = await self.group_offsets()
        self.committed.append(Committed(kafka, await self.offsets()))
        async with _admin(self.place) as admin:
            [found] = await admin.describe_consumer_groups([f"{self.place.consumer}.{self.place.topic}"])
            [(_, _, _, _, _, members, *_)] = found.groups
        now = frozenset(member[0] for member in members)
        self.rebalances += now != self._members
        self._members = now


async def _again(look: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(Exception):  # a server that is going away may fail in any way; that looks were had is counted
            async with asyncio.timeout(PATIENCE):
                await look()
        await asyncio.sleep(EVERY)


class _admin:
    def __init__(self, place: Place) -> None:
        self._client = AIOKafkaAdminClient(bootstrap_servers=place.bootstrap, request_timeout_ms=5_000)

    async def __aenter__(self) -> AIOKafkaAdminClient:
        await self._client.start()
        return self._client

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()


def counters(page: str) -> dict[tuple[str, str], int]:
    """(name, outcome) → value, of all that have an outcome."""
    return {
        (sample.name, sample.labels["outcome"]): int(sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.endswith("_total") and "outcome" in sample.labels
    }


def _size(pid: int, age: float) -> Size | None:
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return Size(age, resident * PAGE_BYTES, len(os.listdir(f"/proc/{pid}/fd")))
    except (FileNotFoundError, ProcessLookupError):
        return None
