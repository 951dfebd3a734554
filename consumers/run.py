"""Runs a consumer on its topics: one group per topic, side by side, until stopped or until what was there is done.

An outage of the log ends a membership, not the consumer: it joins again. New topics that fit the patterns are found.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

import structlog

from consumers.consumer import Consumer, Finish
from consumers.store import EventStore
from consumers.tally import Tally
from ingest import metrics
from ingest.config.model import BatchLimits
from ingest.deadletter import MARK, topic_for
from ingest.errors import ConfigError, Superseded, Transient
from ingest.eventlog import Admin, EventLog, Publisher, Subscription, TopicInfo
from ingest.retry import backoff
from ingest.topics import Restoring

log = structlog.get_logger()
T = TypeVar("T")

DISCOVER_EVERY = 30.0  # seconds between looks for new topics
FIRST_EVERY = 1.0  # seconds, while there is none yet
RETRY_BASE, RETRY_CAP = 0.5, 30.0  # seconds
PATIENCE = 12  # tries to open what is needed, and to join under --once; with the back-off, some two minutes


def matching(topics: Sequence[str], patterns: Sequence[str], consumer: str) -> list[str]:
    """Globs; `*` crosses dots. A dead-letter topic matches only a pattern that says `.dlq.`, and the consumer's own
    dead letters never do: it would bury them again and again."""
    return [
        topic
        for topic in topics
        if not topic.endswith(f"{MARK}{consumer}")
        and any(fnmatchcase(topic, pattern) and (MARK in pattern or MARK not in topic) for pattern in patterns)
    ]


async def patiently(act: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T:
    """What `act` returns, as soon as the log and the databases answer. Raises Transient when they stay away, or when
    `stop` is set meanwhile."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return await act()
        except Transient as exc:
            if attempt >= PATIENCE or stop.is_set():
                raise
            log.warning("cannot begin yet", attempt=attempt, error=str(exc))
            await _wait(stop, backoff(attempt, RETRY_BASE, RETRY_CAP))


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
        goals = await patiently(lambda: self._goals(patterns), stop)
        async with asyncio.TaskGroup() as group:
            for topic, goal in goals.items():
                group.create_task(self._consume(topic, stop, goal))
        return list(self.tallies.values())

    async def _goals(self, patterns: Sequence[str]) -> Mapping[str, "Goal"]:
        found = matching(await self.admin.topics(), patterns, self.name)
        await self._permitted({*found, *_literal(patterns)})
        ids = await self.admin.topic_ids(found)
        infos = await self.admin.describe(found)
        await self.prepare([topic_for(topic, self.name) for topic in infos])
        return {topic: Goal(ids[topic], _ends(info)) for topic, info in infos.items() if topic in ids}

    async def forever(self, patterns: Sequence[str], stop: asyncio.Event) -> list[Tally]:
        """Raises ConfigError where the topics that are there at the start cannot be consumed. One that comes later and
        cannot is said, and tried again, beside the others."""
        begun = False
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                try:
                    found = await self._new_topics(patterns)
                    if not begun:
                        await self._permitted({*found, *_literal(patterns)})
                        await self.prepare([topic_for(topic, self.name) for topic in found])
                except Transient as exc:
                    log.warning("cannot look for topics yet", consumer=self.name, error=str(exc))
                except ConfigError as exc:
                    if not begun:
                        raise
                    log.error("cannot look for topics: a person must act", consumer=self.name, error=str(exc))
                else:
                    for topic in found:
                        self._tally(topic)
                        log.info("consuming", consumer=self.name, topic=topic)
                        group.create_task(self._consume(topic, stop, None, prepared=not begun))
                    begun = True
                await _wait(stop, DISCOVER_EVERY if self.tallies else FIRST_EVERY)
        return list(self.tallies.values())

    async def _permitted(self, topics: Iterable[str]) -> None:
        """Raises ConfigError where the log does not let us read. One that may not even be seen is not in its list."""
        await self.admin.permits(reads={topic: f"{self.name}.{topic}" for topic in topics})

    async def _new_topics(self, patterns: Sequence[str]) -> list[str]:
        return [t for t in matching(await self.admin.topics(), patterns, self.name) if t not in self.tallies]

    async def _consume(self, topic: str, stop: asyncio.Event, goal: "Goal | None", *, prepared: bool = True) -> None:
        tally = self._tally(topic)
        finish = None if goal is None else Finish(goal.ends, lambda without: self._is_done(topic, goal, without))
        letters = Restoring(self.publisher, self.prepare)
        failures = 0
        while not stop.is_set():
            batches = tally.batches
            try:
                if finish is not None and await finish.reached(()):
                    return  # perhaps by another process, which on SQLite would not let us in
                if not prepared:
                    await self._permitted([topic])
                    await self.prepare([topic_for(topic, self.name)])
                    prepared = True
                async with self._subscribe(tally) as subscription:
                    tally.failed = None
                    await Consumer(self.name, subscription, self.store, letters, tally).run(stop, finish)
                return
            except ConfigError as exc:  # of this topic; the others go on
                failures = 1 if tally.batches > batches else failures + 1
                tally.failed = str(exc)
                tally.blocked_by(str(exc))
                log.error("cannot consume: a person must act", group=tally.group, error=str(exc))
                if goal is not None:
                    return
                await _wait(stop, backoff(failures, RETRY_BASE, RETRY_CAP))
            except (Transient, Superseded) as exc:
                failures = 1 if tally.batches > batches else failures + 1
                if goal is not None and failures >= PATIENCE:
                    raise
                tally.blocked_by(str(exc))
                metrics.rejoins.labels(topic, tally.group).inc()
                log.warning("cannot consume yet", group=tally.group, attempt=failures, error=str(exc))
                await _wait(stop, backoff(failures, RETRY_BASE, RETRY_CAP))

    async def _is_done(self, topic: str, goal: "Goal", without: Collection[int]) -> bool:
        """The store has reached the ends, but for the partitions `without`. Not where it stands behind the end of now:
        what that means, reading will say. Raises ConfigError when the topic is another one than it was."""
        info = (await self.admin.describe([topic])).get(topic)
        if info is None:  # deleted meanwhile: reading will say so
            return False
        if (await self.admin.topic_ids([topic])).get(topic, goal.topic_id) != goal.topic_id:
            raise ConfigError(f"{topic} was deleted and made anew while it was read: run again to read the new one")
        offsets = await self.store.offsets(self.name, topic, goal.topic_id)
        if any(offsets.get(p, 0) < end for p, end in goal.ends.items() if p not in without):
            return False
        now = info.end_offsets
        return all(offset <= now[partition] for partition, offset in offsets.items() if partition < len(now))

    def _subscribe(self, tally: Tally) -> AbstractAsyncContextManager[Subscription]:
        async def start(topic_id: str) -> Mapping[int, int]:
            return await self._start(tally, topic_id)

        limits = self.batch
        return self.log.subscribe(
            tally.topic, tally.group, start, records=limits.records, bytes=limits.bytes, wait=limits.wait
        )

    async def _start(self, tally: Tally, topic_id: str) -> Mapping[int, int]:
        """Where the store stands in this very topic. One that was deleted and made anew is read from its beginning:
        stopping would not bring back what the old one took along, and rows that exist stay single."""
        offsets = await self.store.offsets(self.name, tally.topic, topic_id)
        if offsets:
            return offsets
        others = await self.store.other_ids(self.name, tally.topic, topic_id)
        if others:
            tally.replaced += 1
            metrics.replaced.labels(tally.topic, tally.group).inc()
            log.error(
                "the topic was deleted and made anew: read from its beginning; what the old one held unread is lost",
                topic=tally.topic,
                group=tally.group,
                id=topic_id,
                read_before=list(others),
            )
            tally.changed(tally)
        return offsets

    def _tally(self, topic: str) -> Tally:
        if topic not in self.tallies:
            self.tallies[topic] = tally = Tally(topic, f"{self.name}.{topic}", self.changed)
            for counter in (metrics.rebalances, metrics.rejoins, metrics.trimmed, metrics.replaced):
                counter.labels(topic, tally.group)  # from the start: `increase` does not see a first value
        return self.tallies[topic]


def _literal(patterns: Sequence[str]) -> set[str]:
    return {pattern for pattern in patterns if not any(mark in pattern for mark in "*?[")}


class Goal(NamedTuple):
    """Where `once` stops: `ends` is partition → end offset of the partitions that hold anything, in this very topic."""

    topic_id: str
    ends: Mapping[int, int]


def _ends(info: TopicInfo) -> Mapping[int, int]:
    """Partition → end offset, of those that hold anything."""
    ranges = zip(info.first_offsets, info.end_offsets, strict=True)
    return {partition: end for partition, (first, end) in enumerate(ranges) if end > first}


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
