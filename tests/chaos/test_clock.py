"""The wall clock of a poller and a consumer is set by an hour while they work: no timer is stuck, nothing is lost."""

import asyncio
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.configuration import CONSUMER
from tests.chaos.pipeline import PAGE, RECORDS, Pipeline
from tests.chaos.processes import until
from tests.harness.clock import Clock, ingest
from tests.harness.fake_api import numbered
from tests.harness.faults import ok, rate_limited, slow
from tests.harness.processes import Child

HOUR = 3600


@asynccontextmanager
async def stepped(pipeline: Pipeline, clock: Clock) -> AsyncIterator[list[Child]]:
    """The two commands, with this clock."""
    configuration = pipeline.folder / "ingest.yaml"
    configuration.write_text(configuration.read_text().replace("      events:\n", "      events:\n        every: 1s\n"))
    children = [
        Child(
            ingest(*words, "--ops", "off"),
            log=pipeline.folder / f"{words[0]}.log",
            env={**pipeline.env, **clock.environment},
            cwd=pipeline.folder,
        )
        for words in (["run"], ["consume", CONSUMER])
    ]
    try:
        yield children
    finally:
        for child in children:
            child.kill()


async def tells(clock: Clock) -> float:
    """What time it is to a process with this clock, less what it is to us."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import time; print(time.time())"),
        env=clock.environment,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return float(out) - time.time()


@pytest.mark.parametrize("seconds", [HOUR, -HOUR], ids=["forward", "back"])
async def test_a_clock_that_is_set_by_an_hour_holds_nobody_up_and_loses_nothing(
    pipeline: Pipeline, tmp_path: Path, seconds: int
) -> None:
    clock = Clock(tmp_path / "clock")
    pipeline.api.misbehave([ok, ok, rate_limited("2"), *[slow(0.2)] * 4])
    async with stepped(pipeline, clock) as (poller, consumer):

        async def reaches(count: int, what: str) -> None:
            async def stored() -> bool:
                assert poller.returncode is consumer.returncode is None, poller.last_words() + consumer.last_words()
                return await pipeline.stored() >= count

            await until(stored, lambda: f"{what}\n{poller.last_words()}\n{consumer.last_words()}")

        await reaches(PAGE, "the first page")
        clock.step(seconds)
        assert abs(await tells(clock) - seconds) < HOUR / 2
        await reaches(RECORDS, "all that there is")
        if pipeline.place.bootstrap is None:
            await until(lambda: leases_stand_at(pipeline, seconds), lambda: f"leases are held\n{poller.last_words()}")
        pipeline.listing.replace(numbered(RECORDS + PAGE))
        await reaches(RECORDS + PAGE, "what comes afterwards")
        for child in (poller, consumer):
            child.send(signal.SIGTERM)

        async def ended() -> bool:
            return None not in (poller.returncode, consumer.returncode)

        await until(ended, poller.last_words)
        assert (poller.returncode, consumer.returncode) == (0, 0), poller.last_words() + consumer.last_words()
    await pipeline.proves(repeats=PAGE, drained=True)


async def leases_stand_at(pipeline: Pipeline, seconds: int) -> bool:
    """All leases of a file, whose clock is the machine's, were renewed or taken again by the new one."""
    connection = sqlite3.connect(f"file:{pipeline.place.database}?mode=ro", uri=True)
    try:
        rows = connection.execute(
            "SELECT (renewed_at / 1000 - CAST(strftime('%s', 'now') AS INTEGER)), expires_at FROM leases"
        ).fetchall()
    finally:
        connection.close()
    return len(rows) == 2 and all(abs(renewed - seconds) < HOUR / 2 and expires > 0 for renewed, expires in rows)
