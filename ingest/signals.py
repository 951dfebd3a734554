"""How a process ends: the first SIGTERM or SIGINT asks it to finish what it has in hand, the second cuts it short."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

log = structlog.get_logger()

GRACE = 25.0  # seconds to finish after the first signal; Kubernetes gives 30 by default
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(Exception):
    """A second signal came."""


class Stopping:
    """`stop` is set by the first signal. `cut` tells whether a second one, or the end of grace, cancelled the work."""

    def __init__(self, task: "asyncio.Task[object]", grace: float) -> None:
        self.stop = asyncio.Event()
        self.signalled_twice = False
        self._task, self._grace = task, grace
        self._timer: asyncio.TimerHandle | None = None

    def on_signal(self, number: int) -> None:
        if self.stop.is_set():
            self.signalled_twice = True
            self._task.cancel()
            return
        log.info("stopping: finishing what is in hand", signal=signal.Signals(number).name, grace=self._grace)
        self.stop.set()
        self._timer = asyncio.get_running_loop().call_later(self._grace, self._overdue)

    def _overdue(self) -> None:
        log.error("the grace period is over", seconds=self._grace)
        self._task.cancel()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@asynccontextmanager
async def stopping(grace: float = GRACE) -> AsyncIterator[Stopping]:
    """Signals are ours while the body runs. Raises Interrupted instead of CancelledError when a signal cancelled it."""
    task = asyncio.current_task()
    assert task is not None
    state = Stopping(task, grace)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, state.on_signal, number)
    try:
        yield state
    except asyncio.CancelledError:
        if state.stop.is_set() and task.cancelling():
            task.uncancel()
            raise Interrupted("second signal" if state.signalled_twice else "grace period over") from None
        raise
    finally:
        state.close()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            if state.stop.is_set():  # what is left is closing what was opened
                signal.signal(number, signal.SIG_IGN)
