"""Deletes what is old: jobs that are done, ticks that are decided. Every worker does it now and then."""

import asyncio
import random

import structlog

from checkpoints.jobs.desk import JobDesk, clean
from ingest.errors import ConfigError, StoreUnavailable

log = structlog.get_logger()

TIDY_EVERY = 3600.0  # seconds; half of it to one and a half, so that workers do not come together
FIRST = 600.0  # seconds at most until the first time: a process may not live for an hour


async def tidy_forever(desk: JobDesk, keep_done: float, keep_ticks: float) -> None:
    """Until cancelled. `keep_done` and `keep_ticks`: seconds."""
    pause = random.uniform(0, FIRST)
    while True:
        await asyncio.sleep(pause)
        pause = TIDY_EVERY * random.uniform(0.5, 1.5)
        try:
            swept = await clean(desk, keep_done, keep_ticks)
        except (StoreUnavailable, ConfigError) as exc:
            log.warning("what is old could not be deleted; it is tried again", error=str(exc))
        else:
            log.info("deleted what is old", jobs=swept.jobs, ticks=swept.ticks)
