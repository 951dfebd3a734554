"""Answers that two listings of one stream ask for: its own run, and those that list it for its children.

An answer is kept for the others that run in this process, and one that is under way is waited for; nobody is given the
same twice. It counts as if it had been asked for by whoever takes it, at the time at which it was: so whoever concludes
deletes takes none that is older than its own listing.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

ROOM = 8_000_000  # bytes of answers that are kept


class _Kept(NamedTuple, Generic[T]):
    asked: float  # monotonic
    answer: "asyncio.Future[T]"
    taken: set["Reader[T]"]


class Shelf(Generic[T]):
    """Of one stream. `size`: bytes of an answer."""

    def __init__(self, size: Callable[[T], int], room: int = ROOM) -> None:
        self._size, self._room = size, room
        self._kept: OrderedDict[bytes, _Kept[T]] = OrderedDict()
        self.readers = 0

    def find(self, mark: bytes, reader: "Reader[T]", since: float) -> "asyncio.Future[T] | None":
        kept = self._kept.get(mark)
        if kept is None or kept.asked < since or reader in kept.taken:
            return None
        kept.taken.add(reader)
        return kept.answer

    async def fetch(self, mark: bytes, reader: "Reader[T]", ask: Callable[[], Awaitable[T]]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        mine = self._kept[mark] = _Kept(time.monotonic(), answer, {reader})
        self._kept.move_to_end(mark)
        try:
            answer.set_result(await ask())
        finally:
            if not answer.done():  # whoever waits asks for itself
                answer.cancel()
                if self._kept.get(mark) is mine:
                    del self._kept[mark]
        self._tidy()
        return answer.result()

    def _tidy(self) -> None:
        done = [(mark, one.answer.result()) for mark, one in self._kept.items() if one.answer.done()]
        over = sum(self._size(answer) for _, answer in done) - self._room
        for mark, answer in done:
            if over <= 0:
                return
            over -= self._size(answer)
            del self._kept[mark]


class Reader(Generic[T]):
    """One listing of the stream. `slack`: seconds before its start of which an answer may be."""

    def __init__(self, shelf: Shelf[T], slack: float) -> None:
        self._shelf, self._slack = shelf, slack
        self._since = 0.0
        shelf.readers += 1

    def begin(self) -> None:
        """A listing begins, or goes on in another run."""
        self._since = time.monotonic() - self._slack

    async def get(self, mark: bytes, ask: Callable[[], Awaitable[T]]) -> T:
        """What another reader got for the request with this mark, else what `ask` gives."""
        if self._shelf.readers == 1:
            return await ask()
        found = self._shelf.find(mark, self, self._since)
        if found is not None:
            try:
                return await asyncio.shield(found)
            except asyncio.CancelledError:
                if not found.cancelled():
                    raise  # it is we who are
        return await self._shelf.fetch(mark, self, ask)
