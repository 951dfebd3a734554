"""What a task's function is called with."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from checkpoints.jobs import Job
from ingest.errors import ConfigError


@dataclass(frozen=True)
class Context:
    """The one argument of a task's function. Times are in UTC.

    `def send(context: Context) -> None` runs in a thread, `async def send(context)` on the event loop. It is done when
    it returns; what it returns is not looked at. It may be called again for the same tick, after a crash or a failure:
    `window` and `timestamp` are the same then, so that it can write under a key made of them. Tests of the function
    call it with `Context("report", {"to": "finance"}, datetime(2026, 3, 1, tzinfo=UTC))`.
    """

    task: str
    """Its name in the configuration."""
    payload: Mapping[str, Any]
    """The `args` of the configuration, and over them what was given to `enqueue`."""
    timestamp: datetime
    """The time it stands for: of its tick, however late it is; without a tick, when it was to run."""
    window: tuple[datetime, datetime] | None = None
    """From the tick before (inclusive) to its own (exclusive); None where it has none."""
    retries: int = 0
    """How many attempts there were before; 0 at first."""
    attempts: int = 1
    """How many there may be, the first one included."""
    job: int = 0
    """The number of the job, for `ingest jobs show`."""
    progress: Callable[[object], None] = lambda value: None
    """Shows how far it is: anything that JSON has. Cheap; may be called from the function's thread."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def stopping(self) -> bool:
        """It should come to an end: the worker stops, a person cancelled the job, or its time is up. A thread cannot
        be ended from outside, so a long loop looks at this."""
        return self._stop.is_set()


def context(
    task: str, args: Mapping[str, Any], job: Job, progress: Callable[[object], None], stop: asyncio.Event
) -> Context:
    """`args`: of the configuration, references resolved. Raises ConfigError for a payload that is no object."""
    payload = msgspec.json.decode(job.payload)
    if not isinstance(payload, dict):
        raise ConfigError(f"the payload of a task is an object, not {job.payload[:100].decode(errors='replace')}")
    tick = None if job.tick_at is None else _utc(job.tick_at)
    window = None if tick is None or job.tick_from is None else (_utc(job.tick_from), tick)
    return Context(
        task=task,
        payload={**args, **payload},
        timestamp=tick or _utc(job.run_at),
        window=window,
        retries=job.attempt - 1,
        attempts=job.max_attempts,
        job=job.id,
        progress=progress,
        _stop=stop,
    )


def _utc(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC)
