"""What becomes of the ticks of a schedule that have come since it was last looked at. Pure.

The newest of them fire, as many and as old as the policy lets; all others are rows with a reason, ranges of them as
one. What fires stands for the time from the tick before it; where one tick stands for several, from the first of them.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Literal, NamedTuple

from checkpoints.jobs import (
    NEVER,
    Fire,
    Firing,
    NewJob,
    Overlap,
    Schedule,
    ScheduleSpec,
    Skip,
    TickOutcome,
)
from ingest.jobs.ticks import Timing, before, jittered, period

ON_TIME = 10.0  # seconds by which a tick may be late and was not missed: nobody looks all the time
WINDOW, WINDOW_PERIODS = 3600.0, 2  # catch_up_window where none is named: the longer of an hour and so many periods

CatchUp = Literal["latest", "all", "none"]


@dataclass(frozen=True)
class Policy:
    """`window`: seconds by which a tick may be late and still fire; None: as WINDOW says. `most`: how many that were
    missed fire under `all`. `jitter`: seconds by which what a tick starts is put off, at most."""

    catch_up: CatchUp = "latest"
    window: float | None = None
    most: int = 24
    jitter: float = 0.0
    overlap: Overlap = Overlap.SKIP


@dataclass(frozen=True)
class Plan:
    """A schedule as it is configured. `spec`: how that is written, for people. `at_once`: its first tick is not waited
    for when it is new."""

    id: str
    spec: str
    timing: Timing
    job: NewJob
    policy: Policy = Policy()
    at_once: bool = False

    @property
    def declared(self) -> ScheduleSpec:
        digest = blake2b(self.spec.encode(), digest_size=8).hexdigest()
        return ScheduleSpec(self.id, self.spec, digest, self.at_once)


class _Allowed(NamedTuple):
    """Of the ticks that have come, the newest so many that are not older than so many seconds may fire."""

    number: int
    age: float


def decide(plan: Plan, known: Schedule) -> Firing | None:
    """None: no tick has come, or the schedule is paused or was edited by somebody who knows another configuration."""
    skips: list[Skip]
    latest = plan.timing.until(known.now)
    if known.paused or known.digest != plan.declared.digest or latest is None or latest <= known.cursor_at:
        return None
    if known.cursor_at == NEVER and known.resumed_at is None:
        skips, fires = [], [_fire(plan, latest, before(plan.timing, latest))]
    else:
        cursor, paused = _paused(plan, known)
        missed, fires = _divided(plan, cursor, latest, known.now)
        skips = paused + missed
    if not fires and not skips:
        return None
    return Firing(
        id=known.id,
        digest=known.digest,
        cursor_at=known.cursor_at,
        cursor_to=latest,
        fires=fires,
        skips=skips,
        job=plan.job,
        overlap=plan.policy.overlap,
    )


def _paused(plan: Plan, known: Schedule) -> tuple[float, list[Skip]]:
    """Where to go on, behind the pause that has ended; and what fell into it."""
    cursor, resumed_at = known.cursor_at, known.resumed_at
    if resumed_at is None or resumed_at <= cursor:
        return cursor, []
    last, covers = plan.timing.until(resumed_at), plan.timing.count(cursor, resumed_at)
    if cursor == NEVER or last is None or not covers:
        return resumed_at, []
    return resumed_at, [Skip(last, TickOutcome.SKIPPED_PAUSED, covers, f"paused until {_when(resumed_at)}")]


def _divided(plan: Plan, cursor: float, latest: float, now: float) -> tuple[list[Skip], list[Fire]]:
    """The ticks in (cursor, latest]."""
    if latest <= cursor:
        return [], []
    timing, allowed = plan.timing, _allowed(plan, latest)
    ticks: list[float] = []
    tick: float | None = latest
    while tick is not None and tick > cursor and len(ticks) < allowed.number and now - tick <= allowed.age:
        ticks.insert(0, tick)
        tick = before(timing, tick)
    coalesced = plan.policy.catch_up == "latest" and bool(ticks)
    fires = [_fire(plan, one, timing.until(cursor) if coalesced else before(timing, one)) for one in ticks]
    if tick is None or tick <= cursor:
        return [], fires
    outcome = TickOutcome.COALESCED if coalesced else TickOutcome.SKIPPED_CATCHUP
    note = f"{_when(latest)} stands for it" if coalesced else _why(plan, tick, now, len(ticks), allowed)
    return [Skip(tick, outcome, timing.count(cursor, tick), note)], fires


def _allowed(plan: Plan, latest: float) -> _Allowed:
    policy = plan.policy
    if policy.catch_up == "none":
        return _Allowed(1, ON_TIME)
    window = policy.window
    if window is None:
        window = max(WINDOW, WINDOW_PERIODS * period(plan.timing, latest))
    return _Allowed(policy.most if policy.catch_up == "all" else 1, window)


def _why(plan: Plan, tick: float, now: float, fired: int, allowed: _Allowed) -> str:
    if plan.policy.catch_up == "none":
        return f"missed: nobody looked before {_when(now)}; catch_up: none"
    if fired == allowed.number:
        return f"missed: only the newest {fired} fire; max_catch_up"
    return f"missed: {now - tick:.0f} s late, {allowed.age:.0f} s are allowed; catch_up_window"


def _fire(plan: Plan, tick: float, since: float | None) -> Fire:
    return Fire(tick, since, jittered(plan.timing, plan.id, tick, plan.policy.jitter))


def _when(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
