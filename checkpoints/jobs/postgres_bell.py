"""Tells who waits for jobs that there are some, by LISTEN on a connection of its own.

It may be deaf without an error: behind PgBouncer in transaction mode, or on a connection that a firewall forgot. So
it says something to itself now and then, by way of another connection, and when it does not hear that, it says so and
jobs are looked for more often.
"""

import asyncio
import random
import time
import uuid
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import asyncpg
import structlog

from checkpoints.jobs.postgres_rows import CHANNEL
from ingest import metrics
from ingest.errors import IngestError
from ingest.postgres import Postgres, literal, translated

if TYPE_CHECKING:
    Session = asyncpg.Connection[asyncpg.Record]

log = structlog.get_logger()

LOOK_EVERY, DEAF_LOOK_EVERY = 5.0, 1.0  # seconds, ± JITTER: nobody waits longer, whatever it hears
JITTER = 0.2
PROBE_EVERY, PROBE_WAIT = 30.0, 5.0  # seconds
LISTEN_AGAIN, POOLED_LISTEN_AGAIN = 30.0, 600.0  # seconds between attempts to listen
POOLED = "a pooler in transaction mode stands in between"


class PostgresBell:
    """`wait` listens when it is first called; the `async with` only closes."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._rung = asyncio.Event()
        self._opened = AsyncExitStack()
        self._session: Session | None = None
        self._listen_at = 0.0  # time.monotonic() of the next attempt
        self._probe = ""  # what was said last, and is not heard yet
        self._probed_at = 0.0
        self.hears = False
        """What it said last came back."""
        self._degraded = False

    async def __aenter__(self) -> "PostgresBell":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.aclose()

    def ring(self) -> None:
        """For who waits in this process."""
        self._rung.set()

    async def wait(self, seconds: float) -> None:
        await self._look_after()
        limit = (LOOK_EVERY if self.hears else DEAF_LOOK_EVERY) * random.uniform(1 - JITTER, 1 + JITTER)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, limit)):
                await self._rung.wait()
        self._rung.clear()

    async def _look_after(self) -> None:
        now = time.monotonic()
        try:
            if self._session is None or self._session.is_closed():
                if self._session is not None:
                    await self._give_up("the connection ended")
                if now >= self._listen_at:
                    self._listen_at = now + LISTEN_AGAIN
                    await self._listen()
                return
            if self._probe and now - self._probed_at > PROBE_WAIT:
                await self._give_up("what was said on one connection was not heard on the other")
            elif now - self._probed_at > PROBE_EVERY:
                await self._say_something()
        except IngestError as exc:
            await self._give_up(str(exc))

    async def _listen(self) -> None:
        self._session = await self._opened.enter_async_context(self._postgres.session())
        try:
            if self._session.get_server_pid() != await self._session.fetchval("SELECT pg_backend_pid()"):
                self._listen_at = time.monotonic() + POOLED_LISTEN_AGAIN
                await self._give_up(POOLED)
                return
            await self._session.add_listener(CHANNEL, self._hear)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as exc:
            raise (translated(exc) or exc) from exc
        await self._say_something()

    async def _say_something(self) -> None:
        self._probe, self._probed_at = uuid.uuid4().hex, time.monotonic()
        await self._postgres.write_at_once(f"SELECT pg_notify('{CHANNEL}', {literal(self._probe)})")

    def _hear(self, _connection: Any, _pid: int, _channel: str, said: Any) -> None:
        if not said:
            self._rung.set()
        elif said == self._probe:
            self._probe = ""
            if self._degraded:
                log.info("notify works again")
            self.hears, self._degraded = True, False
            metrics.listen_degraded.set(0)

    async def _give_up(self, why: str) -> None:
        self._session, self.hears, self._probe = None, False, ""
        await self._opened.aclose()
        if not self._degraded:
            self._degraded = True
            metrics.listen_degraded.set(1)
            log.warning("notify degraded: new jobs are looked for every second", reason=why)
