"""The checks of a long run are checked: a sound one gets no complaint, and whatever is broken in it is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ingest.signals import GRACE
from tests.chaos import endurance
from tests.chaos.endurance import Run, complaints, operations_complaints
from tests.chaos.feed import Made
from tests.chaos.history import Fact, History, Logged, Moved, Saved, Stored
from tests.chaos.schedule import Fault
from tests.chaos.watch import Committed, Size

PREFIX = "billing:events:"
START = 1_700_000_000_000_000  # microseconds since 1970
PAGE, PAGES = 4, 5
CHANGED = 3  # the record of the first page that changes behind the third
SECRET = "canary-1234"
Change = Callable[[Run], Run]


def instant(micros: int) -> str:
    return f"2023-11-14T22:13:{20 + (micros - START) // 1_000_000:02d}.{micros % 1_000_000:06d}Z"


def sound() -> Run:
    """Twenty versions, one every 10 ms, a page each 40 ms: appended 2 ms and saved 4 ms behind its last version. A
    poller died behind the second page, which came again under the next fence."""
    made = [Made(f"evt_{n}", f"sha-{n}", START + n * 10_000) for n in range(PAGE * PAGES)]
    made[3 * PAGE] = Made(f"evt_{CHANGED}", "sha-changed", made[3 * PAGE].at)
    log: list[Logged] = []
    cursors: list[Saved] = []
    answers: list[tuple[str, list[Fact]]] = []
    for page, fence in [(0, 1), (1, 1), (1, 2), (2, 2), (3, 2), (4, 2)]:
        rows = made[page * PAGE : (page + 1) * PAGE]
        answers.append((f"/events?n={len(answers)}", [(row.id, row.sha256) for row in rows]))
        done = rows[-1].at // 1000 + 2 + 20 * (page == 1 and fence == 2)
        for row in rows:
            offset = sum(1 for record in log if record.partition == 0)
            log.append(Logged(f"{PREFIX}{row.id}@{row.at}", f"key-{len(row.id)}", 0, offset, fence, row.sha256, done))
        if (page, fence) != (1, 1):
            cursor = json.dumps({"high_water": instant(rows[-1].at)}).encode()
            cursors.append(Saved(fence, cursor, done + 2, fence))
    first: dict[str, Stored] = {}
    for record in log:
        first.setdefault(record.event_id, Stored(record.event_id, record.key, 0, record.offset, record.sha256))
    end = len(log)
    history = History(PREFIX, answers, log, {0: end}, [*first.values()], {0: end}, frozenset(), cursors)
    return Run(
        history=history,
        made=made,
        moved=[Moved(0, None, 8), Moved(0, 8, 16), Moved(0, 16, end)],
        committed=[Committed({}, {0: 8}), Committed({0: 8}, {0: 16}), Committed({0: 16}, {0: 16})],
        sizes={"poller-1-001": [Size(float(age), 60_000_000, 20) for age in range(0, 600, 5)]},
        outputs={"poller-1-001.out": '{"event": "stream finished"}'},
        secrets=[SECRET],
        inserted=len(first),
        starts=4,
        faults=2,
        page=PAGE,
    )


def history(change: Callable[[History], dict[str, Any]]) -> Change:
    return lambda run: replace(run, history=replace(run.history, **change(run.history)))


def without_row(id: str, sha256: str) -> Change:
    """It is in the log, and its row is gone."""
    return history(lambda h: {"rows": [row for row in h.rows if h.fact(row) != (id, sha256)]})


def nowhere(id: str, sha256: str) -> Change:
    """Neither in the log nor in the store; what stood behind it in the log moves up."""

    def change(h: History) -> dict[str, Any]:
        log = [record for record in h.log if h.fact(record) != (id, sha256)]
        log = [record._replace(offset=n) for n, record in enumerate(log)]
        first: dict[str, Stored] = {}
        for record in log:
            first.setdefault(record.event_id, Stored(record.event_id, record.key, 0, record.offset, record.sha256))
        return {"log": log, "rows": [*first.values()], "ends": {0: len(log)}, "offsets": {0: len(log)}}

    return history(change)


def cursor(n: int, **changes: Any) -> Change:
    return history(lambda h: {"cursors": [*h.cursors[:n], h.cursors[n]._replace(**changes), *h.cursors[n + 1 :]]})


def record(n: int, **changes: Any) -> Change:
    return history(lambda h: {"log": [*h.log[:n], h.log[n]._replace(**changes), *h.log[n + 1 :]]})


def sizes(*looks: Size) -> Change:
    return lambda run: replace(run, sizes={"poller-1-001": looks})


def says(text: str) -> Change:
    return lambda run: replace(run, outputs={"consumer-1-001.out": f"{text}\n"})


MUTATIONS: dict[str, tuple[Change, str]] = {
    "a row is dropped": (without_row("evt_9", "sha-9"), "lost: "),
    "a record is neither in the log nor in the store": (nowhere("evt_9", "sha-9"), "is how the record is now"),
    "a version is skipped that a cursor stood for": (nowhere(f"evt_{CHANGED}", f"sha-{CHANGED}"), "before it changed"),
    "the store is empty": (history(lambda h: {"rows": []}), "lost: "),
    "a row is there twice": (history(lambda h: {"rows": [*h.rows, h.rows[2]]}), "twice: "),
    "a row is invented": (history(lambda h: {"rows": [*h.rows, h.rows[2]._replace(sha256="x")]}), "never served"),
    "two rows have each other's payload": (
        history(
            lambda h: {
                "rows": [
                    h.rows[0]._replace(sha256=h.rows[1].sha256),
                    h.rows[1]._replace(sha256=h.rows[0].sha256),
                    *h.rows[2:],
                ]
            }
        ),
        "differs from its record",
    ),
    "two records of a key change places": (
        history(
            lambda h: {
                "log": [
                    h.log[1]._replace(offset=h.log[0].offset),
                    h.log[0]._replace(offset=h.log[1].offset),
                    *h.log[2:],
                ]
            }
        ),
        "out of order",
    ),
    "a key is in two partitions": (record(-1, partition=1), "is in the partitions"),
    "a cursor is saved under an old fence": (cursor(3, lease=3), "under the fence 2 when the lease had 3"),
    "a cursor goes back": (cursor(3, cursor=json.dumps({"high_water": instant(START)}).encode()), "mark went back"),
    "an old poller saves behind the new one": (cursor(2, fence=1, lease=1), "after one under 2"),
    "the store is behind the log": (history(lambda h: {"offsets": {0: 20}}), "the store stands at"),
    "the store's offset goes back": (
        lambda run: replace(run, moved=[*run.moved, Moved(0, run.moved[-1].after, 9)]),
        "the store's offset of partition 0 went from",
    ),
    "the store's offset jumps": (
        lambda run: replace(run, moved=[run.moved[0], run.moved[2]]),
        "the store's offset of partition 0 was 16, not 8",
    ),
    "Kafka's offset is ahead of the store": (
        lambda run: replace(run, committed=[Committed({0: 9}, {0: 8})]),
        "Kafka has offset 9 of partition 0, the store 8",
    ),
    "Kafka's offset goes back": (
        lambda run: replace(run, committed=[*run.committed, Committed({0: 8}, {0: 24})]),
        "Kafka's offset of partition 0 went from 16 to 8",
    ),
    "everything is published again and again": (
        history(lambda h: {"log": [*h.log] * 5}),
        "records of the log are repeated",
    ),
    "a process is too large": (sizes(Size(3.0, 400_000_000, 20)), "took 400 MB"),
    "a process has too many files open": (sizes(Size(3.0, 60_000_000, 500)), "500 files open"),
    "a process grows": (sizes(*(Size(float(n), 60_000_000 + 100_000 * n, 20) for n in range(600))), "grew by"),
    "a process leaves files open": (
        sizes(*(Size(float(n), 60_000_000, 20 + n // 20) for n in range(600))),
        "more files open after",
    ),
    "a log shows a secret": (says(f"GET /events Bearer {SECRET}"), "shows the secret"),
    "a process prints a traceback": (says("Traceback (most recent call last):"), "says: Traceback"),
    "an error is looked at by nobody": (says("Task exception was never retrieved"), "never retrieved"),
    "a process tries again and again without a pause": (
        lambda run: replace(run, outputs={"poller-1-001.out": "cannot publish yet\n" * 20_000}),
        "wrote 20000 lines",
    ),
    "more is counted than is there": (lambda run: replace(run, inserted=21), "say that they inserted 21 rows"),
}


def test_a_sound_run_gets_no_complaint() -> None:
    assert complaints(sound()) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checker_of_a_run_finds_that(name: str) -> None:
    change, complaint = MUTATIONS[name]
    found = complaints(change(sound()))
    assert any(complaint in one for one in found), found


def test_a_cursor_that_was_saved_before_its_page_was_appended_is_found() -> None:
    run = sound()
    late = [record._replace(at=record.at + 60_000) for record in run.history.log]
    found = list(endurance.ahead_of_the_log(replace(run, history=replace(run.history, log=late))))
    assert len(found) == len(run.made)
    assert "which was appended to the log at" in found[0]


def test_a_version_that_was_replaced_before_any_cursor_stood_for_it_may_be_missing() -> None:
    run = sound()
    changed = [one for one in run.made if one.id == f"evt_{CHANGED}"]
    soon = [one._replace(at=changed[0].at + 1) if one == changed[1] else one for one in run.made]
    soon.sort(key=lambda one: one.at)
    gone = nowhere(f"evt_{CHANGED}", f"sha-{CHANGED}")(replace(run, made=soon))
    assert list(endurance.lost(gone)) == []


FAULT = Fault(0, 5.0, "poller_kill", "pollers", 1.0)
STRUCK = {"what": "struck", "n": 0, "kind": "poller_kill"}
HEALED = {"what": "healed", "n": 0, "kind": "poller_kill"}


def test_a_fault_that_was_drawn_and_did_not_strike_is_found() -> None:
    assert operations_complaints([STRUCK, HEALED], [FAULT]) == []
    assert "drawn and not struck" in operations_complaints([HEALED], [FAULT])[0]
    assert "drawn and not healed" in operations_complaints([STRUCK], [FAULT])[0]


def test_only_a_process_that_has_said_nothing_may_end_by_sigterm_itself() -> None:
    ended = {"what": "ended", "process": "poller-1-001", "code": -15, "silent": True}
    assert operations_complaints([STRUCK, HEALED, ended], [FAULT]) == []
    assert operations_complaints([STRUCK, HEALED, {**ended, "silent": False}], [FAULT])


def kept_from_writing(
    process: str = "poller-1-001", *, locked: float, asked: float, released: float, kind: str = "file_lock"
) -> list[str]:
    """What is said of a process that was asked to stop at `asked` and ended with 1 when its grace was over, while the
    file was locked, or Postgres away, from `locked` to `released`."""
    fault = Fault(0, 5.0, kind, "file", 40.0)
    lines: list[dict[str, Any]] = [
        {"t": locked, "what": "struck", "n": 0, "kind": kind},
        {"t": asked, "what": "asked to stop", "process": process},
        {"t": asked + GRACE, "what": "ended", "process": process, "code": 1, "silent": False},
        {"t": released, "what": "healed", "n": 0, "kind": kind},
    ]
    return operations_complaints(lines, [fault])


@pytest.mark.parametrize("kind", ["file_lock", "postgres_kill"])
@pytest.mark.parametrize("process", ["poller-1-001", "consumer-1-001"])
def test_a_process_that_was_kept_from_writing_for_all_of_its_grace_may_end_with_1(process: str, kind: str) -> None:
    assert kept_from_writing(process, locked=100.0, asked=101.0, released=101.0 + GRACE + 0.1, kind=kind) == []


@pytest.mark.parametrize(
    "found",
    [
        kept_from_writing(locked=100.0, asked=101.0, released=101.0 + GRACE - 0.1),
        kept_from_writing(locked=102.0, asked=101.0, released=150.0),
        kept_from_writing(locked=100.0, asked=101.0, released=150.0, kind="net_delay"),
    ],
    ids=["released in time", "the lock came later", "it could write"],
)
def test_no_other_process_may_end_with_1_while_the_file_is_locked(found: list[str]) -> None:
    assert len(found) == 1
    assert "-1-001 ended with 1" in found[0]


@pytest.mark.parametrize("code", [1, 2, 130, -11])
def test_a_process_that_ended_as_none_should_is_found(code: int) -> None:
    ended = {"what": "ended", "process": "poller-1-001", "code": code, "silent": True}
    assert f"poller-1-001 ended with {code}" in operations_complaints([STRUCK, HEALED, ended], [FAULT])
