"""The queue in numbers, for whoever looks at the metrics: of the whole database, whichever process is asked.

It is asked when somebody looks, once in FRESH seconds at most. While it does not answer there are no numbers: old ones
would say that all is well.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from checkpoints.jobs.desk import JobDesk, Summary, Upkeep
from ingest import metrics
from ingest.errors import IngestError

FRESH = 5.0  # seconds
PATIENCE = 3.0  # seconds that somebody who looks is kept waiting


@dataclass
class Gauges:
    desk: Callable[[], Awaitable[JobDesk]]
    _asked_at: float = float("-inf")  # time.monotonic()
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def refresh(self) -> None:
        async with self._asking:
            if time.monotonic() - self._asked_at < FRESH:
                return
            self._asked_at = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE):
                    desk = await self.desk()
                    summary, upkeep = await desk.summary(), await desk.upkeep()
            except (IngestError, TimeoutError):
                summary, upkeep = Summary(0.0, ()), Upkeep(None, None)
            show(summary, upkeep)


def show(summary: Summary, upkeep: Upkeep) -> None:
    metrics.jobs.clear()
    metrics.oldest_ready.clear()
    for one in summary.sources:
        for state in ("ready", "scheduled", "retrying", "running", "expired", "dead"):
            metrics.jobs.labels(one.source, state).set(getattr(one, state))
        waits = 0.0 if one.oldest_ready_at is None else summary.now - one.oldest_ready_at
        metrics.oldest_ready.labels(one.source).set(max(0.0, waits))
    if upkeep.wal_bytes is not None:
        metrics.sqlite_wal_bytes.set(upkeep.wal_bytes)
    if upkeep.oldest_snapshot is not None:
        metrics.oldest_xmin.set(upkeep.oldest_snapshot)
