"""Looks, now and then, at where a member of a Kafka group stands, and says when its membership is to be given up.

Brokers that do not answer are waited for: aiokafka finds them again by itself, and a member that could not say that it
leaves would hold up the next one for a whole session. A topic that was deleted and made anew is noticed by its id.
"""

import asyncio
from collections.abc import Callable

import structlog

from ingest.errors import ConfigError, IngestError, LogUnavailable
from ingest.eventlog.kafka.intake import Intake
from ingest.eventlog.kafka.member import Member
from ingest.eventlog.kafka.metadata import topic_ids
from ingest.eventlog.kafka.watchdog import Look, Watchdog

log = structlog.get_logger()

POSITION_TIMEOUT = 10.0  # seconds until a partition has a position, after it was lost
TICK = 1.0  # seconds between two checks of the watchdog, or a tenth of `look_every`


class Lookout:
    """`start_over`: called where the topic is another one, to begin again in it."""

    def __init__(self, member: Member, intake: Intake, start_over: Callable[[], None]) -> None:
        self._member, self._consumer = member, member.consumer
        self._topic, self._group, self._times = member.topic, member.group, member.times
        self._intake = intake
        self._start_over = start_over
        self.watchdog = Watchdog(member.consumer, member.times)
        self.trouble: str | None = None
        self._failing = 0.0  # seconds since a look got an answer

    async def watch(self, polling: Callable[[], bool]) -> IngestError:
        """Why to give the membership up, as soon as there is a reason; a watchdog that fails is one. `polling`: a poll
        is under way."""
        try:
            return await self._watch(polling)
        except Exception as exc:
            log.exception("the watchdog failed", topic=self._topic, group=self._group)
            return self._unavailable(f"the watchdog failed: {exc!r}")

    async def topic_id(self) -> str | None:
        with self._member.translated(f"ask for the id of {self._topic}"):
            return (await topic_ids(self._consumer._client, [self._topic])).get(self._topic)

    async def _watch(self, polling: Callable[[], bool]) -> IngestError:
        tick = min(TICK, self._times.look_every / 10)
        since_look = 0.0
        while True:
            await asyncio.sleep(tick)
            since_look += tick
            wrong = self.watchdog.tick(tick, polling=polling())
            if wrong is None and since_look >= self._times.look_every:
                since_look = 0.0
                try:
                    wrong = await self._look()
                except ConfigError as exc:
                    return exc
            if wrong is not None:
                return self._unavailable(wrong)

    def _unavailable(self, wrong: str) -> LogUnavailable:
        return LogUnavailable(f"Kafka: {self._topic}: {wrong}")

    async def _look(self) -> str | None:
        """Why to give this membership up, or None. Where only the topic is another one, we begin again in it. Raises
        ConfigError where a person must act."""
        intake = self._intake
        places, moved, intake.moved = intake.places, intake.moved, False
        emptying = intake.emptying
        try:
            topic_id = await self.topic_id()
            if topic_id is None:
                return "the broker that was asked knows no such topic"
            if not places:
                self.trouble, self._failing = None, 0.0
                return None
            stands = {partition: await self._position(partition) for partition in places}
            with self._member.translated(f"ask where {self._topic} ends"):
                ends = await self._consumer.end_offsets([self._member.at(p) for p in places])
        except LogUnavailable as exc:
            self.trouble = None if moved else str(exc)
            self._failing = 0.0 if moved else self._failing + self._times.look_every
            if not moved:
                await self._member.cluster.still_lets_us_in()
            return str(exc) if self._failing > self._times.unassigned else None
        self.trouble, self._failing = None, 0.0
        if intake.places is not places:
            return None
        intake.ends = {tp.partition: end for tp, end in ends.items()}
        if topic_id != intake.topic_id:
            log.warning("the topic was deleted and made anew while it was read", topic=self._topic, group=self._group)
            self._start_over()
            return None
        if jumps := [jump for partition, position in stands.items() for jump in intake.passed(partition, position)]:
            await intake.find_trimmed(jumps)
        if intake.places is not places:
            return None
        read = {partition: position for partition, position in stands.items() if partition not in intake.without}
        answered = {p: self._consumer.last_poll_timestamp(self._member.at(p)) for p in read}
        return self.watchdog.looked(Look(read, intake.ends, answered, emptying))

    async def _position(self, partition: int) -> int:
        """aiokafka's, which also passes what is no record. Raises LogUnavailable when there is none."""
        with self._member.translated(f"ask where we stand in {self._topic}/{partition}"):
            async with asyncio.timeout(POSITION_TIMEOUT):
                return int(await self._consumer.position(self._member.at(partition)))
