"""The checker is checked: whatever is dropped, doubled, swapped, changed, added or moved, it finds."""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from tests.chaos.history import History, Logged, Saved, Stored, complaints, out_of_order
from tests.chaos.pipeline import Pipeline

PREFIX = "billing:events:"
PAGES, PAGE, KEYS = 4, 5, 3

Change = Callable[[History], History]


def sound() -> History:
    """Four pages of five records over two partitions; a poller died behind the second page, which came again."""
    facts = [(f"evt_{n}", f"sha-{n}") for n in range(PAGES * PAGE)]
    answers = [(f"/events?token=t{n}", facts[n : n + PAGE]) for n in range(0, PAGES * PAGE, PAGE)]
    log: list[Logged] = []
    for n in [*range(10), *range(5, 20)]:
        key, fence = n % KEYS, 1 if len(log) < 10 else 2
        offset = sum(1 for record in log if record.partition == key % 2)
        log.append(Logged(f"{PREFIX}evt_{n}@v1", f"key-{key}", key % 2, offset, fence, f"sha-{n}"))
    log.sort(key=lambda record: (record.partition, record.offset))
    first: dict[str, Stored] = {}
    for record in log:
        row = Stored(record.event_id, record.key, record.partition, record.offset, record.sha256)
        first.setdefault(record.event_id, row)
    ends = {partition: sum(1 for record in log if record.partition == partition) for partition in (0, 1)}
    cursors = [saved(1, 1), saved(2, 2), saved(2, 3), saved(2, None)]
    return History(PREFIX, answers, log, ends, [*first.values()], dict(ends), frozenset(), cursors)


def saved(fence: int, n: int | None, *, high_water: str = "2024", started: str = "noon") -> Saved:
    """A cursor after page `n`; None: at the end of the listing."""
    cursor: dict[str, Any] = {"high_water": high_water}
    if n is not None:
        cursor["listing"] = {"started": started, "n": n}
    return Saved(fence, json.dumps(cursor).encode())


def row(n: int, **changes: Any) -> Change:
    """Change row `n`."""

    def change(history: History) -> History:
        rows = [*history.rows]
        rows[n] = rows[n]._replace(**changes)
        return replace(history, rows=rows)

    return change


def record(n: int, **changes: Any) -> Change:
    """Change record `n` of the log."""

    def change(history: History) -> History:
        log = [*history.log]
        log[n] = log[n]._replace(**changes)
        return replace(history, log=log)

    return change


def swapped_payloads(history: History) -> History:
    one, other, *rest = history.rows
    return replace(history, rows=[one._replace(sha256=other.sha256), other._replace(sha256=one.sha256), *rest])


def swapped_in_the_log(history: History) -> History:
    """Two records of one key, each in the other's place, in the log and in the store."""
    one, other = [record for record in history.log if record.key == "key-1"][:2]
    places = {
        one: other._replace(partition=one.partition, offset=one.offset),
        other: one._replace(partition=other.partition, offset=other.offset),
    }
    log = [places.get(record, record) for record in history.log]
    stored = {place.event_id: place for place in places.values()}
    rows = [r if r.event_id not in stored else r._replace(offset=stored[r.event_id].offset) for r in history.rows]
    return replace(history, log=log, rows=rows)


def offset(partition: int, by: int) -> Change:
    def change(history: History) -> History:
        return replace(history, offsets={**history.offsets, partition: history.offsets[partition] + by})

    return change


def cursors(*saved: Saved) -> Change:
    return lambda history: replace(history, cursors=saved)


MUTATIONS: dict[str, tuple[Change, str]] = {
    "a row is dropped": (lambda h: replace(h, rows=h.rows[1:]), "lost"),
    "the last row is dropped": (lambda h: replace(h, rows=h.rows[:-1]), "lost"),
    "all rows are dropped": (lambda h: replace(h, rows=[]), "lost"),
    "a row is there twice": (lambda h: replace(h, rows=[*h.rows, h.rows[3]]), "twice: 2 rows of billing"),
    "a row is there under a second eventId": (
        lambda h: replace(h, rows=[*h.rows, h.rows[3]._replace(event_id=h.rows[3].event_id + "2")]),
        "twice: 2 rows of what was served",
    ),
    "two rows have each other's payload": (swapped_payloads, "differs from its record"),
    "a byte of a payload is changed": (row(2, sha256="other"), "never served"),
    "a byte of a record in the log is changed": (record(2, sha256="other"), "never served"),
    "a row is in the place of another": (row(2, offset=0), "differs from its record"),
    "a row has another key": (row(2, key="key-9"), "differs from its record"),
    "a row that nobody served": (
        lambda h: replace(h, rows=[*h.rows, Stored(PREFIX + "evt_99@v1", "key-1", 1, 3, "sha-99")]),
        "never served",
    ),
    "a record in the log that nobody served": (record(4, event_id=PREFIX + "evt_99@v1"), "never served"),
    "a record is dropped from the log": (
        lambda h: replace(h, log=[r for r in h.log if r.event_id != h.rows[7].event_id]),
        "is not in the log",
    ),
    "the log is repeated": (lambda h: replace(h, log=[*h.log, *h.log]), "are repeated"),
    "a record of a key is in another partition": (record(0, partition=1), "is in the partitions"),
    "two records of a key change places": (swapped_in_the_log, "out of order"),
    "a record has the fence of an earlier poller": (record(-1, fence=1), "stands behind a record of the fence"),
    "an offset is one short": (offset(0, -1), "the store stands at"),
    "an offset is one too far": (offset(0, 1), "is past its end"),
    "an offset is far behind its rows": (offset(1, -4), "the store's offset is not past it"),
    "the offsets are gone": (lambda h: replace(h, offsets={}), "the store stands at None"),
    "the cursor goes back a page": (cursors(saved(1, 1), saved(1, 2), saved(1, 1)), "the listing went from"),
    "the cursor skips a page": (cursors(saved(1, 1), saved(1, 3)), "the listing went from"),
    "the listing starts over": (cursors(saved(1, 1), saved(1, 1, started="one")), "the listing went from"),
    "the cursor returns to a listing that has ended": (cursors(saved(1, 3), saved(1, None), saved(1, 4)), "had ended"),
    "the high-water mark goes back": (cursors(saved(1, None), saved(1, None, high_water="2023")), "mark went back"),
    "an old fence saves behind a newer": (cursors(saved(2, 1), saved(1, 2)), "after one under 2"),
    "the cursor stands for a page that is not in the log": (
        lambda h: replace(h, log=[r for r in h.log if r.event_id != PREFIX + "evt_19@v1"]),
        "not all in the log",
    ),
}


def test_a_page_that_a_zombie_publishes_again_changes_no_order() -> None:
    """It was asked for again meanwhile, and one of its records had changed: that one is not on it any more."""
    history = sound()
    last = [one for one in history.log if one.key == "key-1"][-1]
    again = last._replace(fence=1, offset=history.ends[last.partition])
    log = sorted([*history.log, again], key=lambda one: (one.partition, one.offset))
    assert list(out_of_order(replace(history, log=log))) == []


def test_a_sound_history_gets_no_complaint() -> None:
    assert complaints(sound(), repeats=PAGE, drained=True) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checker_finds_that(name: str) -> None:
    change, complaint = MUTATIONS[name]
    found = complaints(change(sound()), repeats=PAGE, drained=True)
    assert any(complaint in one for one in found), found


def test_what_is_in_a_dead_letter_is_not_lost() -> None:
    history = sound()
    missing = history.rows[0]
    without = replace(history, rows=history.rows[1:])
    assert complaints(without, repeats=PAGE, drained=True)
    assert complaints(replace(without, dead=frozenset([missing.sha256])), repeats=PAGE, drained=True) == []


def test_behind_a_crash_the_rest_may_be_missing_but_not_a_row_below_the_offset() -> None:
    history = sound()
    half = {partition: end // 2 for partition, end in history.ends.items()}
    rows = [row for row in history.rows if row.offset < half[row.partition]]
    crashed = replace(history, rows=rows, offsets=half)
    assert complaints(crashed, repeats=PAGE, drained=False) == []
    assert complaints(crashed, repeats=PAGE, drained=True)
    assert complaints(replace(crashed, rows=rows[1:]), repeats=PAGE, drained=False)
    assert complaints(replace(crashed, offsets={0: half[0]}), repeats=PAGE, drained=False)


async def test_a_row_dropped_doubled_or_swapped_in_the_real_store_is_found(pipeline: Pipeline) -> None:
    await pipeline.run()
    await pipeline.consume()
    history = await pipeline.proves(repeats=0, drained=True)
    one, other, third = (row.event_id for row in history.rows[:3])
    swap = (
        "UPDATE {events} AS mine SET payload = theirs.payload FROM {events} AS theirs"
        f" WHERE mine.event_id IN ('{one}', '{other}') AND theirs.event_id IN ('{one}', '{other}')"
        " AND mine.event_id <> theirs.event_id"
    )
    double = (
        'INSERT INTO {events} (event_id, source, stream, key, type, ingested_at, topic, partition, "offset", payload)'
        " SELECT event_id || '2', source, stream, key, type, ingested_at, topic, partition, \"offset\", payload"
        f" FROM {{events}} WHERE event_id = '{one}'"
    )
    drop = f"DELETE FROM {{events}} WHERE event_id = '{third}'"
    for statement, complaint in ((swap, "differs from its record"), (double, "twice"), (drop, "lost")):
        before = await pipeline.history()
        await execute(pipeline, statement)
        found = complaints(await pipeline.history(), repeats=0, drained=True)
        new = set(found) - set(complaints(before, repeats=0, drained=True))
        assert any(complaint in one for one in new), new


async def execute(pipeline: Pipeline, statement: str) -> None:
    if pipeline.place.bootstrap is None:
        connection = sqlite3.connect(pipeline.place.database)
        connection.execute(statement.format(events="events"))
        connection.commit()
        connection.close()
    else:
        postgres = await asyncpg.connect(pipeline.place.database)
        await postgres.execute(statement.format(events="ingest.events"))
        await postgres.close()
