"""Runs a consumer on its topics: one group per topic, side by side, until stopped or until what was there is done.

An outage of the log ends a membership, not the consumer: it joins again. New topics that fit the patterns are found.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import structlog

from consumers.consumer import Consumer, Finish, Tally
from consumers.store import EventStore
from ingest.config.model import BatchLimits
from ingest.deadletter import MARK, topic_for
from ingest.errors import ConfigError, Superseded, Transient
from ingest.eventlog import Admin, EventLog, Publisher, Subscription, TopicInfo
from ingest.retry import backoff

log = structlog.get_logger()

DISCOVER_EVERY = 30.0  # seconds between looks for new topics
FIRST_EVERY = 1.0  # seconds, while there is none yet
RETRY_BASE, RETRY_CAP = 0.5, 30.0  # seconds
PATIENCE = 12  # tries to join under --once


def matching(topics: Sequence[str], patterns: Sequence[str], consumer: str) -> list[str]:
    """Globs; `*` crosses dots. A dead-letter topic matches only a pattern that says `.dlq.`, and the consumer's own
    dead letters never do: it would bury them again and again."""
    return [
        topic
        for topic in topics
        if not topic.endswith(f"{MARK}{consumer}")
        and any(fnmatchcase(topic, pattern) and (MARK in pattern or MARK not in topic) for pattern in patterns)
    ]


@dataclass
class Runner:
    """`prepare` makes sure that the dead-letter topics named to it exist."""

    name: str
    batch: BatchLimits
    log: EventLog
    admin: Admin
    store: EventStore
    publisher: Publisher
    prepare: Callable[[Sequence[str]], Awaitable[None]]
    changed: Callable[[Tally], None] = lambda tally: None
    tallies: dict[str, Tally] = field(default_factory=dict)

    async def once(self, patterns: Sequence[str], stop: asyncio.Event) -> list[Tally]:
        """Every topic up to the end offsets as they are now. Raises Transient when the log stays away."""
        infos = await self.admin.describe(matching(await self.admin.topics(), patterns, self.name))
        await self.prepare([topic_for(topic, self.name) for topic in infos])
        async with asyncio.TaskGroup() as group:
            for topic, info in infos.items():
                group.create_task(self._consume(topic, stop, _ends(info)))
        return list(self.tallies.values())

    async def forever(self, patterns: Sequence[str], stop: asyncio.Event) -> list[Tally]:
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                for topic in await self._new_topics(patterns):
                    group.create_task(self._consume(topic, stop, None))
                await _wait(stop, DISCOVER_EVERY if self.tallies else FIRST_EVERY)
        return list(self.tallies.values())

    async def _new_topics(self, patterns: Sequence[str]) -> list[str]:
        try:
            found = [t for t in matching(await self.admin.topics(), patterns, self.name) if t not in self.tallies]
            await self.prepare([topic_for(topic, self.name) for topic in found])
        except Transient as exc:
            log.warning("cannot look for topics yet", consumer=self.name, error=str(exc))
            return []
        for topic in found:
            self._tally(topic)
            log.info("consuming", consumer=self.name, topic=topic)
        return found

    async def _consume(self, topic: str, stop: asyncio.Event, ends: Mapping[int, int] | None) -> None:
        tally = self._tally(topic)
        finish = None if ends is None else Finish(ends, lambda: self._is_done(topic, ends))
        failures = 0
        while not stop.is_set():
            batches = tally.batches
            try:
                if finish is not None and await finish.reached():
                    return  # perhaps by another process, which on SQLite would not let us in
                async with self._subscribe(topic, tally.group) as subscription:
                    await Consumer(self.name, subscription, self.store, self.publisher, tally).run(stop, finish)
                return
            except ConfigError as exc:  # of this topic; the others go on
                failures = 1 if tally.batches > batches else failures + 1
                tally.failed = str(exc)
                tally.blocked_by(str(exc))
                log.error("cannot consume: a person must act", group=tally.group, error=str(exc))
                if ends is not None:
                    return
                await _wait(stop, backoff(failures, RETRY_BASE, RETRY_CAP))
            except (Transient, Superseded) as exc:
                failures = 1 if tally.batches > batches else failures + 1
                if ends is not None and failures >= PATIENCE:
                    raise
                tally.blocked_by(str(exc))
                log.warning("cannot consume yet", group=tally.group, attempt=failures, error=str(exc))
                await _wait(stop, backoff(failures, RETRY_BASE, RETRY_CAP))

    async def _is_done(self, topic: str, ends: Mapping[int, int]) -> bool:
        """The store has reached the ends. Not where it stands behind the end of now: that is another topic's offset,
        and reading will say so."""
        offsets = await self.store.offsets(self.name, topic)
        if any(offsets.get(partition, 0) < end for partition, end in ends.items()):
            return False
        info = (await self.admin.describe([topic])).get(topic)
        if info is None:  # deleted meanwhile: reading will say so
            return False
        now = info.end_offsets
        return all(offset <= now[partition] for partition, offset in offsets.items() if partition < len(now))

    def _subscribe(self, topic: str, group: str) -> AbstractAsyncContextManager[Subscription]:
        async def start() -> Mapping[int, int]:
            return await self.store.offsets(self.name, topic)

        limits = self.batch
        return self.log.subscribe(topic, group, start, records=limits.records, bytes=limits.bytes, wait=limits.wait)

    def _tally(self, topic: str) -> Tally:
        return self.tallies.setdefault(topic, Tally(topic, f"{self.name}.{topic}", self.changed))


def _ends(info: TopicInfo) -> Mapping[int, int]:
    """Partition → end offset, of those that hold anything."""
    ranges = zip(info.first_offsets, info.end_offsets, strict=True)
    return {partition: end for partition, (first, end) in enumerate(ranges) if end > first}


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
