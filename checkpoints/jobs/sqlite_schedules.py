"""Schedules and their ticks in the SQLite file. The port is in `checkpoints.jobs`.

Every change is one IMMEDIATE transaction, and a firing looks before it begins one: of many replicas that find the same
tick, those that come late lock nobody out. The clock is read once in a transaction.
"""

import sqlite3
from collections.abc import Sequence

from checkpoints.jobs import (
    NEVER,
    NOT_CONFIGURED,
    Fire,
    Fired,
    Firing,
    NewJob,
    Overlap,
    Schedule,
    ScheduleSpec,
    State,
    Tick,
    TickOutcome,
)
from checkpoints.jobs.overlap import GUARD, SUPERSEDED, Live, in_the_way, why
from checkpoints.jobs.sqlite_folding import fold
from checkpoints.jobs.sqlite_rows import array, millis, moment
from ingest.errors import ConfigError
from ingest.sqlite import Database


class SqliteSchedules:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def declare(self, specs: Sequence[ScheduleSpec], prefix: str | None = "") -> Sequence[str]:
        return await self._database.write(lambda connection: _declare(connection, specs, prefix))

    async def load(self, ids: Sequence[str]) -> Sequence[Schedule]:
        return await self._database.read(lambda connection: _load(connection, ids))

    async def fire(self, firing: Firing, decided_by: str) -> Fired:
        if not await self._database.read(lambda connection: _as_read(connection, firing)):
            return Fired((), 0)
        return await self._database.write(lambda connection: _fire(connection, firing, decided_by))

    async def trigger(self, id: str, job: NewJob, decided_by: str, overlap: Overlap) -> int | None:
        return await self._database.write(lambda connection: _trigger(connection, id, job, decided_by, overlap))

    async def pause(self, id: str, note: str | None) -> bool:
        def pause(connection: sqlite3.Connection) -> bool:
            statement = "UPDATE schedules SET paused_at = coalesce(paused_at, ?), note = ? WHERE id = ?"
            return connection.execute(statement, (moment(connection), note, id)).rowcount == 1

        return await self._database.write(pause)

    async def resume(self, id: str, *, catch_up: bool) -> bool:
        def resume(connection: sqlite3.Connection) -> bool:
            return (
                connection.execute(
                    """UPDATE schedules SET paused_at = NULL, note = NULL, cursor_at = min(cursor_at, ?1),
                           resumed_at = CASE WHEN ?2 THEN NULL WHEN paused_at IS NULL THEN resumed_at ELSE ?1 END
                       WHERE id = ?3""",
                    (moment(connection), catch_up, id),
                ).rowcount
                == 1
            )

        return await self._database.write(resume)

    async def ticks(self, id: str, outcomes: Sequence[TickOutcome], limit: int) -> Sequence[Tick]:
        return await self._database.read(lambda connection: _ticks(connection, id, outcomes, limit))


def _declare(connection: sqlite3.Connection, specs: Sequence[ScheduleSpec], prefix: str | None) -> list[str]:
    now = moment(connection)
    new = []
    for spec in specs:
        begins = millis(NEVER) if spec.fires_at_once else now
        fresh = connection.execute(
            "INSERT INTO schedules (id, spec, digest, cursor_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (spec.id, spec.spec, spec.digest, begins),
        ).rowcount
        if fresh:
            new.append(spec.id)
            continue
        connection.execute(
            """UPDATE schedules SET spec = ?2, digest = ?3, absent = 0,
                   cursor_at = CASE WHEN digest <> ?3 OR absent THEN ?4 ELSE cursor_at END WHERE id = ?1""",
            (spec.id, spec.spec, spec.digest, now),
        )
    connection.execute(
        """UPDATE schedules SET absent = 1
           WHERE substr(id, 1, length(?1)) = ?1 AND id NOT IN (SELECT value FROM json_each(?2))""",
        (prefix, array([spec.id for spec in specs])),
    )
    return new


def _load(connection: sqlite3.Connection, ids: Sequence[str]) -> list[Schedule]:
    now = moment(connection)
    rows = connection.execute(
        """SELECT id, spec, digest, cursor_at, paused_at IS NOT NULL OR absent,
               CASE WHEN absent THEN coalesce(note, ?2) ELSE note END, resumed_at,
               (SELECT min(j.id) FROM jobs AS j WHERE j.schedule = s.id AND j.state IN ('pending', 'running'))
           FROM schedules AS s WHERE ?1 = '[]' OR id IN (SELECT value FROM json_each(?1)) ORDER BY id""",
        (array(ids), NOT_CONFIGURED),
    ).fetchall()
    return [
        Schedule(
            id=id, spec=spec, digest=digest, cursor_at=cursor_at / 1000, now=now / 1000, paused=bool(paused), note=note,
            resumed_at=None if resumed_at is None else resumed_at / 1000, running=running,
        )
        for id, spec, digest, cursor_at, paused, note, resumed_at, running in rows
    ]  # fmt: skip


def _as_read(connection: sqlite3.Connection, firing: Firing) -> bool:
    """Nobody has decided, edited or paused it since."""
    row = connection.execute(
        "SELECT 1 FROM schedules WHERE id = ? AND digest = ? AND cursor_at = ? AND paused_at IS NULL AND NOT absent",
        (firing.id, firing.digest, millis(firing.cursor_at)),
    ).fetchone()
    return row is not None


def _fire(connection: sqlite3.Connection, firing: Firing, decided_by: str) -> Fired:
    if not _as_read(connection, firing):
        return Fired((), 0)
    now = moment(connection)
    connection.execute("UPDATE schedules SET cursor_at = ? WHERE id = ?", (millis(firing.cursor_to), firing.id))
    skipped = 0
    for skip in firing.skips:
        if _add_tick(connection, firing.id, skip.tick_at, skip.outcome, skip.covers, skip.note, now, decided_by):
            skipped += skip.covers
    enqueued = []
    for fire in firing.fires:
        if not _add_tick(connection, firing.id, fire.tick_at, TickOutcome.ENQUEUED, 1, None, now, decided_by):
            continue
        before = _live(connection, firing.id, firing.overlap)
        job = _add_job(connection, firing.id, firing.job, firing.overlap, before, fire, millis(fire.run_at), now)
        outcome, note = (TickOutcome.ENQUEUED, None) if job else (TickOutcome.SKIPPED_OVERLAP, _note(firing, before))
        connection.execute(
            "UPDATE ticks SET job = ?, outcome = ?, note = ? WHERE schedule = ? AND tick_at = ?",
            (job, outcome.value, note, firing.id, millis(fire.tick_at)),
        )
        if job is None:
            skipped += 1
        else:
            enqueued.append((fire.tick_at, job))
    return Fired(enqueued, skipped)


def _note(firing: Firing, live: Sequence[Live]) -> str:
    return why(in_the_way(firing.overlap, live))


def _add_tick(
    connection: sqlite3.Connection, id: str, tick_at: float, outcome: TickOutcome, covers: int, note: str | None,
    now: int, decided_by: str,
) -> bool:  # fmt: skip
    """False: it has been decided."""
    return (
        connection.execute(
            """INSERT INTO ticks (schedule, tick_at, outcome, covers, note, decided_at, decided_by)
               VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING""",
            (id, millis(tick_at), outcome.value, covers, note, now, decided_by),
        ).rowcount
        == 1
    )


def _live(connection: sqlite3.Connection, id: str, overlap: Overlap) -> list[Live]:
    if overlap is Overlap.ALLOW:
        return []  # there may be many, and none is in the way
    rows = connection.execute(
        """SELECT id, state, fence, attempts, max_attempts FROM jobs
           WHERE schedule = ? AND state IN ('pending', 'running') ORDER BY id""",
        (id,),
    ).fetchall()
    return [Live(job, State(state), *numbers) for job, state, *numbers in rows]


def _add_job(
    connection: sqlite3.Connection, id: str, job: NewJob, overlap: Overlap, live: Sequence[Live], fire: Fire | None,
    run_at: int, now: int, note: str | None = None,
) -> int | None:  # fmt: skip
    """None: another job of the schedule is in the way."""
    if in_the_way(overlap, live) is not None:
        return None
    connection.execute("INSERT INTO sources (name) VALUES (?) ON CONFLICT DO NOTHING", (job.source,))
    rows = connection.execute(
        """INSERT INTO jobs (kind, source, queue, payload, priority, run_at, max_attempts, schedule, tick_at, tick_from,
               overlap, created_at, note)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING id""",
        (
            job.kind, job.source, job.queue, job.payload.decode(), job.priority, run_at, job.max_attempts, id,
            None if fire is None else millis(fire.tick_at),
            None if fire is None or fire.tick_from is None else millis(fire.tick_from),
            GUARD.get(overlap), now, note,
        ),
    ).fetchall()  # fmt: skip
    if not rows:
        return None
    if overlap is Overlap.CANCEL_PREVIOUS:
        _cancel(connection, live, now)
    return int(rows[0][0])


def _cancel(connection: sqlite3.Connection, live: Sequence[Live], now: int) -> None:
    """A running job is asked to end; one that waits for another try has no other."""
    ids = array([one.id for one in live])
    connection.execute(
        """UPDATE jobs SET cancel_requested = 1, note = ?2
           WHERE id IN (SELECT value FROM json_each(?1)) AND state = 'running'""",
        (ids, SUPERSEDED),
    )
    dead = connection.execute(
        """UPDATE jobs SET state = 'dead', dead_reason = 'cancelled', finished_at = ?2, note = ?3
           WHERE id IN (SELECT value FROM json_each(?1)) AND state = 'pending' AND fence > 0 RETURNING id""",
        (ids, now, SUPERSEDED),
    ).fetchall()
    fold(connection, [id for (id,) in dead])


def _trigger(connection: sqlite3.Connection, id: str, job: NewJob, decided_by: str, overlap: Overlap) -> int | None:
    if connection.execute("SELECT 1 FROM schedules WHERE id = ?", (id,)).fetchone() is None:
        raise ConfigError(f"there is no schedule `{id}`")
    now = moment(connection)
    run_at = now if job.run_at is None else millis(job.run_at)
    live, note = _live(connection, id, overlap), f"triggered by {decided_by}"
    return _add_job(connection, id, job, overlap, live, None, run_at, now, note)


def _ticks(connection: sqlite3.Connection, id: str, outcomes: Sequence[TickOutcome], limit: int) -> list[Tick]:
    rows = connection.execute(
        """SELECT schedule, tick_at, outcome, covers, job, note, decided_at, decided_by FROM ticks
           WHERE schedule = ?1 AND (?2 = '[]' OR outcome IN (SELECT value FROM json_each(?2)))
           ORDER BY tick_at DESC LIMIT ?3""",
        (id, array([one.value for one in outcomes]), limit),
    ).fetchall()
    return [
        Tick(schedule, tick_at / 1000, TickOutcome(outcome), covers, job, note, decided_at / 1000, decided_by)
        for schedule, tick_at, outcome, covers, job, note, decided_at, decided_by in rows
    ]
