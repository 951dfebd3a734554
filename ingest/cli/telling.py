"""Where `notify` is configured, somebody is told of trouble while the body runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from ingest.app import App
from ingest.imports import lightly
from ingest.report import Report

LAST = 5.0  # seconds for a last look when everything else has ended


Changed = Callable[[Report], None]


@asynccontextmanager
async def telling(app: App, *, once: bool) -> AsyncIterator[Changed]:
    """Yields who has to hear of the reports of streams that run without jobs.

    `once`: who called sees how it ends. Raises ConfigError where the URL cannot be had."""
    if app.config.notify is None or once:
        yield lambda report: None
        return
    with lightly():
        from ingest.notify import Failing, Notifier, open_post

    failing, done = Failing(), asyncio.Event()
    async with open_post(app.config.notify, app.redactor, app.loaded.within("notify")) as post:
        notifier = Notifier(await app.incidents(), post, app.config.notify.on, app.redactor.scrub, failing)
        running = asyncio.create_task(notifier.run(done))
        try:
            yield failing.changed
        finally:
            done.set()
            await _ended(running)


async def _ended(running: "asyncio.Task[None]") -> None:
    """What is not told by then is told by the next process."""
    with suppress(TimeoutError):
        await asyncio.wait_for(running, LAST)
