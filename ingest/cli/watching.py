"""`--watch`: look again and again, and draw what is there."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from ingest.app import App
from ingest.cli.context import REDACTOR, with_app
from ingest.config.loader import Loaded
from ingest.errors import StoreUnavailable
from ingest.signals import stopping

T = TypeVar("T")

EVERY = 2.0  # seconds between two looks
CLEAR = "\x1b[H\x1b[J"  # a terminal: to the top, and empty from there

WatchOption = Annotated[bool, typer.Option("--watch", help=f"Again every {EVERY:.0f} s, until interrupted.")]


def indented(watch: bool) -> int | None:
    """Of JSON: who watches gets a line for every look."""
    return None if watch else 2


def looked(
    configuration: Loaded, look: Callable[[App], Awaitable[T]], draw: Callable[[T], None], *, watch: bool
) -> None:
    """Draw what `look` finds, once or again and again. While a database is away, watching says so and goes on."""

    async def once(app: App) -> None:
        draw(await look(app))

    async def forever(app: App) -> None:
        async with stopping() as signalled:
            while not signalled.stop.is_set():
                try:
                    found = await look(app)
                except StoreUnavailable as exc:
                    print(REDACTOR.scrub(str(exc)), file=sys.stderr, flush=True)
                else:
                    if sys.stdout.isatty():
                        sys.stdout.write(CLEAR)
                    draw(found)
                    sys.stdout.flush()
                await _either(signalled.stop)

    with_app(configuration, forever if watch else once)


async def _either(stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), EVERY)
    except TimeoutError:
        return
