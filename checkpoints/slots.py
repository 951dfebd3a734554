"""Who may ask a source when: deciding, apart from the databases that keep it. Times are theirs, in seconds since 1970.

Slots lie one interval apart and each is given to one holder, so whoever uses them, and however late within a limit of
its own, the source is never asked faster than all of them together may.
"""

import math
from typing import NamedTuple

from checkpoints import SHARED_FOR, Demand, Hold, Slots


class Taken(NamedTuple):
    """What is kept of a source: the next free slot, who took the last ones and when, when the holder changed last."""

    holder: str
    next_slot: float
    taken_at: float
    shared_at: float


NOTHING = Taken("", 0.0, 0.0, 0.0)


def take(was: Taken, now: float, holder: str, demand: Demand, hold: Hold | None) -> tuple[Taken, Slots]:
    """What to keep, and what `holder` gets."""
    changed = was.holder != holder and was.taken_at > now - SHARED_FOR
    shared_at = now if changed else was.shared_at
    shared = shared_at > now - SHARED_FOR
    set_back = max(0.0, was.taken_at - now)  # what was taken by another clock is as far ahead as it was then
    first = max(was.next_slot - set_back, now - demand.credit)
    number = demand.few if shared else max(1, math.ceil((now + demand.ahead - first) / demand.interval))
    kept = Taken(holder, first + number * demand.interval, now, shared_at)
    return kept, Slots(now, first, number, shared, hold)


def left(held_at: float, held_until: float, because: str, now: float) -> Hold | None:
    """What is left of a hold, by the clock that said so."""
    seconds = held_until - max(held_at, now)
    return Hold(seconds, because) if seconds > 0 else None
