"""Our queue on jobs that do nothing, claimed and finished in batches: `python -m tests.bench.jobs URL N SLOTS`.

They are enqueued before, which is not measured. Prints the seconds that the rest took.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from checkpoints.jobs import Ended, Job, Jobs, NewJob, Outcome, Want
from checkpoints.jobs.postgres import open_jobs
from checkpoints.jobs.sqlite import SqliteJobs
from ingest.postgres import open_postgres
from ingest.sqlite import open_database, path_of
from migrations.runner import migrate

BATCH = 1000


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Jobs]:
    if url.startswith("sqlite"):
        await migrate(url)
        async with open_database(path_of(url)) as database:
            yield SqliteJobs(database)
    else:
        async with open_postgres(url) as postgres, open_jobs(postgres) as jobs:
            yield jobs


async def nothing(job: Job) -> Ended:
    return Ended(job.id, job.fence, Outcome.DONE)


async def main(url: str, number: int, slots: int) -> None:
    async with opened(url) as jobs:
        for first in range(0, number, BATCH):
            new = [NewJob("nothing", "bench", b'{"n": %d}' % n) for n in range(first, min(first + BATCH, number))]
            await jobs.enqueue(new)
        began, done = time.perf_counter(), 0
        ended: Sequence[Ended] = ()
        while True:
            lost, _, claimed = await jobs.exchange("bench:1:x", ended, Want(slots))
            done += len(ended) - len(lost)
            if not claimed:
                break
            ended = await asyncio.gather(*map(nothing, claimed))
        print("seconds", time.perf_counter() - began)
    print("jobs", done)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
