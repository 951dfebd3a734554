"""A process that is told to stop ends, whatever runs in it."""

import asyncio
import sys

import pytest

PROCESS = """
import asyncio, sys, time
from ingest import signals

signals.LAST = 0.2

async def blocks():
    time.sleep(600)

async def ignores():
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

async def ends(stop):
    await stop.wait()

async def main(name):
    async with signals.stopping(grace=0.2 if name != "ends" else 600) as state, asyncio.TaskGroup() as group:
        print("ready", flush=True)
        group.create_task(ends(state.stop) if name == "ends" else globals()[name]())

asyncio.run(main(sys.argv[1]))
"""
PATIENCE = 60.0  # seconds


@pytest.mark.parametrize(("work", "code"), [("blocks", 1), ("ignores", 1), ("ends", 0)])
async def test_a_process_ends_after_a_signal_even_where_its_work_does_not(work: str, code: int) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROCESS, work, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"ready\n"
        process.terminate()
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == code
        assert (b"does not let itself be stopped" in said) is (code == 1)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
