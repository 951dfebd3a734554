"""Looks for ticks that have come, and fires them.

Any number of processes do so side by side, without a leader: the database lets one of them through. What time it is the
database says, too; our own clock only tells how long to wait. It goes on when the database is back, where it stood.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from checkpoints.jobs import NEVER, NOT_CONFIGURED, Fired, Firing, Schedule, Schedules, ScheduleSpec, TickOutcome
from ingest import metrics
from ingest.errors import IngestError, Transient
from ingest.jobs.firing import Plan, decide
from ingest.retry import backoff

log = structlog.get_logger()

LOOK_EVERY = 1.0  # seconds at most between two looks: what a person paused, edited or resumed is seen by then
SPREAD = 0.02  # seconds: replicas do not all come to the same tick at once
AGAIN_BASE, AGAIN_CAP = 0.5, 10.0  # seconds between looks while the database does not answer
OVERSLEPT = 5.0  # seconds: the machine was suspended, or has no time for us
CONTESTED = 60.0  # seconds that another process may have declared a schedule otherwise: it may be on its way out
SET_BACK = 60.0  # seconds by which the database's clock is behind a tick that was decided

MISSED = (TickOutcome.COALESCED, TickOutcome.SKIPPED_CATCHUP)


class _Looked(NamedTuple):
    """How a schedule was found, and until when there is nothing to do unless it changes, or the clock is set back."""

    cursor_at: float
    resumed_at: float | None
    now: float
    until: float


@dataclass
class Scheduler:
    """`owns`: what the ids of ours begin with; one in the database that does and is not among `plans` is no more. Plans
    of other ids may be others' too. `blocked` is told why nothing is scheduled at the moment, and None when it is
    again. `patience`: see CONTESTED."""

    schedules: Schedules
    plans: Sequence[Plan]
    owns: Sequence[str]
    name: str
    blocked: Callable[[str | None], None] = lambda _: None
    patience: float = CONTESTED
    _looked: dict[str, _Looked] = field(default_factory=dict)
    _contested: dict[str, float] = field(default_factory=dict)  # of a schedule, since when: time.monotonic()
    _warned: set[str] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        declared, failures = False, 0
        while not stop.is_set():
            try:
                if not declared:
                    await self.declare()
                    declared = True
                pause = await self.look()
            except IngestError as exc:
                failures += 1
                self.blocked(str(exc))
                level = log.warning if isinstance(exc, Transient) else log.error
                level("nothing is scheduled meanwhile", error=str(exc))
                pause = backoff(failures, AGAIN_BASE, AGAIN_CAP)
            else:
                failures = 0
                self.blocked(None)
            await _wait(stop, pause)

    async def declare(self) -> None:
        """What is configured; new schedules begin now."""
        specs = [plan.declared for plan in self.plans]
        parts: list[tuple[list[ScheduleSpec], str | None]] = [
            ([one for one in specs if one.id.startswith(prefix)], prefix) for prefix in self.owns
        ]
        parts.append(([one for one in specs if not one.id.startswith(tuple(self.owns))], None))
        for named, prefix in parts:
            new = await self.schedules.declare(named, prefix) if named or prefix is not None else ()
            if new:
                log.info("new schedules", schedules=", ".join(sorted(new)))

    async def look(self) -> float:
        """Fire what has come; seconds until to look again."""
        plans: Mapping[str, Plan] = {plan.id: plan for plan in self.plans}
        if not plans:
            return LOOK_EVERY
        known = [*await self.schedules.load(list(plans))]
        loaded_at = time.monotonic()
        random.shuffle(known)  # who looks at the same moment begins elsewhere
        now = max((schedule.now for schedule in known), default=0.0)
        for schedule in known:
            await self._decide(plans[schedule.id], schedule)
        if plans.keys() - {schedule.id for schedule in known} or self._ours_again(plans, known):
            await self.declare()
        pause = min((looked.until - now for looked in self._looked.values()), default=LOOK_EVERY)
        return min(LOOK_EVERY, max(0.0, pause - (time.monotonic() - loaded_at))) + random.uniform(0, SPREAD)

    async def _decide(self, plan: Plan, known: Schedule) -> None:
        before = self._looked.pop(known.id, None)
        if known.paused:
            return
        as_before = before is not None and before[:2] == (known.cursor_at, known.resumed_at)
        if before is not None and as_before and before.now <= known.now < before.until:
            self._looked[known.id] = before
            return
        self._look_at_the_clock(known)
        firing = decide(plan, known)
        if firing is not None:
            told(known, firing, await self.schedules.fire(firing, self.name))
        following = plan.timing.after(known.now)
        until = known.now + LOOK_EVERY if following is None else following
        cursor_at = known.cursor_at if firing is None else firing.cursor_to
        self._looked[known.id] = _Looked(cursor_at, known.resumed_at, known.now, until)

    def _ours_again(self, plans: Mapping[str, Plan], known: Sequence[Schedule]) -> bool:
        """Whether some have long been otherwise in the database than here. Of two processes with two files the one that
        began last is followed; but it may be gone since, and nobody would fire what it declared."""
        now = time.monotonic()
        otherwise = [one.id for one in known if not _as_declared(plans[one.id], one)]
        self._contested = {id: self._contested.get(id, now) for id in otherwise}
        long = [id for id, since in self._contested.items() if now - since >= self.patience]
        if long:
            log.warning("schedules were declared otherwise by another process; ours again", schedules=", ".join(long))
            self._contested.clear()
        return bool(long)

    def _look_at_the_clock(self, known: Schedule) -> None:
        ahead = known.cursor_at - known.now
        if ahead <= SET_BACK:
            self._warned.discard(known.id)
        elif known.id not in self._warned:
            self._warned.add(known.id)
            log.warning(
                "the database's clock was set back: nothing fires until it is where it was; resume it to begin now",
                schedule=known.id,
                seconds=round(ahead),
            )


def _as_declared(plan: Plan, known: Schedule) -> bool:
    return known.digest == plan.declared.digest and not (known.paused and known.note == NOT_CONFIGURED)


def told(known: Schedule, firing: Firing, fired: Fired) -> None:
    """What this process decided, in metrics and in the log."""
    if not fired.enqueued and not fired.skipped:
        return  # somebody else did
    done = {tick for tick, _ in fired.enqueued}
    counts = [(skip.outcome, skip.covers) for skip in firing.skips]
    counts += [(TickOutcome.ENQUEUED, len(done)), (TickOutcome.SKIPPED_OVERLAP, len(firing.fires) - len(done))]
    for outcome, number in counts:
        if number:
            metrics.ticks.labels(schedule=known.id, outcome=outcome.value).inc(number)
    for tick in done if known.cursor_at != NEVER else ():
        metrics.tick_lateness.labels(schedule=known.id).observe(max(0.0, known.now - tick))
    missed = sum(skip.covers for skip in firing.skips if skip.outcome in MISSED)
    if missed:
        log.warning("ticks were missed", schedule=known.id, missed=missed, caught_up=len(done))


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    begun = time.monotonic()
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        late = time.monotonic() - begun - seconds
        if late > OVERSLEPT:
            log.warning("the scheduler stood still: what it missed is caught up as configured", seconds=round(late))
