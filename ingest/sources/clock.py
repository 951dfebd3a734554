"""Where time comes from; tests bring their own."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import NamedTuple


class Clock(NamedTuple):
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


SYSTEM = Clock()


def moment(wall: float) -> str:
    """RFC 3339, in UTC; empty where the calendar has no such time."""
    try:
        return f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return ""
