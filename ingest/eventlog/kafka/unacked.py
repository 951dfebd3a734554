"""What is on its way to the brokers: bounded in bytes, and shown in metrics."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ingest import metrics
from ingest.errors import ConfigError, LogUnavailable

MAX_IN_FLIGHT = 64_000_000  # bytes in batches that are not acknowledged, over all pages
COMES_AGAIN = 600.0  # seconds after which a page that failed is no longer waited for: another process may have it


@dataclass
class _Waiting:
    """Of one topic: when the pages came that are under way, and the first that waits since a failure."""

    under_way: list[float] = field(default_factory=list)
    first: float = 0.0  # 0: none
    failed_at: float = 0.0

    def since(self) -> float:
        gone = not self.under_way and time.time() - self.failed_at > COMES_AGAIN
        return 0.0 if gone else self.first


class Unacknowledged:
    def __init__(self, limit: int = MAX_IN_FLIGHT) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Event()
        self._topics: dict[str, _Waiting] = {}

    async def take(self, topic: str, records: int, size: int) -> None:
        """Waits until so many bytes may be on their way; more than all of the limit is granted to one who is alone."""
        while self._used and self._used + size > self._limit:
            self._freed.clear()
            await self._freed.wait()
        self._used += size
        metrics.unacked_records.labels(topic).inc(records)
        metrics.unacked_bytes.labels(topic).inc(size)

    def give(self, topic: str, records: int, size: int) -> None:
        self._used -= size
        self._freed.set()
        metrics.unacked_records.labels(topic).dec(records)
        metrics.unacked_bytes.labels(topic).dec(size)

    @contextmanager
    def page(self, topic: str) -> Iterator[None]:
        """While it is published. When that fails it is waited for from its first try on: it will come again."""
        waiting = self._topics.get(topic)
        if waiting is None:
            waiting = self._topics[topic] = _Waiting()
            metrics.oldest_unacked.labels(topic).set_function(waiting.since)
        came = time.time()
        waiting.under_way.append(came)
        waiting.first = waiting.first or came
        failed = False
        try:
            yield
        except (LogUnavailable, ConfigError):
            failed = True
            raise
        finally:
            waiting.under_way.remove(came)
            if failed:
                waiting.failed_at = time.time()
            else:
                waiting.first = min(waiting.under_way, default=0.0)
