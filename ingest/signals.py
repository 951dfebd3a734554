"""How a process ends: the first SIGTERM or SIGINT asks it to finish what it has in hand, the second cuts it short.

It ends, whatever runs in it: a task of somebody's may hold up the event loop, or ignore that it is cancelled.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

log = structlog.get_logger()

GRACE = 25.0  # seconds to finish after the first signal; Kubernetes gives 30 by default
LAST = 10.0  # seconds from when the work is cut short until the process ends without it
FAILED = 1  # exit code
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
        self._ends: threading.Timer | None = None

    def came(self) -> None:
        """A signal, whether the loop runs or not."""
        again = self._ends is not None
        self._forget()
        self._ends = threading.Timer(LAST if again else self._grace + LAST, _end)
        self._ends.daemon = True
        self._ends.start()

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
        self._forget()

    def _forget(self) -> None:
        if self._ends is not None:
            self._ends.cancel()


def _end() -> None:
    """What was saved is saved, as when the process is killed."""
    log.error("something does not let itself be stopped: the process ends without it")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)


@asynccontextmanager
async def stopping(grace: float = GRACE) -> AsyncIterator[Stopping]:
    """Signals are ours while the body runs. Raises Interrupted instead of CancelledError when a signal cancelled it."""
    task = asyncio.current_task()
    assert task is not None
    state = Stopping(task, grace)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, state.on_signal, number)
        signal.signal(number, lambda *_: state.came())  # the loop hears of it beside this
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
