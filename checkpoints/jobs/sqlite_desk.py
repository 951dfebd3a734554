"""Jobs as people see and steer them, in the SQLite file. The port is in `desk`, what is decided in `rulings`."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence

from checkpoints.jobs import State
from checkpoints.jobs.desk import (
    BATCH,
    FOREVER,
    TALLIES_KEPT,
    WORKERS_KEPT,
    Attempt,
    Filter,
    Listed,
    Row,
    Ruling,
    Shown,
    SourceRow,
    SourceSummary,
    Summary,
    Swept,
    Upkeep,
    WorkerRow,
)
from checkpoints.jobs.rulings import Live, Standing, cancelled, granted, hastened, requeued
from checkpoints.jobs.selecting import among, columns, condition, made
from ingest.sqlite import NOW_MS, Database, wal_bytes

NEVER = 9223372036854775807  # a pause that a person ends
HOUR = 3_600_000  # milliseconds


def _moment(column: str) -> str:
    return f"{column} / 1000.0"


class SqliteDesk:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def summary(self) -> Summary:
        return await self._database.read(_summary)

    async def list(self, chosen: Filter, limit: int) -> Listed:
        return await self._database.read(lambda connection: _list(connection, chosen, limit))

    async def find(self, chosen: Filter) -> Sequence[int]:
        where, values = condition(chosen, "?{}".format)
        statement = f"SELECT id FROM jobs WHERE {where} ORDER BY id"
        return await self._database.read(lambda connection: [id for (id,) in connection.execute(statement, values)])

    async def show(self, id: int) -> Shown | None:
        return await self._database.read(lambda connection: _show(connection, id))

    async def requeue(self, ids: Sequence[int], by: str, *, spread: float = 0.0, dry: bool = False) -> Sequence[Ruling]:
        if dry:
            return await self._database.read(lambda connection: _rule_requeue(connection, ids))
        return await self._database.write(lambda connection: _requeue(connection, ids, by, spread))

    async def cancel(self, ids: Sequence[int], by: str, *, dry: bool = False) -> Sequence[Ruling]:
        if dry:
            return await self._database.read(lambda connection: cancelled(ids, _standing(connection, ids)))
        return await self._database.write(lambda connection: _cancel(connection, ids, by))

    async def run_now(self, ids: Sequence[int], by: str) -> Sequence[Ruling]:
        return await self._database.write(lambda connection: _run_now(connection, ids, by))

    async def sweep(self, keep_done: float, keep_ticks: float) -> Swept:
        jobs = await self._database.write(lambda connection: _sweep_jobs(connection, keep_done))
        ticks = await self._database.write(lambda connection: _sweep_ticks(connection, keep_ticks))
        return Swept(jobs, ticks, await self._database.write(_sweep_others))

    async def sources(self) -> Sequence[SourceRow]:
        return await self._database.read(_sources)

    async def pause(self, source: str, seconds: float, note: str) -> None:
        await self._database.write(lambda connection: _pause(connection, source, seconds, note))

    async def resume(self, source: str) -> bool:
        return await self._database.write(lambda connection: _resume(connection, source))

    async def limit(self, source: str, number: int | None) -> None:
        statement = """INSERT INTO sources (name, limited_to) VALUES (?, ?)
                       ON CONFLICT (name) DO UPDATE SET limited_to = excluded.limited_to"""
        await self._database.write(lambda connection: connection.execute(statement, (source, number)).fetchall())

    async def upkeep(self) -> Upkeep:
        return Upkeep(await asyncio.to_thread(wal_bytes, self._database.path), None)

    async def workers(self) -> Sequence[WorkerRow]:
        return await self._database.read(_workers)


def _now(connection: sqlite3.Connection) -> int:
    return int(connection.execute(f"SELECT {NOW_MS}").fetchone()[0])


def _summary(connection: sqlite3.Connection) -> Summary:
    now = _now(connection)
    rows = connection.execute(SUMMARY, {"now": now, "hour_ago": now - HOUR, "never": NEVER}).fetchall()
    return Summary(now / 1000, [made(SourceSummary, row) for row in rows])


def _list(connection: sqlite3.Connection, chosen: Filter, limit: int) -> Listed:
    where, values = condition(chosen, "?{}".format)
    rows = connection.execute(
        f"SELECT {columns(Row, _moment)} FROM jobs WHERE {where} ORDER BY id DESC LIMIT {int(limit)}", values
    )
    return Listed(_now(connection) / 1000, [made(Row, row) for row in rows.fetchall()])


def _show(connection: sqlite3.Connection, id: int) -> Shown | None:
    row = connection.execute(f"SELECT {columns(Row, _moment)}, payload FROM jobs WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    *fields, payload = row
    attempts = connection.execute(
        f"SELECT {columns(Attempt, _moment)} FROM attempts WHERE job = ? ORDER BY fence", (id,)
    ).fetchall()
    return Shown(_now(connection) / 1000, made(Row, fields), payload, [made(Attempt, one) for one in attempts])


def _standing(connection: sqlite3.Connection, ids: Sequence[int]) -> list[Standing]:
    now = _now(connection)
    rows = connection.execute(
        f"""SELECT j.id, j.state, j.dead_reason, j.dedupe_key, j.schedule, j.overlap, j.fence, j.run_at <= :now,
                coalesce(s.paused_until > :now, 0)
            FROM jobs j LEFT JOIN sources s ON s.name = j.source WHERE j.id IN {among(ids)}""",
        {"now": now},
    ).fetchall()
    return [Standing(id, State(state), *others) for id, state, *others in rows]


def _rule_requeue(connection: sqlite3.Connection, ids: Sequence[int]) -> list[Ruling]:
    found = _standing(connection, ids)
    keys, schedules = json.dumps([j.dedupe_key for j in found]), json.dumps([j.schedule for j in found])
    live = connection.execute(LIVE, {"keys": keys, "schedules": schedules}).fetchall()
    return requeued(ids, found, [Live(id, State(state), *others) for id, state, *others in live])


def _requeue(connection: sqlite3.Connection, ids: Sequence[int], by: str, spread: float) -> list[Ruling]:
    rulings = _rule_requeue(connection, ids)
    chosen = among(granted(rulings))
    connection.execute(FORGET.format(chosen))
    connection.execute(
        REQUEUE.format(chosen),
        {"now": _now(connection), "spread": round(spread * 1000), "note": f"requeued by {by}"},
    )
    return rulings


def _cancel(connection: sqlite3.Connection, ids: Sequence[int], by: str) -> list[Ruling]:
    rulings = cancelled(ids, _standing(connection, ids))
    chosen, note = among(granted(rulings)), f"cancelled by {by}"
    connection.execute(FORGET.format(chosen))
    connection.execute(
        f"UPDATE jobs SET cancel_requested = 1, note = ? WHERE id IN {chosen} AND state = 'running'", (note,)
    )
    connection.execute(
        f"""UPDATE jobs SET state = 'dead', dead_reason = 'cancelled', note = ?, finished_at = coalesce(finished_at, ?)
            WHERE id IN {chosen} AND state IN ('pending', 'dead')""",
        (note, _now(connection)),
    )
    return rulings


def _run_now(connection: sqlite3.Connection, ids: Sequence[int], by: str) -> list[Ruling]:
    rulings = hastened(ids, _standing(connection, ids))
    connection.execute(
        f"UPDATE jobs SET run_at = :now, note = :note WHERE id IN {among(granted(rulings))} AND run_at > :now",
        {"now": _now(connection), "note": f"run at once by {by}"},
    )
    return rulings


def _sweep_jobs(connection: sqlite3.Connection, keep: float) -> int:
    before = _now(connection) - round(keep * 1000)
    return sum(connection.execute(statement, (before,)).rowcount for statement in SWEEP_JOBS)


def _sweep_ticks(connection: sqlite3.Connection, keep: float) -> int:
    return connection.execute(SWEEP_TICKS, (_now(connection) - round(keep * 1000),)).rowcount


def _sweep_others(connection: sqlite3.Connection) -> int:
    now = _now(connection)
    tallies = connection.execute(SWEEP_TALLIES, (now - round(TALLIES_KEPT * 1000),)).rowcount
    workers = connection.execute("DELETE FROM workers WHERE beat_at < ?", (now - round(WORKERS_KEPT * 1000),)).rowcount
    return max(tallies, workers)


def _sources(connection: sqlite3.Connection) -> list[SourceRow]:
    rows = connection.execute(SOURCES, {"now": _now(connection), "never": NEVER}).fetchall()
    return [made(SourceRow, row) for row in rows]


def _pause(connection: sqlite3.Connection, source: str, seconds: float, note: str) -> None:
    until = NEVER if seconds == FOREVER else min(NEVER, _now(connection) + round(seconds * 1000))
    connection.execute(
        """INSERT INTO sources (name, paused_until, pause_note) VALUES (?, ?, ?)
           ON CONFLICT (name) DO UPDATE SET paused_until = excluded.paused_until, pause_note = excluded.pause_note""",
        (source, until, note),
    )


def _resume(connection: sqlite3.Connection, source: str) -> bool:
    resumed = connection.execute(
        "UPDATE sources SET paused_until = NULL, pause_note = NULL WHERE name = ? AND paused_until > ?",
        (source, _now(connection)),
    )
    return resumed.rowcount > 0


def _workers(connection: sqlite3.Connection) -> list[WorkerRow]:
    now = _now(connection)
    rows = connection.execute(
        f"""SELECT name, host, pid, version, slots, kinds, sources, running, lost, stopping,
                {_moment("started_at")}, (? - beat_at) / 1000.0
            FROM workers ORDER BY started_at DESC, name""",
        (now,),
    ).fetchall()
    return [
        made(WorkerRow, (*head, json.loads(kinds), json.loads(sources), *tail))
        for *head, kinds, sources, r, lost, stopping, started, silent in rows
        for tail in ((r, lost, stopping, started, silent),)
    ]


_PAUSED = """CASE WHEN s.paused_until = :never THEN 9e999 WHEN s.paused_until > :now THEN s.paused_until / 1000.0 END,
        CASE WHEN s.paused_until > :now THEN s.pause_note END"""

SUMMARY = """
    WITH live AS (
        SELECT source,
            count(*) FILTER (WHERE state = 'pending' AND run_at <= :now) AS ready,
            count(*) FILTER (WHERE state = 'pending' AND run_at > :now AND attempts = 0) AS scheduled,
            count(*) FILTER (WHERE state = 'pending' AND run_at > :now AND attempts > 0) AS retrying,
            count(*) FILTER (WHERE state = 'running') AS running,
            count(*) FILTER (WHERE state = 'running' AND lease_until < :now) AS expired,
            count(*) FILTER (WHERE state = 'dead' AND dead_reason IS NOT 'cancelled') AS dead,
            min(run_at) FILTER (WHERE state = 'pending' AND run_at <= :now) / 1000.0 AS oldest_ready_at,
            min(run_at) FILTER (WHERE state = 'pending' AND run_at > :now) / 1000.0 AS next_at
        FROM (
            SELECT source, state, run_at, attempts, lease_until, dead_reason FROM jobs WHERE state = 'pending'
            UNION ALL
            SELECT source, state, run_at, attempts, lease_until, dead_reason FROM jobs WHERE state = 'running'
            UNION ALL
            SELECT source, state, run_at, attempts, lease_until, dead_reason FROM jobs WHERE state = 'dead')
        GROUP BY source),
    names AS (SELECT name FROM sources UNION SELECT source FROM live),
    hour AS (
        SELECT t.source, sum(done) AS done, sum(failed) AS failed, sum(seconds) AS seconds
        FROM names n JOIN tallies t ON t.source = n.name AND t.minute > :hour_ago GROUP BY t.source)
    SELECT n.name,
        coalesce(ready, 0), coalesce(scheduled, 0), coalesce(retrying, 0), coalesce(running, 0),
        coalesce(expired, 0), coalesce(dead, 0), oldest_ready_at, next_at,
        coalesce(h.done, 0), coalesce(h.failed, 0), coalesce(h.seconds, 0.0),
        coalesce(s.limited_to, s.max_running), PAUSED
    FROM names n LEFT JOIN sources s ON s.name = n.name LEFT JOIN live l ON l.source = n.name
    LEFT JOIN hour h ON h.source = n.name
    ORDER BY n.name""".replace("PAUSED", _PAUSED)

SOURCES = """
    SELECT s.name, s.max_running, s.limited_to,
        (SELECT count(*) FROM jobs j WHERE j.source = s.name AND j.state = 'pending'),
        (SELECT count(*) FROM jobs j WHERE j.source = s.name AND j.state = 'running'),
        PAUSED, s.last_claim_at / 1000.0
    FROM sources s ORDER BY s.name""".replace("PAUSED", _PAUSED)

LIVE = """
    SELECT id, state, dedupe_key, schedule, overlap, fence FROM jobs
    WHERE dedupe_key IN (SELECT value FROM json_each(:keys)) AND state IN ('pending', 'running')
    UNION
    SELECT id, state, dedupe_key, schedule, overlap, fence FROM jobs
    WHERE schedule IN (SELECT value FROM json_each(:schedules)) AND state IN ('pending', 'running')"""

FORGET = """
    DELETE FROM incidents WHERE subject IN (
        SELECT coalesce(schedule, CAST(id AS TEXT)) FROM jobs WHERE id IN {})"""
"""The incident is over: a person has looked at it."""

REQUEUE = """
    UPDATE jobs SET state = 'pending', attempts = 0, rescues = 0, releases = 0, deaths = 0,
        run_at = :now + abs(random() % (:spread + 1)), note = :note,
        dead_reason = NULL, finished_at = NULL, cancel_requested = 0, progress = NULL
    WHERE id IN {}"""

SWEEP_JOBS = (
    f"""DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE state = 'done' AND finished_at < ?
        AND (dedupe_for IS NULL OR finished_at + dedupe_for < {NOW_MS}) ORDER BY finished_at LIMIT {BATCH})""",
    f"""DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE state = 'dead' AND dead_reason = 'cancelled'
        AND finished_at < ? LIMIT {BATCH})""",
)

SWEEP_TICKS = f"""
    DELETE FROM ticks WHERE (schedule, tick_at) IN (
        SELECT schedule, tick_at FROM ticks WHERE decided_at < ? ORDER BY decided_at LIMIT {BATCH})"""

SWEEP_TALLIES = f"""
    DELETE FROM tallies WHERE (source, minute, worker) IN (
        SELECT source, minute, worker FROM tallies WHERE minute < ? LIMIT {BATCH})"""
