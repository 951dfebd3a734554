"""Waits for the first of several."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first(*waits: Coroutine[Any, Any, object]) -> None:
    """Until one of them is done; the others are cancelled. Raises what that one raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
