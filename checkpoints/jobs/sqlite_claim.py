"""Jobs are claimed: within the caps of sources and queues, the source that waited longest first."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checkpoints.jobs import Job, Want
from checkpoints.jobs.sqlite_rows import GUARDED, array, millis, running_of


class Ripe(NamedTuple):
    """A source with a job that is due and may run."""

    name: str
    room: int | None  # below its cap; None: it has none


def ripe(connection: sqlite3.Connection, want: Want, now: int) -> list[Ripe]:
    """The one that waited longest first."""
    rows = connection.execute(
        f"""SELECT s.name, coalesce(s.limited_to, s.max_running) - {running_of("source", "s.name")} AS room
            FROM sources AS s
            WHERE (s.paused_until IS NULL OR s.paused_until <= ?1)
                AND (?3 = '[]' OR s.name IN (SELECT value FROM json_each(?3))) AND coalesce(room, 1) > 0
                AND EXISTS (SELECT 1 FROM jobs AS p WHERE p.source = s.name AND {_taken(want)})
            ORDER BY s.last_claim_at NULLS FIRST, s.name LIMIT ?4""",
        (now, array(want.kinds), array(want.sources), want.number),
    )
    return [Ripe(*row) for row in rows.fetchall()]


def _taken(want: Want) -> str:
    """What narrows the jobs `p` down to those that may be claimed: ?1 is the time, ?2 the kinds."""
    kinds = " AND p.kind IN (SELECT value FROM json_each(?2))" if want.kinds else ""
    return f"""p.state = 'pending' AND p.run_at <= ?1{kinds} AND p.queue NOT IN (
            SELECT q.name FROM queues AS q WHERE q.max_running <= {running_of("queue", "q.name")})
        AND (p.overlap IS NULL OR p.overlap NOT IN {GUARDED} OR NOT EXISTS (
            SELECT 1 FROM jobs AS r WHERE r.source = p.source AND r.state = 'running' AND r.schedule = p.schedule
                AND r.overlap IN {GUARDED}))"""


def claim(connection: sqlite3.Connection, worker: str, want: Want, now: int, *, by_age: bool) -> list[Job]:
    """`by_age`: the earliest jobs of a source, whatever their priority."""
    order = "run_at, id" if by_age else "priority, run_at, id"
    offers = []
    for source in ripe(connection, want, now):
        rows = connection.execute(
            f"""SELECT id, queue, CASE WHEN overlap IN {GUARDED} THEN schedule END FROM jobs AS p
                WHERE p.source = ?3 AND {_taken(want)} ORDER BY {order} LIMIT ?4""",
            (
                now,
                array(want.kinds),
                source.name,
                want.number if source.room is None else min(want.number, source.room),
            ),
        ).fetchall()
        offers.append([_Offer(*row) for row in rows])
    rooms = connection.execute(
        f"SELECT name, max_running - {running_of('queue', 'name')} FROM queues WHERE max_running IS NOT NULL"
    ).fetchall()
    chosen = list(_deal(offers, dict(rooms), want.number))
    return _run(connection, worker, chosen, now, millis(want.ttl)) if chosen else []


class _Offer(NamedTuple):
    id: int
    queue: str
    schedule: str | None  # of which only one job may run


def _deal(offers: Sequence[Sequence[_Offer]], rooms: dict[str, int], number: int) -> Iterator[int]:
    """Each source gives one, then each another. `rooms`: of the queues that have a cap."""
    schedules = set()
    for turn in range(max(map(len, offers), default=0)):
        for offered in offers:
            if turn >= len(offered) or number == 0:
                continue
            id, queue, schedule = offered[turn]
            if rooms.get(queue, 1) > 0 and (schedule is None or schedule not in schedules):
                if queue in rooms:
                    rooms[queue] -= 1
                schedules.add(schedule)
                number -= 1
                yield id


def _run(connection: sqlite3.Connection, worker: str, ids: Sequence[int], now: int, ttl: int) -> list[Job]:
    rows = connection.execute(
        """UPDATE jobs SET state = 'running', attempts = attempts + 1, fence = fence + 1, worker = ?2, claimed_at = ?3,
               lease_until = ?3 + ?4, cancel_requested = 0
           WHERE id IN (SELECT value FROM json_each(?1)) AND state = 'pending'
           RETURNING priority, run_at, id, fence, kind, source, queue, payload, attempts, max_attempts, schedule,
               tick_at, tick_from""",
        (array(ids), worker, now, ttl),
    ).fetchall()
    rows.sort(key=lambda row: row[:3])  # RETURNING has an order of its own
    jobs = [_job(now, *row) for row in rows]
    connection.executemany(
        "INSERT INTO attempts (job, fence, attempt, worker, started_at) VALUES (?, ?, ?, ?, ?)",
        [(job.id, job.fence, job.attempt, worker, now) for job in jobs],
    )
    connection.execute(  # two claims may come in one millisecond, and one is the later
        """UPDATE sources SET last_claim_at = (SELECT max(?1, 1 + coalesce(max(last_claim_at), 0)) FROM sources)
           WHERE name IN (SELECT value FROM json_each(?2))""",
        (now, array({job.source for job in jobs})),
    )
    return jobs


def _job(
    now: int,
    _priority: int,
    run_at: int,
    id: int,
    fence: int,
    kind: str,
    source: str,
    queue: str,
    payload: str,
    attempts: int,
    max_attempts: int,
    schedule: str | None,
    tick_at: int | None,
    tick_from: int | None,
) -> Job:
    ticks = (None if at is None else at / 1000 for at in (tick_at, tick_from))
    return Job(
        id,
        fence,
        kind,
        source,
        queue,
        payload.encode(),
        attempts,
        max_attempts,
        run_at / 1000,
        now / 1000,
        schedule,
        *ticks,
    )
