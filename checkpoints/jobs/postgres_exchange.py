"""One transaction of a worker with the queue: what ended is written down, and jobs are claimed.

Caps hold because whoever claims locks the source's row, and those of the queues that have a cap, in one statement, and
counts what runs in the next, whose snapshot is younger than the locks. Rows that another holds are passed over; only
who finds nothing else waits for the lock of a source, and holds none of another meanwhile. Which rows were locked
travels from one statement to the next in settings of the transaction, so that the first goes out with BEGIN.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from asyncpg import LockNotAvailableError

from checkpoints.jobs import Ended, Exchanged, Job, Outcome, Want
from checkpoints.jobs.postgres_claim import QUEUE, claiming, locking, made
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
    missed: str  # SOURCE, QUEUE or nothing


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
    if want is not None:
        first += [f"SET LOCAL lock_timeout = '{LOCK_WAIT}'", locking(want, patient)] if patient else [locking(want)]
    async with postgres.transaction("; ".join(first)) as connection:
        jobs: list[Job] = []
        missed = ""
        if want is None:
            row = await connection.fetchrow(f"WITH {REPORT} SELECT lost, died, folds FROM report", *_pairs(ended))
            assert row is not None
        else:
            rows = await connection.fetch(
                claiming(want, by_age), *_pairs(ended), worker, timedelta(seconds=want.ttl), want.number
            )
            row, missed = rows[0], rows[0]["missed"]
            jobs = [made(one) for one in rows if one["id"] is not None]
        if row["folds"]:
            await fold(connection, row["died"])
    return _Found(row["lost"], row["died"], jobs, missed)


def _pairs(ended: Sequence[Ended]) -> tuple[list[int], list[int]]:
    return [one.id for one in ended], [one.fence for one in ended]
