"""Tries again while the log or the database is away: the page in hand is kept, and polling waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from checkpoints import StreamId
from ingest.errors import Transient
from ingest.report import Report
from ingest.retry import backoff

log = structlog.get_logger()
T = TypeVar("T")

TRIES = 20  # of publishing a page or saving a cursor; with the back-off below, some five minutes
RETRY_BASE = 0.2  # seconds
RETRY_CAP = 30.0  # seconds


class Patience:
    """Of one run of a stream, whose report says what it waits for."""

    def __init__(self, stream: StreamId, report: Report) -> None:
        self._stream, self._report = stream, report

    async def persist(self, what: str, act: Callable[[], Awaitable[T]]) -> T:
        """`act`, again and again. Raises what it raises, Transient only after TRIES."""
        attempt = 0
        while True:
            attempt += 1
            try:
                result = await act()
            except Transient as exc:
                self.blocked(what, str(exc))
                if attempt >= TRIES:
                    raise
                await asyncio.sleep(backoff(attempt, RETRY_BASE, RETRY_CAP))
            else:
                self._report.blocked_by(None)
                return result

    def blocked(self, what: str, why: str) -> None:
        log.warning(f"cannot {what} yet", stream=str(self._stream), error=why)
        self._report.blocked_by(why)
