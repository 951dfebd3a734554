"""What becomes of a job whose worker gave no sign of life, in SQL that both engines read alike.

`j` is the job's row as it is until then. Where most claims were lost together, the fleet or the database was away and
the jobs are not to blame: none dies of it. But a job that ends its process takes its neighbours with it every time, and
looks just like that; so twice as many attempts are the end of it.
"""

FLEET, FLEET_SHARE = 10, 0.5  # claims lost at once, and their share in all, from which on it was the fleet
FIRST_DELAY, LONGEST_DELAY, DOUBLINGS = 5.0, 900.0, 8  # seconds, twice as long each time
LIMIT = 1000  # claims that one call answers
ERROR_CLASS = "LeaseExpired"


def dies(spared: str) -> str:
    """`spared`: whether it was the fleet."""
    return f"(j.cancel_requested OR j.attempts >= j.max_attempts * CASE WHEN {spared} THEN 2 ELSE 1 END)"


REASON = "CASE WHEN j.cancel_requested THEN 'cancelled' ELSE 'exhausted' END"
ERROR = "'worker ' || j.worker || ' gave no sign of life any more'"
