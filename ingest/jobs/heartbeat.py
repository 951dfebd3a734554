"""Shows that the worker lives and keeps its claims, from a thread with an event loop and a connection of its own.

So a handler that holds up the loop of the others loses no claim. A claim that cannot be kept is let go before others
may take the job, by our own clock, counted from before each heartbeat was sent: whether the database is silent or the
whole process was frozen.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType

import structlog

from checkpoints.jobs import Beat, Held, Jobs, Worker
from ingest.errors import ConfigError, StoreUnavailable
from ingest.jobs.hand import Hand, fence_after

log = structlog.get_logger()

JITTER = 0.1  # of the time until the next heartbeat is sent
RETRY_EVERY = 1.0  # seconds between tries while the database does not answer
JOIN = 5.0  # seconds at most that a heartbeat under way may hold up the end of the process

Connect = Callable[[], AbstractAsyncContextManager[Jobs]]
"""Opens a connection of the thread's own; called in it, again after a failure."""


class Heartbeat:
    """Every `every` seconds, while its context lasts. `lost` and `cancel` are called in the loop that entered it, once
    for each hand."""

    def __init__(
        self,
        worker: Worker,
        connect: Connect,
        ttl: float,
        every: float,
        lost: Callable[[Hand], None],
        cancel: Callable[[Hand], None],
    ) -> None:
        self._worker, self._connect, self._ttl, self._every = worker, connect, ttl, min(every, ttl / 3)
        self._on_lost, self._on_cancel = lost, cancel
        self._hands: dict[int, Hand] = {}  # by the job's id; guarded by _lock
        self._lock = threading.Lock()
        self._stopping = False
        self._failure = ""  # of the last heartbeat
        self._ends = False
        self._inner: asyncio.AbstractEventLoop | None = None  # of the thread, while it runs

    async def __aenter__(self) -> "Heartbeat":
        self._outer = asyncio.get_running_loop()
        self._broken: asyncio.Future[None] = self._outer.create_future()
        self._wake = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends = True
        self._rouse()
        await asyncio.to_thread(self._thread.join, JOIN)
        self._broken.cancel()

    async def guard(self) -> None:
        """Until cancelled. Raises what ended the thread before its time: nobody keeps the claims then."""
        await self._broken

    def keep(self, hands: Collection[Hand]) -> None:
        with self._lock:
            self._hands.update((hand.job.id, hand) for hand in hands)

    def drop(self, hands: Collection[Hand]) -> None:
        """What became of them is written down."""
        with self._lock:
            for hand in hands:
                if self._hands.get(hand.job.id) is hand:
                    del self._hands[hand.job.id]

    def stopping(self) -> None:
        """From here on every heartbeat says so, the first one at once."""
        self._stopping = True
        self._rouse()

    def _rouse(self) -> None:
        inner = self._inner
        if inner is not None:
            with suppress(RuntimeError):  # it has just closed
                inner.call_soon_threadsafe(self._wake.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._beat_until_the_end())
        except BaseException as exc:
            raised = exc
            with suppress(RuntimeError):
                self._outer.call_soon_threadsafe(self._break, raised)
        finally:
            self._inner = None

    def _break(self, exc: BaseException) -> None:
        if not self._broken.done():
            self._broken.set_exception(exc)

    async def _beat_until_the_end(self) -> None:
        self._inner = asyncio.get_running_loop()
        while not self._ends:
            try:
                async with self._connect() as jobs:
                    await self._beat_over(jobs)
            except (StoreUnavailable, ConfigError) as exc:  # no connection
                self._failed(exc)
                await self._pause(self._patience())

    async def _beat_over(self, jobs: Jobs) -> None:
        while not self._ends:
            self._let_go()
            stopping, sent = self._stopping, time.monotonic()
            hands = self._all()
            held = {hand: hand.held() for hand in hands}
            try:
                async with asyncio.timeout(self._ttl / 3):
                    beats = await jobs.beat(self._worker, list(held.values()), self._ttl, stopping=stopping)
            except (StoreUnavailable, ConfigError, TimeoutError) as exc:
                # A person may have to act, and whoever writes says so; the claims last as long as they do.
                self._failed(exc)
                pause = self._patience()
            else:
                self._failure = ""
                self._answered(held, {beat.id: beat for beat in beats}, sent)
                pause = self._every * random.uniform(1 - JITTER, 1 + JITTER)
            if stopping == self._stopping:
                await self._pause(pause)

    def _answered(self, held: dict[Hand, Held], beats: dict[int, Beat], sent: float) -> None:
        for hand, said in held.items():
            beat = beats.get(hand.job.id)
            if beat is None:
                self._lose(hand, "the database gave it to someone else, or it has expired")
                continue
            hand.told(said)
            hand.fenced_at = sent + fence_after(self._ttl)
            if beat.cancel and not hand.cancel:
                hand.cancel = True
                self._tell(self._on_cancel, hand)

    def _let_go(self) -> None:
        now = time.monotonic()
        why = f": {self._failure}" if self._failure else ""
        for hand in self._all():
            if now >= hand.fenced_at:
                self._lose(hand, f"it could not be renewed in time{why}")
            elif hand.overdue_at is not None and now >= hand.overdue_at and not hand.over:
                self._lose(hand, "its handler outlived its timeout and holds up the event loop")

    def _lose(self, hand: Hand, why: str) -> None:
        """What has ended already is not told: the answer to its result says what became of it."""
        with self._lock:
            if self._hands.get(hand.job.id) is not hand:
                return
            del self._hands[hand.job.id]
        if not hand.over:
            hand.lost = why
            self._tell(self._on_lost, hand)

    def _tell(self, whom: Callable[[Hand], None], hand: Hand) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._outer.call_soon_threadsafe(whom, hand)

    def _all(self) -> list[Hand]:
        with self._lock:
            return list(self._hands.values())

    def _failed(self, exc: BaseException) -> None:
        failure = str(exc) or "no answer in time"
        if not self._failure:
            log.warning("no heartbeat", worker=self._worker.name, error=failure)
        self._failure = failure

    def _patience(self) -> float:
        return min(RETRY_EVERY, self._ttl / 10) * random.uniform(1 - JITTER, 1 + JITTER)

    async def _pause(self, seconds: float) -> None:
        """Until the next heartbeat, woken where something changed; claims that end meanwhile are let go."""
        until = time.monotonic() + seconds
        while not self._ends and (left := until - time.monotonic()) > 0:
            ends = min((hand.fenced_at for hand in self._all()), default=until)
            try:
                await asyncio.wait_for(self._wake.wait(), max(0.0, min(left, ends - time.monotonic())))
            except TimeoutError:
                self._let_go()
            else:
                self._wake.clear()
                return
