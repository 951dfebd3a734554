"""What becomes of a job when an attempt ends, in SQL that both engines read alike.

`said` is what the worker says (outcome, reason), `j` the job's row as it is until then.
"""

from checkpoints.jobs import ERROR_LIMIT, LAST_ERROR_LIMIT, MAX_RELEASES, Ended
from checkpoints.jobs.gist import TRACEBACK

FREE = f"said.outcome = 'released' AND j.releases < {MAX_RELEASES}"
"""The attempt is given back."""
STATE = f"""CASE
    WHEN said.outcome = 'done' THEN 'done'
    WHEN said.outcome IN ('dead', 'cancelled') OR j.cancel_requested THEN 'dead'
    WHEN {FREE} THEN 'pending'
    WHEN j.attempts >= j.max_attempts THEN 'dead'
    ELSE 'pending' END"""
REASON = f"""CASE
    WHEN said.outcome = 'done' THEN NULL
    WHEN said.outcome = 'dead' THEN coalesce(said.reason, 'permanent')
    WHEN said.outcome = 'cancelled' OR j.cancel_requested THEN 'cancelled'
    WHEN {FREE} THEN NULL
    WHEN j.attempts >= j.max_attempts THEN 'exhausted' END"""
CHANGES = f"""state = {STATE}, dead_reason = {REASON},
    attempts = j.attempts - CASE WHEN {FREE} AND NOT j.cancel_requested THEN 1 ELSE 0 END,
    releases = j.releases + CASE WHEN said.outcome = 'released' THEN 1 ELSE 0 END,
    worker = NULL, lease_until = NULL, progress = coalesce(said.progress, j.progress),
    last_error_class = CASE WHEN said.outcome <> 'done' THEN coalesce(said.error_class, j.last_error_class) END,
    last_error = CASE WHEN said.outcome <> 'done' THEN coalesce(said.last_error, j.last_error) END"""
"""Apart from the times, which each engine has in its own form."""
OUTCOME = """CASE
    WHEN e.state = 'done' THEN 'done'
    WHEN e.dead_reason = 'cancelled' THEN 'cancelled'
    WHEN e.state = 'dead' THEN 'dead'
    ELSE e.outcome END"""
"""Of the attempt, `e` being the row as it is now and what was said."""


def errors(ended: Ended) -> tuple[str | None, str | None]:
    """The text for the attempt's row and for the job's."""
    if ended.error is None:
        return None, None
    text = ended.error.replace("\0", "\ufffd")  # Postgres has no form for it
    last = text[-LAST_ERROR_LIMIT:] if text.startswith(TRACEBACK) else text[:LAST_ERROR_LIMIT]
    return text[:ERROR_LIMIT], last
