"""What a person sees while something runs, and the table at its end.

On a terminal a line that changes in place; elsewhere plain lines, one a while. Progress goes to standard error, results
to standard output.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from consumers.tally import Tally
from ingest.cli import table
from ingest.cli.table import Spare
from ingest.report import Outcome, Report

if TYPE_CHECKING:  # where nothing is drawn, Rich is not imported
    from rich.live import Live

LINE_EVERY = 10.0  # seconds between plain lines of one stream
REFRESH = 4  # a second, on a terminal
TOPICS = Spare(("dead letters",), ("group", "batches"))
COLUMNS = ("stream", "pages", "events", "unchanged", "dead letters", "retries", "waiting", "cursor", "stopped because")


class Progress:
    """`changed` takes a key and a line that says how far it has come."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._lines: dict[str, str] = {}
        self._printed: dict[str, float] = {}
        self._quiet = quiet
        self._live: Live | None = None

    def __enter__(self) -> "Progress":
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False)
            self._live = Live(console=console, refresh_per_second=REFRESH, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def changed(self, key: str, line: str) -> None:
        if self._quiet:
            return
        if self._live is not None:
            from rich.text import Text

            self._lines[key] = line
            self._live.update(Text("\n".join(self._lines.values())))
            return
        now = time.monotonic()
        if now - self._printed.setdefault(key, now) >= LINE_EVERY:
            self._printed[key] = now
            print(line, file=sys.stderr, flush=True)

    def report(self, report: Report) -> None:
        self.changed(str(report.stream), line(report))

    def tally(self, tally: Tally) -> None:
        self.changed(tally.topic, f"{tally.topic}: {tally.inserted:,} inserted, {tally.duplicates:,} duplicates")


def line(report: Report) -> str:
    """How far a stream has come."""
    rate = report.events / report.seconds if report.seconds else 0.0
    waiting = f"; waiting until {report.wait.until}: {report.wait.reason}" if report.wait else ""
    return (
        f"{report.stream}: {report.pages:,} pages, {report.events:,} events, {report.unchanged:,} unchanged,"
        f" {report.retries:,} retries, {rate:,.0f}/s{waiting}"
    )


def reports(found: Sequence[Report], *, as_json: bool, scrub: Callable[[str], str]) -> None:
    if as_json:
        listed = [
            {
                "source": r.stream.source, "stream": r.stream.stream,
                "outcome": r.outcome.value, "reason": scrub(r.reason),
                "pages": r.pages, "events": r.events, "deletes": r.deletes,
                "unchanged": r.unchanged, "skipped": r.skipped, "gaps": r.gaps,
                "dead_letters": r.dead_letters, "requests": r.requests, "retries": r.retries,
                "waited_seconds": round(r.waited, 3), "seconds": round(r.seconds, 3),
                "cursor_from": r.cursor_from, "cursor_to": r.cursor_to,
            }
            for r in found
        ]  # fmt: skip
        print(json.dumps(listed, indent=2))
        return
    cells = []
    for r in found:
        moved = r.cursor_to or "-" if r.cursor_from in (None, r.cursor_to) else f"{r.cursor_from} → {r.cursor_to}"
        why = scrub(r.reason) if r.outcome is Outcome.COMPLETE else f"{r.outcome.value.upper()}, see below"
        cells.append([
            str(r.stream), f"{r.pages:,}" + (f" ({r.gaps:,} left out)" if r.gaps else ""),
            f"{r.events:,}" + (f" ({r.deletes:,} deletes)" if r.deletes else ""),
            f"{r.unchanged:,}" + (f" ({r.skipped:,} skipped)" if r.skipped else ""),
            f"{r.dead_letters:,}", f"{r.retries:,}", f"{r.waited:.1f} s", moved, why,
        ])  # fmt: skip
    rows(COLUMNS, cells, Spare(("waiting", "retries", "dead letters"), ("cursor",)))
    for r in found:
        if r.outcome is not Outcome.COMPLETE:
            print(f"{r.stream}: {r.outcome.value.upper()}: {scrub(r.reason)}")
        elif r.events == r.dead_letters == 0:
            print(f"{r.stream}: nothing new")


def tallies(found: Sequence[Tally], *, as_json: bool) -> None:
    if as_json:
        listed = [
            {"topic": t.topic, "group": t.group, "batches": t.batches, "inserted": t.inserted,
             "duplicates": t.duplicates, "dead_letters": t.dead_letters, "trimmed": t.trimmed, "replaced": t.replaced}
            for t in found
        ]  # fmt: skip
        print(json.dumps(listed, indent=2))
        return
    cells = [
        [t.topic, t.group, f"{t.batches:,}", f"{t.inserted:,}", f"{t.duplicates:,}", f"{t.dead_letters:,}"]
        for t in found
    ]
    rows(("topic", "group", "batches", "inserted", "duplicates", "dead letters"), cells, TOPICS)
    for t in found:
        if t.lost():
            print(f"{t.topic}: LOST: {t.lost()}")


def rows(columns: Sequence[str], found: Sequence[Sequence[str]], spare: Spare = table.NONE) -> None:
    table.show(columns, found, spare)
