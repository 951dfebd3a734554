"""New jobs in the SQLite file, none beside an equal one."""

import sqlite3
from collections.abc import Sequence

from checkpoints.jobs import Enqueued, NewJob
from checkpoints.jobs.sqlite_rows import millis, moment


def enqueue(connection: sqlite3.Connection, jobs: Sequence[NewJob]) -> list[Enqueued]:
    now = moment(connection)
    connection.executemany(
        "INSERT INTO sources (name) VALUES (?) ON CONFLICT DO NOTHING",
        [(name,) for name in {one.source for one in jobs}],
    )
    found = []
    for job in jobs:
        equal = None if job.dedupe_key is None else _equal(connection, job, now)
        if equal is not None:
            found.append(Enqueued(equal, False))
            continue
        [[id]] = connection.execute(
            """INSERT INTO jobs (kind, source, queue, payload, priority, run_at, max_attempts, dedupe_key, dedupe_for,
                   created_at)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id""",
            (
                job.kind,
                job.source,
                job.queue,
                job.payload.decode(),
                job.priority,
                now if job.run_at is None else millis(job.run_at),
                job.max_attempts,
                job.dedupe_key,
                millis(job.dedupe_for) if job.dedupe_key is not None and job.dedupe_for > 0 else None,
                now,
            ),
        ).fetchall()
        found.append(Enqueued(id, True))
    return found


def _equal(connection: sqlite3.Connection, job: NewJob, now: int) -> int | None:
    row = connection.execute(
        """SELECT id FROM jobs WHERE dedupe_key = ?1 AND dedupe_key IS NOT NULL AND state IN ('pending', 'running')
           UNION ALL
           SELECT id FROM jobs WHERE dedupe_key = ?1 AND dedupe_for IS NOT NULL AND state = 'done' AND finished_at > ?2
           LIMIT 1""",
        (job.dedupe_key, now - millis(job.dedupe_for)),
    ).fetchone()
    return None if row is None else int(row[0])
