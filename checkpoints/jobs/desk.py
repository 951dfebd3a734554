"""The desk at which people look at jobs and decide about them. The workers' side is in the package itself.

Port and vocabulary. Nothing here waits for a worker: what is decided about a running job is a wish that its worker
reads with its next heartbeat. Times are seconds since 1970 by the database's clock, durations seconds.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from checkpoints.jobs import State

FOREVER = float("inf")
"""End of a pause that lasts until a person says otherwise."""
BATCH = 1_000  # rows that one transaction changes or deletes
PAUSE = 0.1  # seconds between two such transactions of a clean-up: others come first
TALLIES_KEPT = 86_400.0  # seconds
WORKERS_KEPT = 86_400.0  # seconds since the last sign of life


class SourceSummary(msgspec.Struct, frozen=True):
    """The live jobs of a source, and how its attempts ended in the last hour."""

    source: str
    ready: int  # pending, and due
    scheduled: int  # pending for the first time, and not due yet
    retrying: int  # as `scheduled`, after an attempt
    running: int
    expired: int  # of those running: the claim ended, and nobody has taken them back yet
    dead: int  # and no person has cancelled them
    oldest_ready_at: float | None
    next_at: float | None  # when the next one is due that is not yet
    done_1h: int
    failed_1h: int  # attempts
    seconds_1h: float  # that they all took together
    limit: int | None  # jobs at a time, a person's own before that of the configuration; None: any number
    paused_until: float | None  # in the future, or None
    pause_note: str | None


class Summary(msgspec.Struct, frozen=True):
    now: float
    sources: Sequence[SourceSummary]


class Filter(msgspec.Struct, frozen=True):
    """Which jobs; what is None or empty lets all through."""

    states: Sequence[State] = ()
    source: str | None = None
    kind: str | None = None
    error_class: str | None = None
    schedule: str | None = None
    ids: Sequence[int] | None = None


class Row(msgspec.Struct, frozen=True):
    """A job as it stands."""

    id: int
    kind: str
    source: str
    queue: str
    state: State
    priority: int
    run_at: float
    attempts: int
    max_attempts: int
    rescues: int
    releases: int
    fence: int
    worker: str | None
    claimed_at: float | None
    lease_until: float | None
    cancel_requested: bool
    progress: str | None  # JSON
    schedule: str | None
    tick_at: float | None
    dedupe_key: str | None
    last_error_class: str | None
    last_error: str | None
    dead_reason: str | None
    deaths: int
    note: str | None
    created_at: float
    finished_at: float | None


class Listed(NamedTuple):
    now: float
    rows: Sequence[Row]  # newest first


class Attempt(msgspec.Struct, frozen=True):
    fence: int
    attempt: int
    worker: str
    started_at: float
    ended_at: float | None
    outcome: str | None  # None: under way
    error_class: str | None
    error: str | None
    retry_at: float | None


class Shown(NamedTuple):
    now: float
    row: Row
    payload: str  # JSON
    attempts: Sequence[Attempt]  # oldest first


class Ruling(NamedTuple):
    """What became of a wish about one job, in words; `done` false: it is refused, and nothing was changed."""

    id: int
    done: bool
    said: str


class SourceRow(msgspec.Struct, frozen=True):
    name: str
    max_running: int | None  # by the configuration
    limited_to: int | None  # by a person
    pending: int
    running: int
    paused_until: float | None
    pause_note: str | None
    last_claim_at: float | None


class WorkerRow(msgspec.Struct, frozen=True):
    """`silent`: for so long it gave no sign of life."""

    name: str
    host: str
    pid: int
    version: str
    slots: int
    kinds: Sequence[str]  # empty: any
    sources: Sequence[str]  # empty: any
    running: int
    lost: int
    stopping: bool
    started_at: float
    silent: float


class Upkeep(NamedTuple):
    """What slows a queue down when it grows; None where the engine has no such thing."""

    wal_bytes: int | None  # SQLite
    oldest_snapshot: float | None  # Postgres: seconds since the oldest transaction began that keeps dead rows; 0: none


class Swept(NamedTuple):
    """Rows that are gone."""

    jobs: int
    ticks: int
    others: int  # tallies and workers of old


class JobDesk(Protocol):
    """Everything raises StoreUnavailable, and may be repeated."""

    async def summary(self) -> Summary:
        """One statement, whose cost does not grow with what is done."""

    async def list(self, chosen: Filter, limit: int) -> Listed:
        """The newest so many."""

    async def find(self, chosen: Filter) -> Sequence[int]:
        """The ids of all of them, in order: what to requeue or cancel."""

    async def show(self, id: int) -> Shown | None: ...

    async def requeue(self, ids: Sequence[int], by: str, *, spread: float = 0.0, dry: bool = False) -> Sequence[Ruling]:
        """Dead jobs begin anew, with all their attempts, at a time within the next `spread` seconds; fence and history
        go on. Refused where an equal job is live: the same dedupe key, or a schedule that lets no two overlap. `by`:
        who it was. `dry`: say what would become of them, and change nothing. At most BATCH ids."""

    async def cancel(self, ids: Sequence[int], by: str, *, dry: bool = False) -> Sequence[Ruling]:
        """What is pending is dead, as cancelled; what is running is asked to end; what is dead needs nobody any more
        and is cleaned away like what is done. At most BATCH ids."""

    async def run_now(self, ids: Sequence[int], by: str) -> Sequence[Ruling]:
        """What is pending is due now. At most BATCH ids."""

    async def sweep(self, keep_done: float, keep_ticks: float) -> Swept:
        """Delete at most BATCH rows of each: jobs that were done or cancelled longer ago than `keep_done`, ticks that
        were decided longer ago than `keep_ticks`, and what the summaries need no more. Dead jobs stay."""

    async def sources(self) -> Sequence[SourceRow]: ...

    async def pause(self, source: str, seconds: float, note: str) -> None:
        """Claim nothing of it for so long, or FOREVER, whatever was said before. What runs goes on."""

    async def resume(self, source: str) -> bool:
        """False: it was not paused."""

    async def limit(self, source: str, number: int | None) -> None:
        """So many at a time, instead of what the configuration says; None: as that says."""

    async def upkeep(self) -> Upkeep: ...

    async def workers(self) -> Sequence[WorkerRow]:
        """Those that have not left, the one that began last first."""


async def clean(desk: JobDesk, keep_done: float, keep_ticks: float) -> Swept:
    """Delete what is old, in small transactions, so that nobody waits. Any number of processes may do it at once."""
    total = Swept(0, 0, 0)
    while True:
        swept = await desk.sweep(keep_done, keep_ticks)
        total = Swept(*map(sum, zip(total, swept, strict=True)))
        if max(swept) < BATCH:
            return total
        await asyncio.sleep(PAUSE)
