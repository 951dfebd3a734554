"""Runs functions that are not async, each in a thread of its own.

A thread cannot be ended from outside: when the waiting for it is cancelled, it runs on and nobody learns how it ends.
It keeps neither its place among the slots nor the process from ending.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], name: str) -> T:
    """What the function returns or raises."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(act: Callable[[], None]) -> None:
        def unless_nobody_waits() -> None:
            if not future.done():
                act()

        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(unless_nobody_waits)

    def run() -> None:
        try:
            result = context.run(function)
        except StopIteration as exc:  # no future takes it
            error: BaseException = RuntimeError(f"the function raised StopIteration: {exc}")
            error.__cause__ = exc
            tell(lambda: future.set_exception(error))
        except BaseException as exc:
            raised = exc
            tell(lambda: future.set_exception(raised))
        else:
            tell(lambda: future.set_result(result))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
