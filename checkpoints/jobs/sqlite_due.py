"""When the next job is due that a worker would take, in the SQLite file."""

import sqlite3

from checkpoints.jobs import Want
from checkpoints.jobs.sqlite_rows import array, moment, running_of

FULL_FOR = 1000  # milliseconds: what waits behind a cap may be due at any moment; look again after so long
FOR_EVER = 2**63 - 1  # paused_until: until a person says otherwise


def due(connection: sqlite3.Connection, want: Want) -> float | None:
    now = moment(connection)
    full = f"q.max_running <= {running_of('queue', 'q.name')}"
    pending = """jobs AS p WHERE p.source = s.name AND p.state = 'pending'
        AND (?2 = '[]' OR p.kind IN (SELECT value FROM json_each(?2)))"""
    shut = f"(SELECT q.name FROM queues AS q WHERE {full})"
    (found,) = connection.execute(
        f"""SELECT min(max(at, coalesce(paused_until, 0), CASE WHEN is_full THEN ?1 + {FULL_FOR} ELSE 0 END)) FROM (
                SELECT s.paused_until,
                    coalesce(s.limited_to, s.max_running) <= {running_of("source", "s.name")} AS is_full,
                    (SELECT min(p.run_at) FROM {pending} AND p.queue NOT IN {shut}) AS at
                FROM sources AS s WHERE (?3 = '[]' OR s.name IN (SELECT value FROM json_each(?3)))
                UNION ALL
                SELECT s.paused_until, true,
                    (SELECT min(p.run_at) FROM {pending} AND p.queue IN {shut}) AS at
                FROM sources AS s WHERE (?3 = '[]' OR s.name IN (SELECT value FROM json_each(?3)))
                    AND EXISTS (SELECT 1 FROM queues AS q WHERE {full})
            ) WHERE at IS NOT NULL""",
        (now, array(want.kinds), array(want.sources)),
    ).fetchone()
    return None if found is None or found == FOR_EVER else max(0.0, (found - now) / 1000)
