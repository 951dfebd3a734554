"""When the next job is due that a worker would take, in the SQLite file."""

import sqlite3

from checkpoints.jobs import Want
from checkpoints.jobs.sqlite_rows import array, moment, running_of

FULL_FOR = 1000  # milliseconds: what waits behind a cap may be due at any moment; look again after so long
FOR_EVER = 2**63 - 1  # paused_until: until a person says otherwise


def due(connection: sqlite3.Connection, want: Want) -> float | None:
    now = moment(connection)
    shut = connection.execute(
        f"SELECT name FROM queues AS q WHERE max_running <= {running_of('queue', 'q.name')}"
    ).fetchall()
    if not shut:  # the index alone answers
        found = [_first(connection, want, now, "", "[]", 0)]
    else:
        names = array(name for (name,) in shut)
        found = [
            _first(connection, want, now, " AND p.queue NOT IN (SELECT value FROM json_each(?4))", names, 0),
            _first(connection, want, now, " AND p.queue IN (SELECT value FROM json_each(?4))", names, now + FULL_FOR),
        ]
    at = min((one for one in found if one is not None), default=FOR_EVER)
    return None if at == FOR_EVER else max(0.0, (at - now) / 1000)


def _first(connection: sqlite3.Connection, want: Want, now: int, queues: str, shut: str, not_before: int) -> int | None:
    """When the first job of `queues` is due; what waits behind a cap or a pause, when that may end.

    Of many that are due any one will do: a backlog behind a cap is not read through each time a job of it ends."""
    kinds = " AND p.kind IN (SELECT value FROM json_each(?2))" if want.kinds else ""
    pending = f"p.source = s.name AND p.state = 'pending'{kinds}{queues}"
    found: int | None
    (found,) = connection.execute(
        f"""SELECT min(max(at, ?5, coalesce(paused_until, 0), CASE WHEN is_full THEN ?1 + {FULL_FOR} ELSE 0 END)) FROM (
                SELECT s.paused_until,
                    coalesce(s.limited_to, s.max_running) <= {running_of("source", "s.name")} AS is_full,
                    coalesce(
                        (SELECT p.run_at FROM jobs AS p WHERE {pending} AND p.run_at <= ?1 LIMIT 1),
                        (SELECT min(p.run_at) FROM jobs AS p WHERE {pending})) AS at
                FROM sources AS s WHERE (?3 = '[]' OR s.name IN (SELECT value FROM json_each(?3))))
            WHERE at IS NOT NULL""",
        (now, array(want.kinds), array(want.sources), shut, not_before),
    ).fetchone()
    return found
