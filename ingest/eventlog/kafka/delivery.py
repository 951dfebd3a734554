"""One page on its way to its topic: what became of its messages so far, and whether a refusal means one or all."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

from ingest.errors import ConfigError, IngestError, LogUnavailable
from ingest.eventlog import Published, Refused
from ingest.eventlog.kafka.batches import Page
from ingest.eventlog.kafka.cluster import Cluster
from ingest.eventlog.kafka.producer import INVALID_RECORD, Refusal
from ingest.eventlog.kafka.supervisor import Supervisor
from ingest.eventlog.kafka.unacked import Unacknowledged

ENOUGH = 20  # refused messages, and none accepted, after which it is the topic that refuses
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


@dataclass
class Delivery:
    """Shared by the lanes of the page. `limit`: reads the topic's max.message.bytes anew."""

    cluster: Cluster
    topic: str
    page: Page
    producers: Supervisor
    unacknowledged: Unacknowledged
    limit: Callable[[], Awaitable[int]]
    acknowledged: int = 0
    bytes: int = 0
    refused: list[Refused] = field(default_factory=list)
    heard_at: float = field(default_factory=time.monotonic)
    waits_for: str = ""  # why something was sent again
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def meaning(self, exc: BaseException) -> IngestError:
        return self.cluster.meaning(exc, f"publish to {self.topic}", may="Write", topic=self.topic)

    def published(self) -> Published:
        """Raises ConfigError where it is the topic that refuses, and not the record."""
        if self.refused and not self.acknowledged and not self._alone():
            raise self._refuses_everything()
        refused = tuple(sorted(self.refused))
        return Published(self.acknowledged, self.bytes, tuple(sorted(set(self.page.oversized))), refused)

    def waited_for(self) -> str:
        return f"; last: {self.waits_for}" if self.waits_for else ""

    def silent(self, seconds: float) -> bool:
        """Nothing was acknowledged for so long; said once in that time."""
        silent = time.monotonic() - self.heard_at >= seconds
        if silent:
            self.heard_at = time.monotonic()
        return silent

    def acknowledge(self, messages: int, size: int) -> None:
        self.heard_at = time.monotonic()
        self.acknowledged += messages
        self.bytes += size

    def refuse(self, index: int, refusal: Refusal) -> None:
        """The broker refused this message, alone in its batch."""
        if issubclass(refusal.error, TOO_LARGE):
            self.page.oversized.append(index)
            return
        self.refused.append(Refused(index, refusal.name, refusal.text))
        if len(self.refused) >= ENOUGH and not self.acknowledged:
            raise self._refuses_everything()

    async def smaller_than(self, limit: int) -> bool:
        """Whether the topic takes less now than `limit`; then the batches to come are built for that."""
        async with self._reading:
            if self.page.limit >= limit:
                with suppress(LogUnavailable):
                    self.page = self.page._replace(limit=await self.limit())
        return self.page.limit < limit

    def _alone(self) -> bool:
        """The only message of its page, which the broker finds invalid: nothing speaks against the topic."""
        return len(self.page.messages) == 1 and self.refused[0].code == INVALID_RECORD

    def _refuses_everything(self) -> ConfigError:
        first = min(self.refused)
        return ConfigError(
            f"Kafka: topic {self.topic} refuses every record: {first.code}: {first.reason}. Look at the topic's"
            " configuration and at the brokers' policies; the page waits, and nothing of it was set aside"
        )
