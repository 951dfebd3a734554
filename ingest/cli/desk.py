"""What the verbs about jobs share: the opened desk, and who decides."""

import getpass
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from checkpoints.jobs.desk import JobDesk
from ingest.app import App
from ingest.cli.context import with_app
from ingest.config.loader import Loaded

T = TypeVar("T")


def at_desk(configuration: Loaded, work: Callable[[JobDesk], Awaitable[T]]) -> T:
    async def opened(app: App) -> T:
        return await work(await app.desk())

    return with_app(configuration, opened)


def person() -> str:
    """For the notes that are kept: who it was."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number and no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
