"""Our share of a source's rate: slots taken from the state store, many at once, so that few requests ask for any.

Who has the source for itself takes what half a second holds; who shares it takes about as many as it uses, and at most
what a tenth of a second holds, so that all have their turns. A process that dies wastes what it had taken, and no more.
While the store does not answer, what was taken is used up, and then nothing leaves.
"""

import asyncio

from checkpoints import Demand, Hold, Rates, Slots
from checkpoints.slots import NOTHING, take
from ingest.errors import StoreUnavailable
from ingest.sources.clock import Clock
from ingest.sources.offset import Offset
from ingest.sources.ratelimit import AHEAD, Block, Slot, Spacing

LOOKS = 3  # at the store's clock, where it is not known well enough
NARROWEST = 0.002  # seconds for which a slot may be used, however little is known: a timer is no more exact
MORE = 4  # times as many slots are taken as before, where all were used
PATIENCE = 10.0  # seconds until a store that is silent counts as away


class Share:
    """For one caller at a time. `hold` is what another process was asked for last, as of the last `next`."""

    def __init__(self, source: str, holder: str, rates: Rates, spacing: Spacing, clock: Clock) -> None:
        self._source, self._holder, self._rates, self._spacing, self._clock = source, holder, rates, spacing, clock
        self._block = Block(0.0, 0, spacing.interval, spacing.window)
        self._offset = Offset()

    def at_hand(self, now: float) -> Slot | None:
        """A slot that is taken already."""
        return self._block.next(now)

    async def take(self) -> Hold | None:
        """Take more of them; the hold that the store knows of. Raises StoreUnavailable."""
        used = self._block.used * MORE if self._block.used_up else self._block.used
        few = max(1, min(self._spacing.few, used))
        demand = Demand(self._spacing.interval, self._spacing.credit, AHEAD, few)
        try:
            async with asyncio.timeout(PATIENCE):
                asked_at = self._clock.monotonic()
                slots = await self._rates.take(self._source, self._holder, demand)
                self._offset.seen(asked_at, slots.now, self._clock.monotonic())
                for _ in range(LOOKS):
                    if self._offset.uncertainty < self._spacing.window / 2:
                        break
                    asked_at = self._clock.monotonic()
                    self._offset.seen(asked_at, await self._rates.clock(), self._clock.monotonic())
        except TimeoutError as exc:
            raise StoreUnavailable(f"no answer within {PATIENCE:g} s") from exc
        window = max(self._spacing.window - self._offset.uncertainty, min(self._spacing.window / 2, NARROWEST))
        self._block = Block(self._offset.ours(slots.first), slots.number, self._spacing.interval, window)
        return slots.hold


class Alone:
    """The port's answers for a process that shares with nobody, such as a preview."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._taken = clock, NOTHING

    async def take(self, source: str, holder: str, demand: Demand) -> Slots:
        self._taken, slots = take(self._taken, self._clock.wall(), holder, demand, None)
        return slots

    async def clock(self) -> float:
        return self._clock.wall()

    async def hold(self, source: str, hold: Hold) -> None:
        return None

    async def held(self, source: str) -> Hold | None:
        return None
