"""Durable jobs and the ticks that make them: what is to be done, by whom it is being done, and when the next is due.

Ports only. A job is a row: pending → running → done, or back to pending for another attempt, or dead, which waits for a
person. Whoever claims a job gets a fence, a number that grows with every claim of it, and names it in every write about
the job: what a worker writes that lost its lease is refused, and it is told so. All times are the database's clock, in
seconds since 1970; durations are seconds.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

JOB_TTL = 30.0  # seconds that a claim lasts without a heartbeat
MAX_RELEASES = 20  # claims given back without an attempt burned; after so many they count as attempts
ERROR_LIMIT, LAST_ERROR_LIMIT = 20_000, 4_000  # characters of an error kept per attempt, and in the job's row


class State(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


class Outcome(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    RETRY = "retry"
    DEAD = "dead"  # a permanent error, or the last attempt
    LOST = "lost"  # its worker gave no sign of life; said by who rescued it
    RELEASED = "released"  # its worker stops, or the job asked to come again: no attempt is burned
    CANCELLED = "cancelled"  # a person said so


class NewJob(msgspec.Struct, frozen=True):
    """A job to be. Its `source` is what caps, pauses and fairness go by: a source's name, or that of a task."""

    kind: str
    source: str
    payload: bytes = b"{}"  # JSON
    queue: str = "default"  # has a cap of its own where one is configured
    priority: int = 0  # smaller first
    run_at: float | None = None  # None: now
    max_attempts: int = 5
    dedupe_key: str | None = None  # one such job at a time is pending or running
    dedupe_for: float = 0.0  # and none for so long after one was done


class Enqueued(NamedTuple):
    id: int  # of the job, or of the equal one that is there already
    fresh: bool


class Job(msgspec.Struct, frozen=True):
    """A job as the worker has it that claimed it."""

    id: int
    fence: int
    kind: str
    source: str
    queue: str
    payload: bytes
    attempt: int  # 1 for the first
    max_attempts: int
    run_at: float
    claimed_at: float
    schedule: str | None = None
    tick_at: float | None = None  # the nominal time of its tick
    tick_from: float | None = None  # that of the tick before: the job stands for [tick_from, tick_at)


class Ended(msgspec.Struct, frozen=True):
    """What became of an attempt. `delay`: until the job may run again, for RETRY and RELEASED.

    RETRY on the last attempt is DEAD, and so is RELEASED after MAX_RELEASES of them on the last attempt."""

    id: int
    fence: int
    outcome: Outcome
    delay: float = 0.0
    error_class: str | None = None
    error: str | None = None  # redacted
    reason: str | None = None  # of DEAD: permanent; the database itself says exhausted, cancelled
    progress: bytes | None = None  # JSON


class Want(msgspec.Struct, frozen=True):
    """Which jobs a worker would take: at most `number`, of these kinds (empty: any) and sources (empty: any)."""

    number: int
    kinds: Sequence[str] = ()
    sources: Sequence[str] = ()
    ttl: float = JOB_TTL


class Exchanged(NamedTuple):
    lost: Sequence[int]  # ids of those that ended whose claim was no longer ours: nothing was written
    died: Sequence[int]  # ids of those that are dead now
    jobs: Sequence[Job]


class Held(NamedTuple):
    """A job that a worker is at."""

    id: int
    fence: int
    progress: bytes | None = None  # JSON; None: as before


class Beat(NamedTuple):
    """A heartbeat's answer for one job; one that has none is lost."""

    id: int
    cancel: bool  # a person asked for its end


class Worker(msgspec.Struct, frozen=True):
    """A process that takes jobs. `name`: host:pid:random, unique for ever."""

    name: str
    host: str
    pid: int
    version: str
    slots: int
    kinds: Sequence[str] = ()
    sources: Sequence[str] = ()


class Rescued(NamedTuple):
    id: int
    kind: str
    source: str
    worker: str  # that lost it
    dead: bool


class Cap(NamedTuple):
    """At most so many jobs run at a time, on all workers together. None: as many as there are slots."""

    name: str
    limit: int | None


class Jobs(Protocol):
    """The worker's side of the queue. Everything raises StoreUnavailable: then it may have happened or not, and may be
    repeated: fences, dedupe keys and the state of a row see to it that nothing happens twice."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
        """All of them in one transaction; who waits for jobs is woken."""

    async def exchange(self, worker: str, ended: Sequence[Ended], want: Want | None) -> Exchanged:
        """Write down what ended and claim what is wanted, in one transaction.

        What is claimed counts as an attempt at once. Caps of sources and queues are never exceeded, by any number of
        claimers. The source that waited longest is served first; within it the smallest priority, then the earliest
        run_at, but now and then (one claim in eight) the earliest alone, so that nothing starves."""

    async def beat(self, worker: Worker, held: Sequence[Held], ttl: float, *, stopping: bool = False) -> Sequence[Beat]:
        """Show that the worker lives, and push the end of the claims it still has to now + `ttl`.

        A claim that has expired is not revived."""

    async def leave(self, worker: str) -> None:
        """The worker has stopped. What it still held is rescued at once by the others."""

    async def rescue(self, grace: float) -> Sequence[Rescued]:
        """Give back what is claimed by workers without a sign of life, `grace` after the end of the claim: pending
        again after a growing delay, or dead where no attempt is left. Any number of workers may call it at once, and
        each lost claim is answered once. On SQLite a worker whose process has ended has lost its claims at once.

        While most claims expired together it is the fleet or the database that was away, and nothing dies."""

    async def limit(self, sources: Sequence[Cap], queues: Sequence[Cap]) -> None:
        """The caps that the configuration names; a person's own (`source limit`) stay above them."""

    async def hold(self, source: str, seconds: float, reason: str) -> None:
        """Claim nothing of this source for so long: its API asked for it, or fails again and again. The end of a pause
        is never brought forward by this."""

    async def due(self, want: Want) -> float | None:
        """Seconds until a job is due that `want` would take, 0.0 where one is; None where there is none at all.
        What waits behind a cap or a pause counts from when that may end."""

    async def wait(self, seconds: float) -> None:
        """Return early when a job may have become due; else after so long."""


class ScheduleSpec(NamedTuple):
    """A schedule as the configuration has it. `spec`: how it is written, for people (`0 6 * * * Europe/Berlin`)."""

    id: str
    spec: str
    digest: str  # of all that decides when it fires
    fires_at_once: bool = False  # when it is new: an interval begins now, a cron at its next time


NEVER = 0.0
"""The cursor of a new schedule that fires at once: its latest tick does, whenever that was."""


NOT_CONFIGURED = "not in the configuration"
"""The note of a schedule that is paused because it is not."""


class Schedule(msgspec.Struct, frozen=True):
    """As the database has it. `now`: its clock when it was read."""

    id: str
    spec: str
    digest: str
    cursor_at: float  # every tick up to here has been decided
    now: float
    paused: bool = False
    note: str | None = None  # why it is paused, or what a person wrote
    resumed_at: float | None = None  # ticks from cursor_at up to here fell into a pause and do not fire
    running: int | None = None  # the live job that a policy of no overlap would wait for


class Overlap(StrEnum):
    """What a tick does while a job of its schedule is pending or running; one that waits for a retry counts."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"


class TickOutcome(StrEnum):
    ENQUEUED = "enqueued"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED_CATCHUP = "skipped_catchup"
    SKIPPED_PAUSED = "skipped_paused"
    COALESCED = "coalesced"  # another tick of the same moment, or a later one, stands for it


class Skip(NamedTuple):
    """A tick, or a range of them that ends with it, that does not fire."""

    tick_at: float
    outcome: TickOutcome
    covers: int  # how many ticks
    note: str


class Fire(NamedTuple):
    tick_at: float
    tick_from: float | None
    run_at: float


class Firing(msgspec.Struct, frozen=True):
    """What is decided of a schedule for (cursor_at, cursor_to], at least one tick. It is refused as a whole when the
    schedule was edited or paused, or somebody else decided some of it, since it was read."""

    id: str
    digest: str  # of the spec that it was decided by
    cursor_at: float  # as it was read
    cursor_to: float
    fires: Sequence[Fire]
    skips: Sequence[Skip]
    job: NewJob
    overlap: Overlap


class Fired(NamedTuple):
    """What this call did; nothing where the firing was refused."""

    enqueued: Sequence[tuple[float, int]]  # tick and job
    skipped: int  # ticks


class Tick(NamedTuple):
    schedule: str
    tick_at: float
    outcome: TickOutcome
    covers: int
    job: int | None
    note: str | None
    decided_at: float
    decided_by: str


class Schedules(Protocol):
    """Any number of replicas decide ticks side by side. Whoever moves the cursor on decided, and the key of a tick lets
    nobody through a second time; its job comes to be in the same transaction. Every tick that does not fire has a row
    that says why. Raises StoreUnavailable: then it may have happened or not, and may be repeated."""

    async def declare(self, specs: Sequence[ScheduleSpec], prefix: str | None = "") -> Sequence[str]:
        """These are the schedules now. What is new or edited begins now: nothing of the past fires. One whose id begins
        with `prefix` (None: no id does) and that is not named is paused, as not in the configuration; one that comes
        back begins now, paused where a person had paused it. Returns the ids of new ones."""

    async def load(self, ids: Sequence[str]) -> Sequence[Schedule]:
        """Those of them that exist; none named: all."""

    async def fire(self, firing: Firing, decided_by: str) -> Fired:
        """Ticks, their jobs and the cursor in one transaction. Who comes second waits for the first: then nothing is
        left for it to do, or, where the first was rolled back, all of it."""

    async def trigger(self, id: str, job: NewJob, decided_by: str, overlap: Overlap) -> int | None:
        """A job now, tick or no tick, paused or not; None where the policy of overlap is against it."""

    async def pause(self, id: str, note: str | None) -> bool:
        """False: there is no such schedule."""

    async def resume(self, id: str, *, catch_up: bool) -> bool:
        """From now on: the ticks that were missed get a row as they are decided. `catch_up`: from where it was paused.
        False: there is no such schedule."""

    async def ticks(self, id: str, outcomes: Sequence[TickOutcome], limit: int) -> Sequence[Tick]:
        """Newest first."""
