"""claim → run → finish: takes as many jobs as it has free slots, and writes down how they ended.

One round trip writes what has ended and claims what there is room for, so that a busy worker spends one transaction on
many jobs; nothing is claimed before it can start. While the database is away what runs runs on, for as long as its
claim lasts, and its results are kept until they can be written.

It stops in this order: claim nothing more → let what runs end, for a while → write what ended → give the rest back,
without an attempt burned → say that it has left.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from checkpoints.jobs import JOB_TTL, Ended, Exchanged, Job, Jobs, Want
from checkpoints.jobs import Worker as Identity
from ingest import metrics
from ingest.errors import ConfigError, StoreUnavailable
from ingest.jobs.hand import Hand
from ingest.jobs.handler import Again, Handler
from ingest.jobs.heartbeat import Connect, Heartbeat
from ingest.jobs.outcomes import Cancelled, TimedOut, ended, text_of
from ingest.jobs.rescue import RESCUE_EVERY, RESCUE_GRACE, rescue_forever
from ingest.jobs.tally import Tally
from ingest.jobs.waiting import first
from ingest.redaction import Redactor
from ingest.retry import backoff

log = structlog.get_logger()

BEAT_EVERY = JOB_TTL / 3  # seconds
POLL = 2.0  # seconds at most between two looks for jobs; ± JITTER
JITTER = 0.1
CONTENTION = 0.05  # seconds until another look, where a job is due that others kept us from
OUTAGE_BASE, OUTAGE_CAP = 0.2, 5.0  # seconds between tries while the database does not answer
STOP_GRACE = 18.0  # seconds that handlers have to end when the worker stops; less than the process has
CANCEL_GRACE = 10.0  # seconds that a handler has to end when a person cancelled its job
CANCELLED_WITHIN = 2.0  # seconds that a handler may take to notice that it is cancelled
FLUSH_PATIENCE = 3.0  # seconds that results wait for a database that does not answer, when the worker stops


class Times(NamedTuple):
    """In seconds."""

    ttl: float = JOB_TTL  # of a claim without a heartbeat
    beat: float = BEAT_EVERY
    poll: float = POLL
    stop_grace: float = STOP_GRACE
    cancel_grace: float = CANCEL_GRACE
    rescue_every: float = RESCUE_EVERY
    rescue_grace: float = RESCUE_GRACE


class Worker:
    """`connect` opens the heartbeat's own connection. `changed` is told why the database does not answer; None: it
    does."""

    def __init__(
        self,
        jobs: Jobs,
        connect: Connect,
        identity: Identity,
        handlers: Mapping[str, Handler],
        redactor: Redactor,
        *,
        times: Times = Times(),  # noqa: B008 - immutable
        changed: Callable[[str | None], None] = lambda problem: None,
    ) -> None:
        self._jobs, self._identity, self._handlers, self._redactor = jobs, identity, handlers, redactor
        self._times, self._changed = times, changed
        self._heartbeat = Heartbeat(identity, connect, times.ttl, times.beat, self._lost, self._cancel)
        self._running: set[Hand] = set()
        self._results: dict[Hand, Ended] = {}  # not written yet
        self._stirred = asyncio.Event()  # a handler ended
        self._stops = False
        self._problem: str | None = None  # why the database does not answer
        self.tally = Tally()

    async def run(self, stop: asyncio.Event, *, drain: bool = False) -> Tally:
        """Until `stop`, or with `drain` until nothing is due any more."""
        async with self._heartbeat as heartbeat, asyncio.TaskGroup() as group:
            beside = [
                group.create_task(heartbeat.guard()),
                group.create_task(rescue_forever(self._jobs, self._times.rescue_every, self._times.rescue_grace)),
            ]
            await self._work(group, stop, drain)
            self._stops = True
            heartbeat.stopping()
            await self._finish()
            for task in beside:
                task.cancel()
        with suppress(StoreUnavailable, ConfigError):  # then the others find out by themselves
            await self._jobs.leave(self._identity.name)
        return self.tally

    async def _work(self, group: asyncio.TaskGroup, stop: asyncio.Event, drain: bool) -> None:
        failures = 0
        while not stop.is_set():
            self._stirred.clear()
            free = self._identity.slots - len(self._running)
            want = self._want(free) if free > 0 else None
            if want is None and not self._results:
                await first(stop.wait(), self._stirred.wait())
                continue
            asked_at = time.monotonic()
            exchanged = await self._exchange(want)
            if exchanged is None:
                failures += 1
                await first(stop.wait(), asyncio.sleep(backoff(failures, OUTAGE_BASE, OUTAGE_CAP)))
                continue
            failures = 0
            self._start(group, exchanged.jobs, asked_at, stop)
            if want is not None and len(exchanged.jobs) < want.number and not self._results:
                due = await self._due(want)
                if drain and not self._running and (due is None or due > 0):
                    return
                await first(stop.wait(), self._stirred.wait(), self._nothing_due(due))

    def _want(self, free: int) -> Want:
        return Want(free, tuple(self._handlers), self._identity.sources, self._times.ttl)

    async def _due(self, want: Want) -> float | None:
        """Seconds until a job may be had; 0.0 where nobody knows."""
        try:
            return await self._jobs.due(want)
        except (StoreUnavailable, ConfigError) as exc:
            self._away(str(exc))
            return 0.0

    async def _nothing_due(self, due: float | None) -> None:
        """Until it is worth to look again: sooner where a job comes that nobody knew of."""
        seconds = self._times.poll * random.uniform(1 - JITTER, 1 + JITTER)
        if due is not None:
            seconds = min(seconds, max(due, CONTENTION * random.uniform(0.5, 1.5)))
        try:
            await self._jobs.wait(seconds)
        except (StoreUnavailable, ConfigError) as exc:
            self._away(str(exc))
            await asyncio.sleep(seconds)

    async def _exchange(self, want: Want | None) -> Exchanged | None:
        """Write what has ended, claim what is wanted. None: the database does not answer; nothing is forgotten."""
        results = dict(self._results)
        try:
            with metrics.claim_seconds.time():
                async with asyncio.timeout(FLUSH_PATIENCE if self._stops else None):
                    exchanged = await self._jobs.exchange(self._identity.name, list(results.values()), want)
        except (StoreUnavailable, ConfigError, TimeoutError) as exc:  # what a person must mend ends no handler
            for hand in results:
                hand.unsure = True
            self._away(str(exc) or "no answer in time", len(results))
            return None
        self._back()
        for hand in results:
            del self._results[hand]
        self._heartbeat.drop(list(results))
        lost, died = set(exchanged.lost), set(exchanged.died)
        for hand, result in results.items():
            if hand.job.id in lost:
                self.tally.lose(hand.job, hand.refused())
            else:
                self.tally.written(hand.job, result, dead=hand.job.id in died)
        return exchanged

    def _away(self, problem: str, unwritten: int = 0) -> None:
        """One line for an outage."""
        if self._problem is None:
            log.warning("cannot reach the jobs yet", unwritten=unwritten, error=problem)
        self._problem = problem
        self._changed(problem)

    def _back(self) -> None:
        if self._problem is not None:
            log.info("the jobs can be reached again")
        self._problem = None
        self._changed(None)

    def _start(self, group: asyncio.TaskGroup, jobs: Sequence[Job], asked_at: float, stop: asyncio.Event) -> None:
        for job in jobs:
            handler = self._handlers[job.kind]
            hand = Hand(job, asked_at, self._times.ttl, handler.timeout, self._redactor.scrub_value)
            self._heartbeat.keep([hand])
            if stop.is_set():
                self._end(hand, Again("the worker stops"))
            else:
                self._running.add(hand)
                hand.task = group.create_task(self._handle(hand, handler), name=f"job {job.id}")

    async def _handle(self, hand: Hand, handler: Handler) -> None:
        job = hand.job
        structlog.contextvars.bind_contextvars(job=job.id, kind=job.kind, attempt=job.attempt)
        raised: BaseException | None = None
        try:
            await _attempt(hand, handler)
        except BaseException as exc:
            raised = exc  # whatever a handler does is about its job; if we are cancelled, so is all that follows
        finally:
            hand.stop.set()  # for what it left behind: threads
            self._running.discard(hand)
            self._stirred.set()
        metrics.job_seconds.labels(job.source, job.kind).observe(time.monotonic() - hand.began)
        self._end(hand, self._meaning(hand, raised))

    def _meaning(self, hand: Hand, raised: BaseException | None) -> BaseException | None:
        if raised is not None and hand.cancel:
            said = text_of(raised)
            return Cancelled(f"a person cancelled it: {said}" if said else "a person cancelled it")
        if isinstance(raised, asyncio.CancelledError):
            return Again("the worker stopped before it was done") if self._stops else RuntimeError("cancelled itself")
        return raised

    def _end(self, hand: Hand, meaning: BaseException | None) -> None:
        hand.over = True
        if hand.lost is not None:  # told by the heartbeat: never a success
            self.tally.lose(hand.job, hand.lost)
        else:
            self._results[hand] = ended(hand.job, meaning, self._redactor.scrub, hand.shown)

    def _lost(self, hand: Hand) -> None:
        if hand.task is not None and not hand.over:
            hand.task.cancel()

    def _cancel(self, hand: Hand) -> None:
        """The handler may end by itself; one that does not is cancelled."""
        log.info("a person cancels the job", job=hand.job.id, kind=hand.job.kind)
        hand.stop.set()
        asyncio.get_running_loop().call_later(self._times.cancel_grace, self._lost, hand)

    async def _finish(self) -> None:
        """What runs may end; then it is cancelled and given back."""
        for hand in self._running:
            hand.stop.set()
        until = time.monotonic() + self._times.stop_grace
        while self._running and (left := until - time.monotonic()) > 0:
            self._stirred.clear()
            if self._results:
                await self._exchange(None)
            if self._running:
                await first(self._stirred.wait(), asyncio.sleep(left))
        rest = [hand.task for hand in self._running if hand.task is not None]
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=CANCELLED_WITHIN)
        await self._flush()

    async def _flush(self) -> None:
        until, failures = time.monotonic() + FLUSH_PATIENCE, 0
        while self._results and await self._exchange(None) is None:
            if time.monotonic() > until:
                log.warning("results could not be written: others do the jobs again", number=len(self._results))
                return
            failures += 1
            await asyncio.sleep(backoff(failures, OUTAGE_BASE, OUTAGE_CAP))


async def _attempt(hand: Hand, handler: Handler) -> None:
    deadline = asyncio.timeout(handler.timeout)
    try:
        async with deadline:
            await handler.work(hand.job, hand.progress, hand.stop)
    except TimeoutError:
        if not deadline.expired():
            raise
        raise TimedOut(f"not done after {handler.timeout:g} s, the timeout of {hand.job.kind}") from None
