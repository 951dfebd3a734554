"""Every try of a request passes here: when it may leave, and what its answer means for those behind it.

One gate a source and process. Who comes waits in the order of coming, until the API counts as up (breaker), few enough
requests are under way and it does not throttle us (pace), it does not ask to be left alone (holds), and a slot of the
configured rate is ours (share); and says until when, and why. What one stream is told holds for all.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple

from checkpoints import Hold, Rates
from ingest import metrics
from ingest.config.model import Limits, Retry
from ingest.errors import StoreUnavailable
from ingest.retry import backoff
from ingest.sources import Notice, Watch
from ingest.sources.breaker import Breaker, State
from ingest.sources.clock import SYSTEM, Clock
from ingest.sources.holds import Holds
from ingest.sources.pace import Pace
from ingest.sources.quota import quotas
from ingest.sources.ratelimit import Slot, spacing
from ingest.sources.share import Alone, Share
from ingest.sources.waiter import Waiter

PATIENCE = 20  # tries to get slots from a store that is away; with the back-off below, some five minutes
BASE, CAP = 0.2, 30.0  # seconds


class Told(NamedTuple):
    """What an answer says of when we may ask again."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    wait: float | None  # seconds that it asks for
    wall: float  # seconds since 1970, by the API's clock


class Gate:
    """`source`: its name; "": what passes is no matter for metrics. `rates`: where others are who poll it too; None:
    there are none. `holder`: who we are there."""

    def __init__(
        self, source: str, limits: Limits, rates: Rates | None = None, holder: str = "", clock: Clock = SYSTEM
    ) -> None:
        self._source, self._clock = source, clock
        self._pace = Pace(limits.concurrency, limits.rate)
        self._breaker = Breaker()
        self._holds = Holds(source, rates, clock)
        self._share: Share | None = None
        if limits.rate is not None:
            self._share = Share(source, holder, rates or Alone(clock), spacing(limits.rate, limits.burst), clock)
        self._turnstile = asyncio.Lock()
        self._queue: dict[Waiter, None] = {}  # in the order of coming; the first is in the turnstile
        self._under_way = 0
        self._changed = asyncio.Event()  # somebody left
        self._owed = 0  # requests that left without a slot
        self._show()

    def turn(self, stream: str, watch: Watch, retry: Retry, what: Callable[[], str]) -> "Turn":
        """`async with` it around one try. `what`: the request, for messages.

        Raises SourceUnavailable while the API counts as down, RateLimited when it asked for a longer wait than
        `max_wait`, StoreUnavailable when no slots are to be had."""
        return Turn(self, Waiter(stream, watch, retry, what, self._clock))

    def owe(self, requests: int) -> None:
        """So many went out besides, such as to follow redirects; those that come wait for them."""
        self._owed += requests

    def used_up(self, began: float, asked: float) -> float | None:
        """A request that began then gives up. Seconds after which the API is asked again, where it counts as down."""
        now = self._clock.monotonic()
        self._breaker.used_up(began, now, asked)
        self._show()
        return self._breaker.until - now if self._breaker.state is State.OPEN else None

    async def enter(self, waiter: Waiter) -> None:
        self._breaker.streams.add(waiter.stream)
        self._queue[waiter] = None
        try:
            if self._turnstile.locked():
                waiter.say_held(self._holds)
            async with self._turnstile:
                await self._wait_for_the_api(waiter)
                try:
                    await self._wait_for_room(waiter)
                    waiter.departed_at = await self._wait_for_the_moment(waiter)
                except BaseException:
                    self._return_probe(waiter)
                    raise
                self._under_way += 1
                self._pace.departed(waiter.departed_at)
        finally:
            del self._queue[waiter]

    def leave(self, waiter: Waiter) -> None:
        self._under_way -= 1
        self._return_probe(waiter)
        self._changed.set()

    def _return_probe(self, waiter: Waiter) -> None:
        """It ended without having learnt anything."""
        if waiter.probe and self._breaker.state is State.HALF_OPEN:
            self._breaker.abandoned(self._clock.monotonic())
            self._show()
            self._changed.set()

    async def _wait_for_the_api(self, waiter: Waiter) -> None:
        while not self._breaker.may_go(self._clock.monotonic()):
            if self._breaker.state is State.OPEN:
                raise waiter.down(self._breaker, self._source)
            self._changed.clear()
            await self._changed.wait()  # for the probe
        if self._breaker.state is State.HALF_OPEN:
            waiter.probe = True
            self._show()

    async def _wait_for_room(self, waiter: Waiter) -> None:
        while self._under_way >= self._pace.width:
            self._changed.clear()
            await self._changed.wait()
            self._ensure_up(waiter)

    async def _wait_for_the_moment(self, waiter: Waiter) -> float:
        """When it was: now, of the monotonic clock."""
        slot: Slot | None = None
        while True:
            now = self._clock.monotonic()
            if self._holds.until > now:
                waiter.bear(self._holds)
                await self._sleep(waiter, self._holds.until - now)
            elif self._share is not None and (slot is None or now > slot.until):
                slot = await self._slot(waiter, self._share)
            elif self._holds.due(now):
                await self._holds.look()
            else:
                until = self._pace.next(now) if slot is None else max(self._pace.next(now), slot.at)
                if until <= now:
                    return now
                waiter.say(until - now, "`limits.rate`" if slot and slot.at == until else "so as not to be throttled")
                await self._sleep(waiter, until - now)

    async def _sleep(self, waiter: Waiter, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._ensure_up(waiter)

    def _ensure_up(self, waiter: Waiter) -> None:
        if self._breaker.state is State.OPEN and not waiter.probe:
            raise waiter.down(self._breaker, self._source)

    async def _slot(self, waiter: Waiter, share: Share) -> Slot:
        """The next slot of ours, behind those that are owed."""
        tries = 0
        while True:
            while (slot := share.at_hand(self._clock.monotonic())) is not None:
                if not self._owed:
                    return slot
                self._owed -= 1
            try:
                self._holds.heard(await share.take())
                tries = 0
            except StoreUnavailable as exc:
                tries += 1
                if tries >= PATIENCE:
                    raise
                delay = backoff(tries, BASE, CAP)
                waiter.say(delay, f"`limits.rate` is shared by way of the state store, which does not answer: {exc}")
                await self._sleep(waiter, delay)

    async def answered(self, waiter: Waiter, told: Told) -> None:
        now = self._clock.monotonic()
        before = self._breaker.state
        if told.status < 500:
            self._breaker.answered(now)
        else:
            self._breaker.failed(waiter.stream, now, unreachable=False, probe=waiter.probe)
        self._pace.told(quotas(told.headers, told.wall), self._under_way - 1, now)
        changed = self._breaker.state is not before
        if told.status == 429 or (told.status == 503 and told.wait is not None):
            if self._pace.throttled(waiter.departed_at, now):
                changed = True
                if self._source:
                    metrics.slowdowns.labels(self._source).inc()
                waiter.watch.noticed(Notice("slowed_down", self._slowed(told.status)))
        elif told.status < 500:
            changed = self._pace.answered(now) or changed
        if changed:
            self._show()
        if told.wait:
            seconds = min(told.wait, waiter.patience)
            if await self._holds.told(Hold(seconds, f"{waiter.stream} was answered {told.status}")):
                for other in self._queue:
                    other.say_held(self._holds)

    def failed(self, waiter: Waiter, *, unreachable: bool) -> None:
        self._breaker.failed(waiter.stream, self._clock.monotonic(), unreachable=unreachable, probe=waiter.probe)
        if waiter.probe:
            self._show()

    def _slowed(self, status: int) -> str:
        rate = "" if self._pace.rate is None else f", {self._pace.rate:.3g} a second"
        return (
            f"the API throttles us ({status}): at most {self._pace.width} requests are under way now{rate};"
            " as many as configured again after a while"
        )

    def _show(self) -> None:
        if not self._source:
            return
        metrics.breaker_state.labels(self._source).set(self._breaker.state)
        metrics.concurrency.labels(self._source).set(self._pace.width)
        metrics.rate.labels(self._source).set(float("inf") if self._pace.rate is None else self._pace.rate)


class Turn:
    """One try: waits on entering, and makes room on leaving."""

    __slots__ = ("_gate", "_waiter")

    def __init__(self, gate: Gate, waiter: Waiter) -> None:
        self._gate, self._waiter = gate, waiter

    async def __aenter__(self) -> "Turn":
        await self._gate.enter(self._waiter)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave(self._waiter)

    @property
    def departed_at(self) -> float:
        """When it was let through, of the monotonic clock."""
        return self._waiter.departed_at

    async def answered(self, told: Told) -> None:
        await self._gate.answered(self._waiter, told)

    def failed(self, *, unreachable: bool) -> None:
        """No answer; `unreachable`: not even a connection."""
        self._gate.failed(self._waiter, unreachable=unreachable)
