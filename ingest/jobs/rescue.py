"""Gives jobs back whose worker gives no sign of life. Every worker does it; each lost claim is answered once."""

import asyncio
import random
import time

import structlog

from checkpoints.jobs import Jobs
from ingest import metrics
from ingest.errors import ConfigError, StoreUnavailable

log = structlog.get_logger()

RESCUE_EVERY = 5.0  # seconds; ± JITTER
JITTER = 0.2
RESCUE_GRACE = 2.0  # seconds behind the end of a claim, by the database's clock


async def rescue_forever(jobs: Jobs, every: float = RESCUE_EVERY, grace: float = RESCUE_GRACE) -> None:
    """Until cancelled. Who was frozen itself gives the others a turn to renew their claims before it looks."""
    pause = 0.0
    while True:
        asked = time.monotonic()
        await asyncio.sleep(pause)
        overslept = time.monotonic() - asked > pause + every
        pause = every * random.uniform(1 - JITTER, 1 + JITTER)
        if overslept:
            continue
        try:
            rescued = await jobs.rescue(grace)
        except (StoreUnavailable, ConfigError):  # whoever claims says so
            continue
        for one in rescued:
            metrics.rescued.labels(one.source).inc()
            facts = {"job": one.id, "kind": one.kind, "source": one.source, "worker": one.worker}
            if one.dead:
                log.error("the job is dead: its workers were lost one after the other", **facts)
            else:
                log.warning("rescued a job: its worker gave no sign of life", **facts)
