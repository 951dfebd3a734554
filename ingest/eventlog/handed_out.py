"""The batches that a subscription has given out and that are not committed yet.

Losing a batch only marks it: whoever writes it looks at `lost` before, and the store's compare-and-set stands behind.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ingest.eventlog import Batch


class HandedOut:
    """In the order in which they were given out."""

    def __init__(self) -> None:
        self._batches: dict[int, Batch] = {}  # by identity: comparing batches would compare their records
        self._changed = asyncio.Event()
        self._at_rest = False

    def add(self, batch: Batch) -> None:
        self._batches[id(batch)] = batch

    def done(self, batch: Batch) -> None:
        self._batches.pop(id(batch), None)
        self._changed.set()

    def lose(self) -> None:
        """Mark all of them lost, and end the wait of `drain`."""
        for batch in self._batches.values():
            batch.lost = True
        self._batches.clear()
        self._changed.set()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Meanwhile nothing of them is being written: `drain` need not wait."""
        self._at_rest = True
        self._changed.set()
        try:
            yield
        finally:
            self._at_rest = False

    async def drain(self, seconds: float) -> None:
        """Mark all of them lost, but give the oldest, which may be half written, `seconds` to be committed before."""
        for batch in list(self._batches.values())[1:]:  # read ahead: their writes have not begun
            batch.lost = True
            del self._batches[id(batch)]
        try:
            async with asyncio.timeout(seconds):
                while self._batches and not self._at_rest:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        self.lose()
