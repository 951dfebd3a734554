"""Until when a source asked to be left alone: what we were told, and what other processes were.

They tell each other by way of the state store. Where it is away each knows what it was told itself: that is a matter
for whoever has to save something there.
"""

import asyncio
import random
from collections.abc import Awaitable

import structlog

from checkpoints import Hold, Rates
from ingest.errors import StoreUnavailable
from ingest.sources.clock import Clock

log = structlog.get_logger()

LOOK_EVERY = 5.0  # seconds, while requests are made
PATIENCE = 2.0  # seconds for the state store to answer
PAUSE = 60.0  # seconds until one that did not is asked again
TELL_FROM = 1.0  # seconds: a shorter hold is over before others hear of it
SPREAD, SPREAD_UP_TO = 0.1, 1.0  # of another's hold; seconds: those who were not asked themselves come so much later


class Holds:
    """`until`: of the monotonic clock. `rates`: None where there are no others."""

    def __init__(self, source: str, rates: Rates | None, clock: Clock) -> None:
        self._source, self._rates, self._clock = source, rates, clock
        self._looked_at = float("-inf")
        self.until, self.because = float("-inf"), ""

    def due(self, now: float) -> bool:
        """It is time for another look."""
        return self._rates is not None and now - self._looked_at >= LOOK_EVERY

    async def look(self) -> None:
        assert self._rates is not None
        await self._reach(self._look(self._rates))

    async def _look(self, rates: Rates) -> None:
        self.heard(await rates.held(self._source))

    def heard(self, hold: Hold | None) -> None:
        """What the store has said just now."""
        self._looked_at = self._clock.monotonic()
        if hold is not None:
            spread = random.uniform(0, min(SPREAD * hold.seconds, SPREAD_UP_TO))
            self._put_off(Hold(hold.seconds + spread, hold.reason), SPREAD_UP_TO)

    async def told(self, hold: Hold) -> bool:
        """What an answer asked for; false where we knew of a hold that ends no sooner. Others hear of it."""
        moved = self._put_off(hold)
        if moved and self._rates is not None and hold.seconds >= TELL_FROM:
            await self._reach(self._rates.hold(self._source, hold))
        return moved

    def _put_off(self, hold: Hold, by: float = 0.0) -> bool:
        """`by`: seconds that matter; less than that is the same hold again."""
        until = self._clock.monotonic() + hold.seconds
        if until <= self.until + by:
            return False
        self.until, self.because = until, hold.reason
        return True

    async def _reach(self, call: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await call
        except (StoreUnavailable, TimeoutError) as exc:
            log.debug("other processes cannot be reached", source=self._source, error=str(exc))
            self._looked_at = self._clock.monotonic() + PAUSE - LOOK_EVERY
