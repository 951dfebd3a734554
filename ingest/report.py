"""What one run of one stream did: counted while it works, shown when it ends, and what the exit code is made of."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import structlog

from checkpoints import StreamId
from ingest import metrics
from ingest.event import rfc3339
from ingest.sources import Notice

log = structlog.get_logger()

WAIT_WORTH_SHOWING = 1.0  # seconds
WAIT_WORTH_A_LINE = 5.0  # seconds, in the log


class Outcome(StrEnum):
    RUNNING = "running"
    COMPLETE = "complete"  # the listing ended, and said why
    INCOMPLETE = "incomplete"  # stopped early by a signal
    FAILED = "failed"  # trying again cannot help
    UNAVAILABLE = "unavailable"  # a later run may work
    SUPERSEDED = "superseded"  # someone else has the stream now


class Wait(NamedTuple):
    until: str  # RFC 3339
    reason: str


@dataclass
class Report:
    """Fulfils `sources.Watch`. `changed` is called after every page and for every wait, for whoever shows progress."""

    stream: StreamId
    changed: Callable[["Report"], None] = lambda report: None
    outcome: Outcome = Outcome.RUNNING
    reason: str = ""
    retry_after: float | None = None  # seconds that the other side asked for
    error: Exception | None = None  # that ended it
    pages: int = 0
    events: int = 0
    unchanged: int = 0
    skipped: int = 0
    gaps: int = 0  # answers that were left out because `errors` says so
    dead_letters: int = 0
    deletes: int = 0  # of the events
    requests: int = 0
    retries: int = 0
    waited: float = 0.0  # seconds
    wait: Wait | None = None  # under way
    blocked: str | None = None  # what the log or a database last failed with; None: it answers
    notices: dict[str, str] = field(default_factory=dict)  # kind → what was noticed
    cursor_from: str | None = None
    cursor_to: str | None = None
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    measured_as: StreamId = field(init=False)  # the labels of its metrics

    def __post_init__(self) -> None:
        self.measured_as = _measured(self.stream)

    def requested(self, seconds: float) -> None:
        self.requests += 1
        metrics.request_seconds.labels(*self.measured_as).observe(seconds)
        if self.wait is not None:
            self.wait = None
            metrics.waiting_until.labels(*self.measured_as).set(0)

    def retrying(self, attempt: int, delay: float, reason: str) -> None:
        self.retries += 1
        metrics.retries.labels(*self.measured_as).inc()
        self.waiting(delay, reason)

    def waiting(self, delay: float, reason: str) -> None:
        self.waited += delay
        metrics.waiting.labels(*self.measured_as).inc(delay)
        if delay < WAIT_WORTH_SHOWING:
            return
        until = time.time() + delay
        self.wait = Wait(rfc3339(int(until * 1000)), reason)
        metrics.waiting_until.labels(*self.measured_as).set(until)
        if delay >= WAIT_WORTH_A_LINE:
            until_, seconds = self.wait.until, round(delay, 1)
            log.warning("waiting", stream=str(self.stream), until=until_, seconds=seconds, reason=reason)
        self.changed(self)

    def blocked_by(self, reason: str | None) -> None:
        if reason != self.blocked:
            self.blocked = reason
            self.changed(self)

    def noticed(self, notice: Notice) -> None:
        """One line for each kind and run."""
        if notice.kind not in self.notices:
            self.notices[notice.kind] = notice.message
            metrics.notices.labels(*self.measured_as, notice.kind).inc()
            log.warning(notice.message, stream=str(self.stream), kind=notice.kind)

    def restarted(self, reason: str) -> None:
        metrics.restarts.labels(*self.measured_as).inc()
        log.warning("listing restarted", stream=str(self.stream), reason=reason)

    def saved(
        self, *, events: int, unchanged: int, skipped: int, dead_letters: int, deletes: int = 0, gaps: int = 0
    ) -> None:
        """The cursor of a page was saved."""
        self.pages += 1
        self.events += events
        self.unchanged += unchanged
        self.skipped += skipped
        self.dead_letters += dead_letters
        self.deletes += deletes
        self.gaps += gaps
        metrics.pages.labels(*self.measured_as).inc()
        for outcome, count in {
            "published": events, "unchanged": unchanged, "skipped": skipped, "dead_lettered": dead_letters,
        }.items():  # fmt: skip
            if count:
                metrics.records.labels(*self.measured_as, outcome).inc(count)
        if gaps:
            metrics.gaps.labels(*self.measured_as).inc(gaps)
        metrics.cursor_saved.labels(*self.measured_as).set_to_current_time()
        self.changed(self)

    def end(self, outcome: Outcome, reason: str) -> None:
        self.outcome, self.reason, self.wait = outcome, reason, None
        self.ended = time.monotonic()
        metrics.waiting_until.labels(*self.measured_as).set(0)
        metrics.polls.labels(*self.measured_as, outcome.value).inc()
        metrics.poll_seconds.labels(*self.measured_as).observe(self.seconds)
        level = log.info if outcome in (Outcome.COMPLETE, Outcome.INCOMPLETE) else log.error
        level(
            "stream finished",
            stream=str(self.stream), outcome=outcome.value, reason=reason, pages=self.pages, events=self.events,
            unchanged=self.unchanged, gaps=self.gaps, dead_letters=self.dead_letters, retries=self.retries,
            seconds=round(self.seconds, 3),
        )  # fmt: skip
        self.changed(self)

    def superseded(self, reason: str) -> None:
        """The lease was lost: in the middle of the run, or after it, which is no matter."""
        if self.ended is None:
            self.end(Outcome.SUPERSEDED, reason)
        else:
            log.info("the lease was lost between two runs", stream=str(self.stream), reason=reason)

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.started


def _measured(stream: StreamId) -> StreamId:
    """The parts of a stream are measured together, beside the stream itself: there may be any number of them."""
    whole, part, _ = stream.stream.partition("@")
    return StreamId(stream.source, f"{whole}@backfill") if part else stream


def exit_code(reports: Iterable[Report]) -> int:
    """0: all complete; 1: something failed or is incomplete; 3: nothing but temporary failures stood in the way."""
    outcomes = {report.outcome for report in reports}
    if outcomes <= {Outcome.COMPLETE}:
        return 0
    return 3 if outcomes <= {Outcome.COMPLETE, Outcome.UNAVAILABLE} else 1
