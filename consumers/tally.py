"""What a consumer did to one topic, and what keeps it from going on: for people, for `/readyz` and for Prometheus."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from consumers.store import Written
from ingest import metrics
from ingest.event import Record
from ingest.eventlog import Subscription

OUTCOMES = ("inserted", "duplicate", "dead_lettered", "stale")  # of a record
LAG_EVERY = 1.0  # seconds between updates of the lag metric


@dataclass
class Tally:
    """What a consumer did to one topic since it started."""

    topic: str
    group: str
    changed: Callable[["Tally"], None] = lambda tally: None
    blocked: str | None = None  # what the log or the store last failed with; None: it answers
    failed: str | None = None  # what a person must mend before this topic goes on
    batches: int = 0
    inserted: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    trimmed: int = 0  # offsets that the log deleted before they were read: lost
    replaced: int = 0  # times that the topic turned out to be deleted and made anew

    def lost(self) -> str:
        """What was never read and is gone, in words; empty: nothing."""
        parts = []
        if self.trimmed:
            parts.append(f"{self.trimmed:,} offsets were deleted by the log before they were read")
        if self.replaced:
            parts.append("the topic was deleted and made anew; what the old one held unread is gone")
        return "; ".join(parts)

    def blocked_by(self, reason: str | None) -> None:
        if reason != self.blocked:
            self.blocked = reason
            self.changed(self)

    def begin(self) -> None:
        """Every series is there from the start: `increase` does not see a first value."""
        for outcome in OUTCOMES:
            metrics.consumed.labels(*self._labels, outcome)

    def wrote(self, records: Sequence[Record], written: Written, seconds: float) -> None:
        """A batch is done, but for dead letters that are not written yet."""
        labels, now = self._labels, time.time()
        self.batches += 1
        self.inserted += written.inserted
        self.duplicates += written.duplicates
        for outcome, count in (("inserted", written.inserted), ("duplicate", written.duplicates)):
            if count:
                metrics.consumed.labels(*labels, outcome).inc(count)
        metrics.batch_records.labels(*labels).observe(len(records))
        metrics.write_seconds.labels(*labels, "ok").observe(seconds)
        metrics.progressed.labels(*labels).set(now)
        if records:
            oldest = min(record.timestamp for record in records)
            metrics.record_to_row.labels(*labels).observe(max(0.0, now - oldest / 1000))
        self.changed(self)

    def buried(self, letters: int) -> None:
        self.dead_letters += letters
        metrics.consumed.labels(*self._labels, "dead_lettered").inc(letters)
        self.changed(self)

    def dropped(self, records: int) -> None:
        """Of a batch that the store has from someone else."""
        metrics.consumed.labels(*self._labels, "stale").inc(records)

    def missed(self, offsets: int) -> None:
        metrics.trimmed.labels(*self._labels).inc(offsets)
        self.trimmed += offsets

    @property
    def _labels(self) -> tuple[str, str]:
        return self.topic, self.group


class Gauges:
    """What is true of one membership now; it ends with it."""

    def __init__(self, topic: str, group: str) -> None:
        self._topic, self._group = topic, group
        self._shown = 0.0  # time.monotonic()
        self._lags: frozenset[int] = frozenset()  # partitions whose lag is shown

    def pause(self, paused: bool) -> None:
        metrics.paused.labels(self._topic, self._group).set(paused)

    def show(self, subscription: Subscription, held: Collection[int]) -> None:
        """`held`: partitions that wait for their dead letters."""
        metrics.held.labels(self._topic, self._group).set(len(held))
        if time.monotonic() - self._shown < LAG_EVERY:
            return
        self._shown = time.monotonic()
        owned = subscription.partitions()
        metrics.assigned.labels(self._topic, self._group).set(len(owned))
        for partition in self._lags - owned:
            metrics.lag.remove(self._group, self._topic, str(partition))
        self._lags &= owned
        for partition, behind in subscription.lag().items():
            metrics.lag.labels(self._group, self._topic, str(partition)).set(behind)
            self._lags |= {partition}

    def forget(self) -> None:
        for gauge in (metrics.paused, metrics.assigned, metrics.held):
            gauge.labels(self._topic, self._group).set(0)
        for partition in self._lags:
            metrics.lag.remove(self._group, self._topic, str(partition))
