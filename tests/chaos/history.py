"""Holds what arrived against what was served: nothing lost, nothing twice, nothing invented, no step back.

Pure, and ignorant of the code under test: it gets facts, and says in sentences what is wrong with them. What the API
served is the truth; a record is known by its id and the SHA-256 of its bytes.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Fact = tuple[str, str]  # id and SHA-256 of a record


class Logged(NamedTuple):
    """A record of the log."""

    event_id: str
    key: str
    partition: int
    offset: int
    fence: int
    sha256: str
    at: int = 0
    """When it was appended, milliseconds since 1970."""


class Stored(NamedTuple):
    """A row of the store."""

    event_id: str
    key: str
    partition: int
    offset: int
    sha256: str


class Saved(NamedTuple):
    """A cursor that was saved: the fence it was saved under, and its JSON; then the fence of the stream's lease."""

    fence: int
    cursor: bytes
    at: int = 0
    """Milliseconds since 1970."""
    lease: int = 0


class Moved(NamedTuple):
    """An offset of the store that was moved. `before`: None where there was none."""

    partition: int
    before: int | None
    after: int


@dataclass(frozen=True)
class History:
    prefix: str
    """What every eventId begins with: `source:stream:`."""
    answers: Sequence[tuple[str, Sequence[Fact]]]
    """Every whole answer of the API, in order: what was asked for, and the records."""
    log: Sequence[Logged]
    """Per partition in the order of offsets."""
    ends: Mapping[int, int]
    """Partition → the offset after the last record."""
    rows: Sequence[Stored]
    offsets: Mapping[int, int]
    """Partition → the next offset that the store has for the consumer."""
    dead: frozenset[str]
    """SHA-256 of the values of all dead letters."""
    cursors: Sequence[Saved]
    """In the order in which they were saved."""

    def fact(self, entry: Logged | Stored) -> Fact:
        return entry.event_id.removeprefix(self.prefix).partition("@")[0], entry.sha256

    def served(self) -> dict[Fact, int]:
        """Every record that was served, and when it was first, counted from 0."""
        first: dict[Fact, int] = {}
        for _, facts in self.answers:
            for fact in facts:
                first.setdefault(fact, len(first))
        return first

    def firsts(self) -> dict[str, Logged]:
        """The first record of every eventId in the log."""
        first: dict[str, Logged] = {}
        for record in self.log:
            first.setdefault(record.event_id, record)
        return first

    def repeated(self) -> int:
        """How many records of the log are there again."""
        return len(self.log) - len(self.firsts())


def complaints(history: History, *, repeats: int, drained: bool, zombie: bool = False) -> list[str]:
    """What is wrong; an empty list when nothing is.

    `repeats`: how many records may be in the log once more. `drained`: the API was read to its end and the log was
    consumed to its end; else a crash lies just behind. `zombie`: a poller may have published after it was superseded.
    """
    found = [*invented(history), *twice(history), *scattered(history), *unlike_the_log(history)]
    found += [*offsets_and_rows(history), *out_of_order(history), *cursor_went_back(history), *_cursor_ahead(history)]
    if history.repeated() > repeats:
        found.append(f"{history.repeated()} records of the log are repeated, {repeats} may be")
    if drained:
        found += [*_lost(history), *left_behind(history)]
    if not zombie:
        found += _behind_a_newer_fence(history)
    return found


def _lost(history: History) -> Iterator[str]:
    there = {history.fact(row) for row in history.rows}
    for fact in history.served():
        if fact not in there and fact[1] not in history.dead:
            yield f"lost: {fact} was served and is in no row and no dead letter"


def invented(history: History) -> Iterator[str]:
    served = history.served()
    entries: list[Logged | Stored] = [*history.rows, *history.log]
    for entry in entries:
        if history.fact(entry) not in served:
            yield f"invented: {entry} was never served"


def twice(history: History) -> Iterator[str]:
    for event_id, count in Counter(row.event_id for row in history.rows).items():
        if count > 1:
            yield f"twice: {count} rows of {event_id}"
    for fact, count in Counter(history.fact(row) for row in history.rows).items():
        if count > 1:
            yield f"twice: {count} rows of what was served as {fact}"


def scattered(history: History) -> Iterator[str]:
    partitions: dict[str, set[int]] = {}
    for record in history.log:
        partitions.setdefault(record.key, set()).add(record.partition)
    for key, found in partitions.items():
        if len(found) > 1:
            yield f"the key {key} is in the partitions {sorted(found)}"


def unlike_the_log(history: History) -> Iterator[str]:
    """A row is the first record of its eventId, byte for byte, and names the place where that stands."""
    firsts = history.firsts()
    for row in history.rows:
        record = firsts.get(row.event_id)
        if record is None:
            yield f"{row} is not in the log"
        elif Stored(record.event_id, record.key, record.partition, record.offset, record.sha256) != row:
            yield f"{row} differs from its record {record}"


def offsets_and_rows(history: History) -> Iterator[str]:
    """Rows and offsets moved together: a record has a row exactly when the offset of its partition is past it."""
    for partition, offset in history.offsets.items():
        if offset > history.ends.get(partition, 0):
            yield f"the store's offset {offset} of partition {partition} is past its end {history.ends.get(partition)}"
    rows = {row.event_id for row in history.rows}
    for record in history.firsts().values():
        passed = record.offset < history.offsets.get(record.partition, 0)
        if passed and record.event_id not in rows and record.sha256 not in history.dead:
            yield f"the store's offset is past {record}, which has no row"
        if not passed and record.event_id in rows:
            yield f"{record} has a row, but the store's offset is not past it"


def left_behind(history: History) -> Iterator[str]:
    for partition, end in history.ends.items():
        if history.offsets.get(partition, 0) != end:
            yield f"the store stands at {history.offsets.get(partition)} of partition {partition}, which ends at {end}"


def out_of_order(history: History) -> Iterator[str]:
    """Per key, the first occurrences stand in the order in which the API gave them. What stands behind a newer fence is
    a zombie's: who reads it knows by its fence that it is older than what is ahead of it."""
    served = history.served()
    zombies = {record for record, _ in _behind_a_newer(history)}
    last: dict[str, int] = {}
    there = set[str]()
    for record in sorted(history.log, key=lambda r: (r.partition, r.offset)):
        if record.event_id in there or record in zombies:
            continue
        there.add(record.event_id)
        place = served.get(history.fact(record), -1)
        if place < last.get(record.key, -1):
            yield f"out of order: {record} was served before the record of its key that stands ahead of it"
        last[record.key] = place


def _behind_a_newer_fence(history: History) -> Iterator[str]:
    for record, fence in _behind_a_newer(history):
        yield f"{record} stands behind a record of the fence {fence}"


def _behind_a_newer(history: History) -> Iterator[tuple[Logged, int]]:
    """Records, and the newest fence ahead of each in its partition."""
    newest: dict[int, int] = {}
    for record in history.log:
        if record.fence < newest.get(record.partition, 0):
            yield record, newest[record.partition]
        newest[record.partition] = max(record.fence, newest.get(record.partition, 0))


def cursor_went_back(history: History) -> Iterator[str]:
    """Fences and the high-water mark only grow; a listing goes on page by page, and is over once it has ended."""
    fence, high_water, ended = 0, "", set[str]()
    listing: tuple[str, int] | None = None
    for saved in history.cursors:
        cursor = json.loads(saved.cursor)
        now = cursor.get("listing")
        mark = str(cursor.get("high_water") or "")
        if saved.fence < fence:
            yield f"a cursor was saved under the fence {saved.fence} after one under {fence}"
        if mark < high_water:
            yield f"the high-water mark went back from {high_water} to {mark}"
        if now is not None and listing is not None and (now["started"] != listing[0] or now["n"] != listing[1] + 1):
            yield f"the listing went from {listing} to {now['started'], now['n']}"
        if now is not None and now["started"] in ended:
            yield f"the listing of {now['started']} had ended"
        if now is None and listing is not None:
            ended.add(listing[0])
        fence, high_water = saved.fence, mark
        listing = None if now is None else (now["started"], now["n"])


def _cursor_ahead(history: History) -> Iterator[str]:
    """Everything that the last cursor stands for is in the log."""
    if not history.cursors:
        return
    there = {history.fact(record) for record in history.log}
    listing = json.loads(history.cursors[-1].cursor).get("listing")
    variants: dict[str, list[Sequence[Fact]]] = {}
    for target, facts in history.answers:
        variants.setdefault(target, []).append(facts)
    for target in list(variants)[: None if listing is None else listing["n"]]:
        if not any(all(f in there or f[1] in history.dead for f in facts) for facts in variants[target]):
            yield f"the cursor stands for the answer to {target}, whose records are not all in the log"
