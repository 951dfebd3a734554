"""What ended is written down, where the claim is still the one that it was, in statements that hold their values."""

from collections.abc import Sequence

from checkpoints.jobs import Ended, Outcome
from checkpoints.jobs.ending import CHANGES, OUTCOME, STATE, errors
from checkpoints.jobs.postgres_rows import NOW
from ingest.postgres import literal

REPORT = """
    report AS MATERIALIZED (
        -- what was ended by an earlier try whose answer did not arrive is as good as done now; `lost` is its rescuer's
        SELECT coalesce(array_agg(id) FILTER (WHERE outcome IS NULL OR outcome = 'lost'), '{}') AS lost,
            coalesce(array_agg(id) FILTER (WHERE outcome IN ('dead', 'cancelled')), '{}') AS died,
            coalesce(bool_or(CASE WHEN outcome IN ('dead', 'cancelled') THEN (
                SELECT schedule IS NOT NULL FROM ingest.jobs AS j WHERE j.id = said.id) END), false) AS folds
        FROM (SELECT id, (SELECT outcome FROM ingest.attempts AS a WHERE a.job = u.id AND a.fence = u.fence) AS outcome
              FROM unnest($1::bigint[], $2::bigint[]) AS u (id, fence)) AS said)"""


def finishing(worker: str, ended: Sequence[Ended]) -> list[str]:
    """A row that is no longer ours is not touched. In the order of ids: two who meet do not block each other."""
    plain = sorted((one.id, one.fence) for one in ended if _is_plain(one))
    others = sorted((one for one in ended if not _is_plain(one)), key=lambda one: one.id)
    return ([_done(worker, plain)] if plain else []) + ([_ended(worker, others)] if others else [])


def _is_plain(one: Ended) -> bool:
    """What nearly all of them are, at half the cost of the others."""
    return one.outcome is Outcome.DONE and one.progress is None


def _done(worker: str, pairs: Sequence[tuple[int, int]]) -> str:
    """By a function of the database: a session keeps its plan."""
    ids, fences = (",".join(map(str, column)) for column in zip(*pairs, strict=True))
    return f"SELECT ingest.finish_jobs({literal(worker)}, '{{{ids}}}', '{{{fences}}}')"


def _ended(worker: str, ended: Sequence[Ended]) -> str:
    return f"""
        WITH said (id, fence, outcome, delay, error_class, error, last_error, reason, progress) AS (
            VALUES {", ".join(map(_said, ended))}),
        ended AS (
            UPDATE ingest.jobs AS j
            SET {CHANGES},
                run_at = CASE WHEN {STATE} = 'pending'
                    THEN clock_timestamp() + make_interval(secs => said.delay) ELSE j.run_at END,
                finished_at = CASE WHEN {STATE} <> 'pending' THEN clock_timestamp() END
            FROM said WHERE j.id = said.id AND j.fence = said.fence AND j.state = 'running'
            RETURNING j.id, j.fence, j.source, j.state, j.dead_reason, j.run_at, j.claimed_at, said.outcome,
                said.error_class, said.error),
        written AS (
            UPDATE ingest.attempts AS a
            SET ended_at = clock_timestamp(), outcome = {OUTCOME}, error_class = e.error_class, error = e.error,
                retry_at = CASE WHEN e.state = 'pending' THEN e.run_at END
            FROM ended AS e WHERE a.job = e.id AND a.fence = e.fence)
        INSERT INTO ingest.tallies AS t (source, minute, worker, done, failed, seconds)
        SELECT source, date_trunc('minute', {NOW}), {literal(worker)},
            count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state <> 'done'),
            sum(extract(epoch FROM clock_timestamp() - claimed_at))
        FROM ended WHERE outcome IN ('done', 'retry', 'dead') GROUP BY source ORDER BY source
        ON CONFLICT (source, minute, worker) DO UPDATE
            SET done = t.done + excluded.done, failed = t.failed + excluded.failed,
                seconds = t.seconds + excluded.seconds"""


def _said(one: Ended) -> str:
    error, last_error = errors(one)
    texts = (one.error_class, error, last_error, one.reason)
    progress = None if one.progress is None else one.progress.decode()
    return (
        f"({one.id}::bigint, {one.fence}::bigint, '{one.outcome}', {max(0.0, one.delay)!r}::float8,"
        f" {', '.join(f'{literal(text)}::text' for text in texts)}, {literal(progress)}::json)"
    )
