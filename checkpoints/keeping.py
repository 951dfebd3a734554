"""Keeps a lease while its holder works: renews it in the background, and stops the holder when it is lost.

A holder never works on past the end of its lease, even when the database does not answer or the process was frozen: it
counts the lease's time itself, on the monotonic clock, from before each renewal was sent, and stops a margin earlier.
"""

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from checkpoints import Lease, Leases
from ingest.errors import ConfigError, StoreUnavailable, Superseded

LEASE_TTL = 30.0  # seconds
RENEW_EVERY = LEASE_TTL / 3  # seconds; ± JITTER
JITTER = 0.1
MARGIN = 2.0  # seconds before its end at which a lease counts as lost; a tenth of it where that is more
RETRY_EVERY = 1.0  # seconds between tries while the database does not answer


def keep(
    leases: Leases, lease: Lease, ttl: float = LEASE_TTL, *, asked_at: float | None = None
) -> AbstractAsyncContextManager["Kept"]:
    """Renew `lease` every third of `ttl` seconds while the body runs; it is not released here.

    When the lease is lost the body is cancelled and Superseded comes out of the `async with`. An outage is borne for as
    long as the lease lasts. `asked_at`: `time.monotonic()` before the lease was acquired for `ttl`; absent: now.
    """
    return Kept(leases, lease, ttl, time.monotonic() if asked_at is None else asked_at)


class Kept:
    """A lease that is being renewed. Look at it between steps: that costs no round trip."""

    def __init__(self, leases: Leases, lease: Lease, ttl: float, asked_at: float) -> None:
        self.lease = lease
        self._leases, self._ttl = leases, ttl
        self._deadline = asked_at + ttl - _margin(ttl)  # time.monotonic()
        self._loss: Superseded | None = None
        self._failure = ""  # why the last renewal failed
        self._stopped = False  # the body was cancelled by us

    @property
    def lost(self) -> bool:
        return self._loss is not None or time.monotonic() >= self._deadline

    def ensure(self) -> None:
        """Raises Superseded when the lease is lost."""
        if self.lost:
            raise self._loss or self._overdue()

    async def __aenter__(self) -> "Kept":
        body = asyncio.current_task()
        assert body is not None
        self._body, self._cancelled_before = body, body.cancelling()
        self._renewing = asyncio.create_task(self._renew_until_lost(), name=f"renew {self.lease.name}")
        self._renewing.add_done_callback(self._stop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewing.remove_done_callback(self._stop)
        # as in asyncio.timeout: the cancellation is ours, unless someone else asked for one too
        ours = self._stopped and self._body.uncancel() <= self._cancelled_before
        self._renewing.cancel()
        await asyncio.wait([self._renewing])
        if ours and (exc is None or isinstance(exc, asyncio.CancelledError)):
            self._renewing.result()  # raises what ended it, where that was no loss of the lease
            raise (self._loss or self._overdue()) from exc

    def _stop(self, _: asyncio.Task[None]) -> None:
        self._stopped = True
        self._body.cancel()

    def _overdue(self) -> Superseded:
        why = f": {self._failure}" if self._failure else ""
        return Superseded(f"{self.lease.name}: could not be renewed in time (fence {self.lease.fence}){why}")

    async def _renew_until_lost(self) -> None:
        pause = _jittered(self._ttl / 3)
        while True:
            await asyncio.sleep(min(pause, self._deadline - time.monotonic()))
            sent = time.monotonic()
            if sent >= self._deadline:
                return
            try:
                async with asyncio.timeout(self._deadline - sent):
                    await self._leases.renew(self.lease, self._ttl)
            except Superseded as exc:
                self._loss = exc
                return
            except (StoreUnavailable, ConfigError, TimeoutError) as exc:
                # A person may have to act, and whoever writes says so; the lease lasts as long as it does.
                self._failure = str(exc) or self._failure or "no answer"
                pause = _jittered(min(RETRY_EVERY, self._ttl / 10))
            else:
                self._failure = ""
                self._deadline = sent + self._ttl - _margin(self._ttl)
                pause = _jittered(self._ttl / 3)


def _margin(ttl: float) -> float:
    return min(max(MARGIN, ttl / 10), ttl / 3)


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)
