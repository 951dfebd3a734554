"""Holds a long run against what was served: the checks of tests/chaos/history.py, and those that need its length.

Pure, as those. In a long run records change while they are listed and fetched, so what may be missing is told by time:
a version that was replaced before any cursor stood for it need not have been published.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from ingest.signals import GRACE
from tests.chaos import history as single
from tests.chaos.feed import Made, micros
from tests.chaos.history import Fact, History, Moved
from tests.chaos.schedule import Fault
from tests.chaos.watch import Committed, Size

PAGE_REPEATS = 3  # pages that a fault or a start may repeat: in flight, listed again, tried again
MEMORY = 300_000_000  # bytes, of any process
FILES = 150
LONG_LIVED = 300.0  # seconds after which a process may no longer grow
GROWTH = 24_000_000  # bytes, from its second quarter to its last
FILES_GROWTH = 12
LINES, LINES_PER_SECOND = 200, 20  # of output; a run of a stream is one, and there are five a second
ROUNDING = 1  # milliseconds

_BUGS = ("Traceback", "never retrieved", "was destroyed but", "was never awaited", "Unclosed ", "is a bug in")
NOISE = re.compile("|".join(_BUGS))
GOOD_ENDS = frozenset({0, 3, -9})
"""Asked to stop; a server away at the start; killed."""
ASKED_TOO_EARLY = -15
"""By SIGTERM itself: good for a process that had not begun, and has said nothing."""
GRACE_IS_OVER = 1
"""Good for a process that was kept from writing for all of it."""
KEEP_FROM_WRITING = ("file_lock", "postgres_kill", "postgres_restart", "postgres_freeze")


@dataclass(frozen=True)
class Run:
    """What a run left behind, after all is healed and drained."""

    history: History
    made: Sequence[Made]
    """Every version of every record, in order."""
    moved: Sequence[Moved]
    """Every move of an offset of the store."""
    committed: Sequence[Committed]
    sizes: Mapping[str, Sequence[Size]]
    outputs: Mapping[str, str]
    """By name: whatever a process printed, or showed as metrics."""
    secrets: Sequence[str]
    inserted: int
    """What all processes together say they inserted, as of their last word."""
    starts: int
    faults: int
    page: int
    """Records of a page of the API."""


def complaints(run: Run) -> list[str]:
    """What is wrong; an empty list when nothing is."""
    h = run.history
    found = [*single.invented(h), *single.twice(h), *single.scattered(h), *single.unlike_the_log(h)]
    found += [*single.offsets_and_rows(h), *single.out_of_order(h), *single.cursor_went_back(h), *single.left_behind(h)]
    found += [*lost(run), *ahead_of_the_log(run), *fenced(h), *offsets_went_back(run.moved), *ahead_of_the_store(run)]
    found += [*repeated(run), *too_large(run.sizes), *told(run), *too_loud(run), *miscounted(run)]
    return found


def lost(run: Run) -> Iterator[str]:
    """What a record is now is stored; so is what it was, if a cursor stood for it before it changed."""
    rows = {run.history.fact(row) for row in run.history.rows}
    covered = _covered(run)
    for made, replaced_at in _lives(run.made):
        fact: Fact = (made.id, made.sha256)
        if fact in rows or made.sha256 in run.history.dead:
            continue
        if replaced_at is None:
            yield f"lost: {made} is how the record is now, and in no row and no dead letter"
        elif covered.get(made.at, math.inf) < replaced_at // 1000:
            yield f"lost: a cursor stood for {made} before it changed, and it is in no row"


def ahead_of_the_log(run: Run) -> Iterator[str]:
    """When a cursor was saved, everything that it stands for and that had not changed since was in the log.

    What had changed may come later: a poller that was frozen with a page in its hands publishes it when it wakes."""
    appended: dict[Fact, int] = {}
    for record in run.history.log:
        fact = run.history.fact(record)
        appended[fact] = min(record.at, appended.get(fact, record.at))
    covered = _covered(run)
    for made, replaced_at in _lives(run.made):
        when, saved = appended.get((made.id, made.sha256)), covered.get(made.at)
        if when is None or saved is None or (replaced_at is not None and replaced_at // 1000 <= saved):
            continue
        if when > saved + ROUNDING:
            yield f"a cursor stood for {made} at {saved}, which was appended to the log at {when}"


def fenced(history: History) -> Iterator[str]:
    for saved in history.cursors:
        if saved.fence != saved.lease:
            yield f"a cursor was saved under the fence {saved.fence} when the lease had {saved.lease}"


def offsets_went_back(moved: Sequence[Moved]) -> Iterator[str]:
    at: dict[int, int] = {}
    for move in moved:
        if move.after < at.get(move.partition, 0):
            yield f"the store's offset of partition {move.partition} went from {at[move.partition]} to {move.after}"
        if move.before is not None and move.before != at.get(move.partition):
            yield f"the store's offset of partition {move.partition} was {move.before}, not {at.get(move.partition)}"
        at[move.partition] = move.after


def ahead_of_the_store(run: Run) -> Iterator[str]:
    """What Kafka has for the group never passes what the store has, and does not stay back. A step back may be seen: a
    commit that the network held up arrives after a later one, or a coordinator that stood still answers from memory."""
    highest: dict[int, int] = {}
    last: dict[int, int] = {}
    for look in run.committed:
        for partition, offset in look.kafka.items():
            if offset > look.store.get(partition, 0):
                yield f"Kafka has offset {offset} of partition {partition}, the store {look.store.get(partition)}"
            highest[partition] = max(offset, highest.get(partition, 0))
            last[partition] = offset
    for partition, offset in last.items():
        if offset < highest[partition]:
            yield f"Kafka's offset of partition {partition} went from {highest[partition]} to {offset}"


def repeated(run: Run) -> Iterator[str]:
    most = PAGE_REPEATS * run.page * (run.starts + run.faults)
    if run.history.repeated() > most:
        yield f"{run.history.repeated()} records of the log are repeated; {run.starts} starts allow for {most}"


def too_large(sizes: Mapping[str, Sequence[Size]]) -> Iterator[str]:
    for process, looks in sizes.items():
        if (most := max(look.memory for look in looks)) > MEMORY:
            yield f"{process} took {most / 1e6:.0f} MB"
        if (files := max(look.files for look in looks)) > FILES:
            yield f"{process} had {files} files open"
        if looks[-1].age < LONG_LIVED:
            continue
        quarter = len(looks) // 4
        before, after = looks[quarter : 2 * quarter], looks[3 * quarter :]
        grown = median(look.memory for look in after) - median(look.memory for look in before)
        if grown > GROWTH:
            yield f"{process} grew by {grown / 1e6:.0f} MB in {looks[-1].age:.0f} s"
        more = median(look.files for look in after) - median(look.files for look in before)
        if more > FILES_GROWTH:
            yield f"{process} has {more:.0f} more files open after {looks[-1].age:.0f} s"


def told(run: Run) -> Iterator[str]:
    """No secret, and nothing that only a fault of the program would print."""
    for name, text in run.outputs.items():
        for secret in run.secrets:
            if secret in text:
                yield f"{name} shows the secret {secret}"
        for line in text.splitlines():
            if NOISE.search(line):
                yield f"{name} says: {line[:200]}"


def too_loud(run: Run) -> Iterator[str]:
    """Who tries again without waiting says so again and again."""
    for process, looks in run.sizes.items():
        lines = run.outputs.get(f"{process}.out", "").count("\n")
        if lines > LINES + LINES_PER_SECOND * looks[-1].age:
            yield f"{process} wrote {lines} lines in {looks[-1].age:.0f} s"


def miscounted(run: Run) -> Iterator[str]:
    """Who was killed may have had no chance to count; nobody counts what is not there."""
    if run.inserted > len(run.history.rows):
        yield f"the consumers say that they inserted {run.inserted} rows, there are {len(run.history.rows)}"


def operations_complaints(operations: Sequence[Mapping[str, Any]], faults: Sequence[Fault]) -> list[str]:
    """Every fault that was drawn struck and was healed; no process ended as none should."""
    found = []
    for what in ("struck", "healed"):
        numbers = {line["n"] for line in operations if line["what"] == what}
        found += [f"{fault} was drawn and not {what}" for fault in faults if fault.n not in numbers]
    for line in operations:
        if line["what"] != "ended" or line["code"] in GOOD_ENDS:
            continue
        if line["code"] == ASKED_TOO_EARLY and line["silent"]:
            continue
        if line["code"] == GRACE_IS_OVER and _locked_out(line["process"], operations):
            continue
        found.append(f"{line['process']} ended with {line['code']}")
    return found


def _locked_out(process: str, operations: Sequence[Mapping[str, Any]]) -> bool:
    """A process that was asked to stop, and could neither write nor claim anything: for all of its grace someone else
    had the lock of the SQLite file, or Postgres was away."""

    def when(what: str, **facts: object) -> Iterator[float]:
        return (line["t"] for line in operations if line["what"] == what and facts.items() <= line.items())

    locks = [line["n"] for line in operations if line["what"] == "struck" and line["kind"] in KEEP_FROM_WRITING]
    return any(
        struck <= asked and asked + GRACE <= min(when("healed", n=n), default=math.inf)
        for asked in when("asked to stop", process=process)
        for n in locks
        for struck in when("struck", n=n)
    )


def _covered(run: Run) -> Mapping[int, int]:
    """The instant of each version → when the first cursor was saved that stands for it, milliseconds since 1970."""
    marks: list[tuple[int, int]] = []  # how far, when
    for saved in run.history.cursors:
        mark = json.loads(saved.cursor).get("high_water")
        if mark is not None and (not marks or micros(mark) > marks[-1][0]):
            marks.append((micros(mark), saved.at))
    found: dict[int, int] = {}
    n = 0
    for made in run.made:
        while n < len(marks) and marks[n][0] < made.at:
            n += 1
        if n == len(marks):
            break
        found[made.at] = marks[n][1]
    return found


def _lives(made: Sequence[Made]) -> Iterator[tuple[Made, int | None]]:
    """Each version, and the instant at which the next one took its place."""
    versions: dict[str, list[Made]] = {}
    for one in made:
        versions.setdefault(one.id, []).append(one)
    for lives in versions.values():
        for one, after in pairwise(lives):
            yield one, after.at
        yield lives[-1], None
