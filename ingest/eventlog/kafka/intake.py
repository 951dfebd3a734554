"""Records that were taken from aiokafka and not handed out yet, and where that leaves every partition.

`getmany` is never cancelled: that would switch off the group's max.poll.interval for good. What it returns is booked
in the same step of the event loop, so that no seek and no revocation comes between.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError

from ingest.errors import LogUnavailable
from ingest.eventlog import UNKNOWN_TOPIC, Batch, Span
from ingest.eventlog.kafka.member import Member
from ingest.eventlog.kafka.records import KafkaRecord
from ingest.eventlog.place import Place, trimmed

log = structlog.get_logger()

PIECE = 500  # records unpacked at once, fewer where they are large
FIRST_PIECE = 10  # records at most, while nobody knows how large they are

Jump = tuple[int, int, int]
"""Partition, from, to: offsets that were passed without a record."""


class Intake:
    """`start_over`: called where the log turns out to be another one than we read."""

    def __init__(
        self, member: Member, start_over: Callable[[], None], *, records: int, bytes: int, wait: float
    ) -> None:
        self._member, self._consumer, self._topic = member, member.consumer, member.topic
        self._start_over = start_over
        self._records, self._bytes, self._wait = records, bytes, wait
        self.topic_id = UNKNOWN_TOPIC  # of the topic in which `places` are
        self.places: dict[int, Place] = {}  # of all owned partitions; empty until they are located, another one then
        self.taken: dict[int, list[KafkaRecord]] = {}  # partition → records not handed out yet
        self.ends: Mapping[int, int] = {}  # partition → offset, as somebody asked last
        self.without: frozenset[int] = frozenset()  # partitions that are not to be read now
        self.emptying = 0  # polls that took all that had arrived
        self.moved = False  # records came, since whoever looks set it to false
        self._typical = max(1, bytes // FIRST_PIECE)  # bytes of a record, as those that came last

    def begin(self, topic_id: str, places: dict[int, Place], ends: Mapping[int, int]) -> None:
        """Read on from there. `ends` of the partitions, for those that are not read."""
        self.topic_id, self.places, self.ends = topic_id, places, ends
        for partition, here in places.items():
            tp = self._member.at(partition)
            self._consumer.seek(tp, here.fetched)
            if partition in self.without:
                self._consumer.pause(tp)
            else:
                self._consumer.resume(tp)

    def drop(self) -> None:
        self.places = {}
        self.taken.clear()

    def lag(self) -> Mapping[int, int]:
        lag = {}
        for partition, here in self.places.items():
            known = self._consumer.highwater(self._member.at(partition))
            end = max(known or 0, self.ends.get(partition, 0))
            lag[partition] = len(self.taken.get(partition, ())) + max(0, end - here.fetched)
        return lag

    async def take(self) -> None:
        """What is there, up to the records and bytes of a batch. In pieces, so that the batch before is written
        meanwhile, and since nobody knows how large records are that are not unpacked yet."""
        records, room, wait = self._records, self._bytes, self._wait
        jumps: list[Jump] = []
        while records > 0 and room > 0:
            piece = max(1, min(records, PIECE, room // self._typical))
            found = await self._poll(wait, piece)
            if not found:
                self.emptying += 1
                break
            jumps += self._book(found)
            count, size = _extent(found)
            records, room, wait = records - count, room - size, 0.0
            self._typical = max(1, size // count)
            await asyncio.sleep(0)
        if records == self._records:
            jumps = await self._pass_markers()
        if jumps:
            await self.find_trimmed(jumps)

    def passed(self, partition: int, position: int) -> list[Jump]:
        """Every record before aiokafka's position is booked; what else lies there is none (transaction markers, what
        was compacted)."""
        here = self.places[partition]
        if position <= here.fetched:
            return []
        passed_from, here.fetched = here.fetched, position
        return [(partition, passed_from, position)]

    async def find_trimmed(self, jumps: Sequence[Jump]) -> None:
        """Offsets without a record are markers, were compacted away, or were trimmed while we read: lost."""
        places = self.places
        try:
            with self._member.translated(f"ask where {self._topic} begins"):
                first = await self._consumer.beginning_offsets([self._member.at(p) for p, _, _ in jumps])
        except LogUnavailable as exc:
            log.warning("cannot tell whether offsets were trimmed unread", topic=self._topic, error=str(exc))
            return
        for partition, passed_from, passed_to in jumps:
            begins = first[self._member.at(partition)]
            if self.places is places and begins > passed_from:
                places[partition].trimmed += trimmed(self._topic, partition, passed_from, min(begins, passed_to))

    def cut(self) -> Batch:
        """A batch of what was taken; what goes beyond its bytes stays for the next one. Offsets without a record are
        covered by a span too, so that a reader comes to the end."""
        records: list[KafkaRecord] = []
        spans: list[Span] = []
        for partition, here in self.places.items():
            if partition not in self.taken and partition not in self.without and here.fetched > here.handed:
                spans.append(self._span(partition, here.fetched))
        room = self._bytes
        for partition, found in list(self.taken.items()):
            if room <= 0:
                break
            count, size = _fitting(found, room)
            room -= size
            if count < len(found):
                self.taken[partition] = found[count:]
            else:
                del self.taken[partition]
            records += found[:count]
            spans.append(self._span(partition, found[count - 1].offset + 1))
        batch = Batch(records, tuple(spans))
        for partition, here in self.places.items():
            if partition not in self.without:  # that they were trimmed may be known later than what comes after them
                batch.trimmed, here.trimmed = batch.trimmed + here.trimmed, 0
        return batch

    async def _poll(self, wait: float, records: int) -> Mapping[TopicPartition, list[KafkaRecord]]:
        try:
            with self._member.translated(f"read {self._topic}"):
                found: Mapping[TopicPartition, list[KafkaRecord]] = await self._consumer.getmany(
                    timeout_ms=int(wait * 1000), max_records=records
                )
        except Exception:
            # aiokafka has moved past records of other partitions that it did not return
            for partition, here in self.places.items():
                self._consumer.seek(self._member.at(partition), here.fetched)
            raise
        return found

    def _book(self, found: Mapping[TopicPartition, list[KafkaRecord]]) -> list[Jump]:
        """Take the records over. Returns the offsets that were passed without a record."""
        jumps = []
        for tp, records in found.items():
            if tp.partition not in self.places:
                continue  # not located yet: the seek brings them again
            here = self.places[tp.partition]
            if records[0].offset < here.fetched:  # aiokafka starts over where an offset is beyond the end
                log.warning("the log ends before the offset we asked for", topic=self._topic, partition=tp.partition)
                self._start_over()
                return []
            if records[0].offset > here.fetched:
                jumps.append((tp.partition, here.fetched, records[0].offset))
            here.fetched = records[-1].offset + 1
            self.moved = True
            self.taken.setdefault(tp.partition, []).extend(records)
        return jumps

    async def _pass_markers(self) -> list[Jump]:
        """Nothing came: what lies before the positions holds no record."""
        jumps: list[Jump] = []
        for partition, here in list(self.places.items()):
            try:
                position = await self._consumer.position(self._member.at(partition))
            except IllegalStateError:  # taken away meanwhile
                return []
            if self.places.get(partition) is here:
                jumps += self.passed(partition, position)
        return jumps

    def _span(self, partition: int, end: int) -> Span:
        here = self.places[partition]
        start, here.handed = here.handed, end
        return Span(self._topic, partition, start, end, self.topic_id)


def _extent(found: Mapping[TopicPartition, list[KafkaRecord]]) -> tuple[int, int]:
    """How many records, and the bytes of their keys and values."""
    count = size = 0
    for records in found.values():
        count += len(records)
        size += sum([len(record.key or b"") + len(record.value or b"") for record in records])
    return count, size


def _fitting(records: Sequence[KafkaRecord], room: int) -> tuple[int, int]:
    """How many of the records to take, and their bytes: at least one, and the one that fills the room is the last."""
    size = 0
    for n, record in enumerate(records, 1):
        size += len(record.key or b"") + len(record.value or b"")
        if size >= room:
            return n, size
    return len(records), size
