"""One transaction of a worker with the queue: what ended is written down, and jobs are claimed."""

import asyncio
import random
from collections.abc import Sequence
from typing import NamedTuple

from asyncpg import LockNotAvailableError

from checkpoints.jobs import Ended, Exchanged, Job, Outcome, Want
from checkpoints.jobs.postgres_claim import QUEUE, claim, made, missed
from checkpoints.jobs.postgres_finish import REPORT, finishing
from checkpoints.jobs.postgres_folding import fold
from checkpoints.jobs.postgres_rows import RING
from ingest.errors import StoreUnavailable
from ingest.postgres import Postgres

TRIES = 5  # for a source that others are claiming from just now
LOCK_WAIT = "2s"
PAUSE = (0.005, 0.020)  # seconds, uniform: for a queue that others are claiming from; nobody waits for its lock


class _Found(NamedTuple):
    lost: Sequence[int]
    died: Sequence[int]
    jobs: Sequence[Job]
    missed: str  # a source, a queue or nothing


async def exchange(
    postgres: Postgres, worker: str, ended: Sequence[Ended], want: Want | None, *, by_age: bool
) -> Exchanged:
    """`by_age`: the earliest jobs of a source, whatever their priority."""
    found = await _once(postgres, worker, ended, want, by_age)
    for _ in range(TRIES):
        if found.jobs or not found.missed or want is None:
            break
        if found.missed == QUEUE:
            await asyncio.sleep(random.uniform(*PAUSE))
        try:
            later = await _once(postgres, worker, (), want, by_age, patient=True)
            found = found._replace(jobs=later.jobs, missed=later.missed)
        except StoreUnavailable as exc:
            if isinstance(exc.__cause__, LockNotAvailableError):  # in vain; what ended is written down
                break
            raise
    return Exchanged(found.lost, found.died, found.jobs)


async def _once(
    postgres: Postgres, worker: str, ended: Sequence[Ended], want: Want | None, by_age: bool, *, patient: bool = False
) -> _Found:
    first: list[str] = []
    if ended:
        first += finishing(worker, ended)
        if any(one.outcome is Outcome.RELEASED and one.delay <= 0 for one in ended):
            first.append(RING)
    if patient:
        first.append(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
    async with postgres.transaction("; ".join(first)) as connection:
        reported = [one.id for one in ended], [one.fence for one in ended]
        passed_over = ""
        if want is None:
            rows = await connection.fetch(f"WITH {REPORT} SELECT lost, died, folds, NULL AS id FROM report", *reported)
        else:
            rows = await claim(connection, reported, worker, want, by_age, patient)
            if rows[0]["id"] is None:
                passed_over = await missed(connection)
        if rows[0]["folds"]:
            await fold(connection, rows[0]["died"])
    jobs = [made(row) for row in rows if row["id"] is not None]
    return _Found(rows[0]["lost"], rows[0]["died"], jobs, passed_over)
