"""Claims of workers without a sign of life are given back. A worker whose process has ended is known at once: its
presence is gone, and nobody waits for the end of its claims."""

import random
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from checkpoints.jobs import Rescued
from checkpoints.jobs.rescuing import (
    DOUBLINGS,
    ERROR,
    ERROR_CLASS,
    FIRST_DELAY,
    FLEET,
    FLEET_SHARE,
    LIMIT,
    LONGEST_DELAY,
    REASON,
    dies,
)
from checkpoints.jobs.sqlite_folding import fold
from checkpoints.jobs.sqlite_rows import MINUTE, millis, moment, shown_as
from ingest.presence import Presence

LEFT = 0  # lease_until of a claim whose worker has stopped


class _Claim(NamedTuple):
    id: int
    worker: str
    lease_until: int
    rescues: int


def look(connection: sqlite3.Connection, presence: Presence, grace: float) -> bool:
    """Whether there is anything to rescue."""
    return bool(_lost(connection, presence, moment(connection) - millis(grace))[0])


def rescue(connection: sqlite3.Connection, presence: Presence, grace: float) -> list[Rescued]:
    now = moment(connection)
    lost, away = _lost(connection, presence, now - millis(grace))
    rows = [row for one in lost for row in _give_back(connection, one, now, away)]
    if folding := [row.id for row in rows if row.dead and row.schedule is not None]:
        fold(connection, folding)
    return [Rescued(row.id, row.kind, row.source, row.worker, bool(row.dead)) for row in rows]


def _lost(connection: sqlite3.Connection, presence: Presence, until: int) -> tuple[list[_Claim], bool]:
    """The claims that are lost, and whether it was the fleet."""
    claims = [
        _Claim(*row)
        for row in connection.execute(
            "SELECT id, worker, lease_until, rescues FROM jobs WHERE state = 'running' ORDER BY lease_until, id"
        ).fetchall()
    ]
    gone = {worker for worker in {one.worker for one in claims} if presence.gone(shown_as(worker))}
    lost = [one for one in claims if one.lease_until < until or one.worker in gone]
    unasked = sum(one.lease_until != LEFT for one in lost)
    return lost[:LIMIT], unasked >= FLEET and unasked > len(claims) * FLEET_SHARE


class _Row(NamedTuple):
    id: int
    kind: str
    source: str
    worker: str
    dead: int
    schedule: str | None


def _give_back(connection: sqlite3.Connection, claim: _Claim, now: int, away: bool) -> Sequence[_Row]:
    delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(claim.rescues, DOUBLINGS)) * random.uniform(0.5, 1.0)
    dead = dies("?1")
    rows = connection.execute(
        f"""UPDATE jobs AS j SET rescues = rescues + 1, state = CASE WHEN {dead} THEN 'dead' ELSE 'pending' END,
                dead_reason = CASE WHEN {dead} THEN {REASON} END, finished_at = CASE WHEN {dead} THEN ?2 END,
                run_at = CASE WHEN {dead} THEN run_at ELSE ?3 END,
                lease_until = NULL, worker = NULL, last_error_class = '{ERROR_CLASS}', last_error = {ERROR}
            WHERE id = ?4 AND state = 'running'
            RETURNING id, kind, source, fence, state = 'dead', schedule, run_at, claimed_at, last_error""",
        (away, now, now + millis(delay), claim.id),
    ).fetchall()
    for id, _kind, source, fence, died, _schedule, run_at, claimed_at, error in rows:
        connection.execute(
            """UPDATE attempts SET ended_at = ?, outcome = 'lost', error_class = ?, error = ?, retry_at = ?
               WHERE job = ? AND fence = ?""",
            (now, ERROR_CLASS, error, None if died else run_at, id, fence),
        )
        connection.execute(
            """INSERT INTO tallies AS t (source, minute, worker, failed, seconds) VALUES (?, ?, ?, 1, ?)
               ON CONFLICT (source, minute, worker) DO UPDATE
                   SET failed = t.failed + 1, seconds = t.seconds + excluded.seconds""",
            (source, now - now % MINUTE, claim.worker, (now - claimed_at) / 1000),
        )
    return [_Row(id, kind, source, claim.worker, died, schedule) for id, kind, source, _, died, schedule, *_ in rows]
