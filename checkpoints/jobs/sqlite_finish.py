"""What ended is written down, where the claim is still the one that it was."""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checkpoints.jobs import Ended, Outcome
from checkpoints.jobs.ending import CHANGES, STATE, errors
from checkpoints.jobs.sqlite_folding import fold
from checkpoints.jobs.sqlite_rows import MINUTE, array, millis

FAILED = ("retry", "dead")


class _Row(NamedTuple):
    """A job as it is now."""

    id: int
    fence: int
    source: str
    state: str
    dead_reason: str | None
    run_at: int
    claimed_at: int
    schedule: str | None


ROW = ", ".join(_Row._fields)


def finish(
    connection: sqlite3.Connection, worker: str, ended: Sequence[Ended], now: int
) -> tuple[list[int], list[int]]:
    """The ids of those whose claim is no longer ours, and of those that are dead now."""
    said = {one.id: one for one in ended}
    done = [one for one in said.values() if one.outcome is Outcome.DONE]
    others = [one for one in said.values() if one.outcome is not Outcome.DONE]
    rows = (_are_done(connection, done, now) if done else []) + (_end(connection, others, now) if others else [])
    _count(connection, worker, said, rows, now)
    died = [row.id for row in rows if row.state == "dead"]
    if folding := [row.id for row in rows if row.state == "dead" and row.schedule is not None]:
        fold(connection, folding)
    if len(rows) == len(said):
        return [], died
    lost, died_before = _looked_at(connection, [said[id] for id in said.keys() - {row.id for row in rows}])
    return lost, died + died_before


def _are_done(connection: sqlite3.Connection, ended: Sequence[Ended], now: int) -> list[_Row]:
    """What nearly all of them are, at less than half the cost of `_end`."""
    found = connection.execute(
        f"""WITH said AS (
                SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS fence,
                    json_extract(value, '$[2]') AS progress FROM json_each(?1))
            UPDATE jobs AS j
            SET state = 'done', finished_at = ?2, worker = NULL, lease_until = NULL,
                progress = coalesce(said.progress, j.progress), last_error_class = NULL, last_error = NULL
            FROM said WHERE j.id = said.id AND j.fence = said.fence AND j.state = 'running' RETURNING {ROW}""",
        (array([one.id, one.fence, _text(one.progress)] for one in ended), now),
    ).fetchall()
    rows = [_Row(*row) for row in found]
    connection.executemany(
        "UPDATE attempts SET ended_at = ?, outcome = 'done' WHERE job = ? AND fence = ?",
        [(now, row.id, row.fence) for row in rows],
    )
    return rows


def _end(connection: sqlite3.Connection, ended: Sequence[Ended], now: int) -> list[_Row]:
    found = connection.execute(
        f"""WITH said AS (
                SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS fence,
                    json_extract(value, '$[2]') AS outcome, json_extract(value, '$[3]') AS delay,
                    json_extract(value, '$[4]') AS error_class, json_extract(value, '$[5]') AS last_error,
                    json_extract(value, '$[6]') AS reason, json_extract(value, '$[7]') AS progress
                FROM json_each(?1))
            UPDATE jobs AS j
            SET {CHANGES},
                run_at = CASE WHEN {STATE} = 'pending' THEN ?2 + said.delay ELSE j.run_at END,
                finished_at = CASE WHEN {STATE} <> 'pending' THEN ?2 END
            FROM said WHERE j.id = said.id AND j.fence = said.fence AND j.state = 'running' RETURNING {ROW}""",
        (array(map(_said, ended)), now),
    ).fetchall()
    rows = [_Row(*row) for row in found]
    _write_attempts(connection, {one.id: one for one in ended}, rows, now)
    return rows


def _text(progress: bytes | None) -> str | None:
    return None if progress is None else progress.decode()


def _said(one: Ended) -> list[object]:
    _, last_error = errors(one)
    return [
        one.id, one.fence, one.outcome, max(0, millis(one.delay)), one.error_class, last_error, one.reason,
        _text(one.progress),
    ]  # fmt: skip


def _write_attempts(connection: sqlite3.Connection, said: Mapping[int, Ended], rows: Sequence[_Row], now: int) -> None:
    connection.executemany(
        """UPDATE attempts SET ended_at = ?, error_class = ?, error = ?, retry_at = ?, outcome = ?
           WHERE job = ? AND fence = ?""",
        [
            (
                now,
                said[row.id].error_class,
                errors(said[row.id])[0],
                row.run_at if row.state == "pending" else None,
                _outcome(row, said[row.id]),
                row.id,
                row.fence,
            )
            for row in rows
        ],
    )


def _outcome(row: "_Row", said: Ended) -> str:
    """As `OUTCOME` has it."""
    if row.dead_reason == "cancelled":
        return row.dead_reason
    return said.outcome if row.state == "pending" else row.state


def _count(
    connection: sqlite3.Connection, worker: str, said: Mapping[int, Ended], rows: Sequence[_Row], now: int
) -> None:
    done, failed, took = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        if row.state == "done" or said[row.id].outcome in FAILED:
            (done if row.state == "done" else failed)[row.source] += 1
            took[row.source] += now - row.claimed_at
    for source, time in took.items():
        connection.execute(
            """INSERT INTO tallies AS t (source, minute, worker, done, failed, seconds) VALUES (?, ?, ?, ?, ?, ?)
               ON CONFLICT (source, minute, worker) DO UPDATE
                   SET done = t.done + excluded.done, failed = t.failed + excluded.failed,
                       seconds = t.seconds + excluded.seconds""",
            (source, now - now % MINUTE, worker, done[source], failed[source], time / 1000),
        )


def _looked_at(connection: sqlite3.Connection, refused: Sequence[Ended]) -> tuple[list[int], list[int]]:
    """What was ended by an earlier try whose answer did not arrive is as good as done now; `lost` is its rescuer's."""
    lost, died = [], []
    for one in refused:
        row = connection.execute(
            "SELECT outcome FROM attempts WHERE job = ? AND fence = ?", (one.id, one.fence)
        ).fetchone()
        if row is None or row[0] in (None, "lost"):
            lost.append(one.id)
        elif row[0] in ("dead", "cancelled"):
            died.append(one.id)
    return lost, died
