"""Where a fault strikes, and how it is known that it did.

A fault is an async context: entered when it has struck (a process is seen dead, a broker is seen gone), left when it is
healed. One that had no effect raises NoEffect.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from tests.chaos.fleet import Fleet, Member
from tests.chaos.oplog import OperationLog
from tests.chaos.processes import POLL
from tests.chaos.schedule import Fault
from tests.chaos.servers import Servers

STRUCK = 120.0  # seconds within which a fault must have its effect; a failpoint has to be reached


class NoEffect(Exception):
    """A fault that was drawn did not happen."""


class Scene(NamedTuple):
    """`active`: the poller that holds the stream."""

    servers: Servers
    fleet: Fleet
    log: OperationLog
    active: Callable[[], Awaitable[Member | None]]

    def struck(self, fault: Fault, **facts: object) -> None:
        self.log.write("struck", n=fault.n, kind=fault.kind, **facts)

    async def wait_until(self, seen: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STRUCK
        while not seen():
            if time.monotonic() > deadline:
                raise NoEffect(f"not within {STRUCK:.0f} s: {what}")
            await asyncio.sleep(POLL)


Strike = Callable[[Scene, Fault], AbstractAsyncContextManager[None]]
Strikes = Mapping[str, Strike]
"""By kind of fault (tests/chaos/schedule.py)."""
