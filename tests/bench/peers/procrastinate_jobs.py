"""Procrastinate's worker with concurrency 10 on jobs that do nothing: `python procrastinate_jobs.py URL N`.

They are deferred in batches before, which is not measured. Prints the seconds that the rest took.
"""

import asyncio
import sys
import time

import procrastinate

BATCH = 1000
CONCURRENCY = 10


async def main(url: str, number: int) -> None:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=2 * CONCURRENCY))
    done = 0

    @app.task(name="nothing")
    async def nothing(n: int) -> None:
        nonlocal done
        done += 1

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for first in range(0, number, BATCH):
            await nothing.batch_defer_async(*({"n": n} for n in range(first, min(first + BATCH, number))))
        began = time.perf_counter()
        await app.run_worker_async(
            concurrency=CONCURRENCY, wait=False, listen_notify=False, install_signal_handlers=False
        )
        print("seconds", time.perf_counter() - began)
    print("jobs", done)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
