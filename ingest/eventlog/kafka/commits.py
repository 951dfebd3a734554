"""Tells a Kafka group how far it is, for lag tools; the truth is what the store keeps.

One commit at a time, and never back: aiokafka goes on with a commit that we no longer wait for, and what it brings to
its end late would take back a later one.
"""

import asyncio
from collections.abc import Mapping, Sequence

import structlog
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from ingest.eventlog import Span
from ingest.eventlog.kafka.member import Member

log = structlog.get_logger()

COMMIT_TIMEOUT = 10.0  # seconds


class Commits:
    def __init__(self, member: Member) -> None:
        self._member = member
        self._committed: dict[int, int] = {}  # partition → offset, since `begin_again`
        self._committing: asyncio.Task[None] | None = None

    def begin_again(self) -> None:
        """The partitions are others, or the topic is."""
        self._committed.clear()

    async def move(self, spans: Sequence[Span]) -> None:
        """To the ends of the spans that are ahead. Never raises for the log: what fails is said, and comes later."""
        ends = {span.partition: span.end for span in spans if span.end > self._committed.get(span.partition, -1)}
        if ends:
            await self._commit(ends)

    async def close(self) -> None:
        """An open commit is given up; it may wait for an assignment that never comes."""
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.gather(self._committing, return_exceptions=True)

    async def _commit(self, ends: Mapping[int, int]) -> None:
        topic = self._member.topic
        if self._committing is not None and not self._committing.done():
            await asyncio.wait({self._committing}, timeout=COMMIT_TIMEOUT)
            if not self._committing.done():
                log.warning("offsets not committed yet: an earlier commit is under way", topic=topic)
                return
        offsets = {self._member.at(partition): end for partition, end in ends.items()}
        self._committing = asyncio.create_task(self._member.consumer.commit(offsets))
        self._committing.add_done_callback(_looked_at)
        try:
            await asyncio.wait_for(asyncio.shield(self._committing), COMMIT_TIMEOUT)
        except (CommitFailedError, IllegalStateError) as exc:
            log.debug("offsets not committed: the partitions are no longer ours", topic=topic, error=repr(exc))
        except (KafkaError, OSError) as exc:
            log.warning("offsets not committed: lag will look too large", topic=topic, error=repr(exc))
        else:
            self._committed.update(ends)


def _looked_at(commit: "asyncio.Task[None]") -> None:
    if not commit.cancelled():
        commit.exception()
