"""What works jobs of one kind off: a function of the job, and what it may say besides that it is done.

The class of what it raises decides (ingest/errors.py): Transient comes again, no earlier than `retry_after`; Permanent,
ConfigError and BadRecord leave the job dead at once; Superseded and Again give it back without an attempt burned; what
nobody foresaw is tried again, with its traceback kept.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from checkpoints.jobs import Job

Progress = Callable[[object], None]
"""Shows how far a job is: anything that JSON has. Cheap: it is written with the next heartbeat."""

Work = Callable[[Job, Progress, asyncio.Event], Awaitable[None]]
"""Returns when the job is done. The event is set when it should come to an end: the worker stops, or a person
cancelled the job. Who does not look at it is cancelled a while later."""


class Handler(NamedTuple):
    work: Work
    timeout: float | None = None  # seconds that one attempt may take; None: any time


class Again(Exception):
    """Not now: the job comes again after `delay` seconds, and no attempt is burned."""

    def __init__(self, reason: str, delay: float = 0.0) -> None:
        super().__init__(reason)
        self.delay = delay
