"""A job in the hands of this process: what the loop that works it off and the thread that keeps its claim tell another.

Both look at it without a lock: each field has one writer, and is a value that is replaced as a whole.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from checkpoints.jobs import Held, Job

MARGIN = 2.0  # seconds before the end of a claim at which it counts as lost; a tenth of it where that is more
PROGRESS_LIMIT = 10_000  # bytes


def fence_after(ttl: float) -> float:
    """Seconds from before a claim was asked for until its holder lets go of it, by its own clock."""
    return ttl - min(max(MARGIN, ttl / 10), ttl / 3)


class Hand:
    """`asked_at`: `time.monotonic()` from before the job was claimed for `ttl` seconds. `timeout`: seconds that the
    handler may take."""

    def __init__(
        self, job: Job, asked_at: float, ttl: float, timeout: float | None, scrub: Callable[[Any], Any]
    ) -> None:
        self.job = job
        self.began = time.monotonic()
        self.stop = asyncio.Event()  # the handler should come to an end
        self.task: asyncio.Task[None] | None = None
        self.over = False  # the handler has ended; written by the loop
        self.unsure = False  # the database did not answer when its result was written; written by the loop
        self.cancel = False  # a person asked for the end; written by the thread
        self.lost: str | None = None  # why the claim is not ours any more; written by the thread
        self.fenced_at = asked_at + fence_after(ttl)  # time.monotonic(); written by the thread
        self.overdue_at = None if timeout is None else self.began + timeout + ttl
        """A handler that blocks the loop is not ended by its timeout: from here on its claim is not renewed."""
        self._scrub = scrub
        self._progress: bytes | None = None
        self._told: bytes | None = None  # to the database

    def progress(self, value: object) -> None:
        encoded = msgspec.json.encode(self._scrub(value))
        if len(encoded) > PROGRESS_LIMIT:
            raise ValueError(f"progress of {len(encoded):,} bytes; at most {PROGRESS_LIMIT:,}")
        self._progress = encoded

    def refused(self) -> str:
        """Why the database does not take its result."""
        if self.unsure:
            return "it may be written or not: the database did not answer the first time"
        return self.lost or "its claim was over when it ended"

    @property
    def shown(self) -> bytes | None:
        """The progress that was said last."""
        return self._progress

    def held(self) -> Held:
        """As the next heartbeat names it: with its progress, where that is new."""
        progress = self._progress
        return Held(self.job.id, self.job.fence, None if progress is self._told else progress)

    def told(self, held: Held) -> None:
        """The database knows."""
        if held.progress is not None:
            self._told = held.progress
