"""Scheduled work that is no stream: a Python function, when it is called, and with what."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from ingest.config.part import Mistake, Part
from ingest.config.schedule import STANDING, Scheduled
from ingest.config.values import Count, Duration, Interval, Name, Wait, shown

_CALL = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")


def _call(text: str) -> str:
    if not _CALL.fullmatch(text):
        raise ValueError(f"{shown(text)} names no function; write package.module:function")
    return text


def _args(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping (name: value), not {shown(value)}")
    return value


Call = Annotated[str, AfterValidator(_call), WithJsonSchema({"type": "string", "examples": ["reports.daily:send"]})]
Args = Annotated[Mapping[str, Any], PlainValidator(_args), WithJsonSchema({"type": "object"})]


class Task(Scheduled):
    """A function that is called on schedule, or when somebody enqueues it."""

    call: Call
    """The function: package.module:function. It is looked for beside the installed packages, last in the working
    directory; it gets one argument, the context."""
    args: Args = Field({})
    """What the context has as its payload; references are resolved when the function is called."""
    timeout: Wait | None = None
    """How long one attempt may take; absent: any time."""
    every: Interval | None = None
    """From one start to the next, 10s at least; absent, and without `cron`: only when somebody enqueues it."""

    def mistakes(self) -> Iterable[Mistake]:
        yield from super().mistakes()
        if self.standing:
            yield "every", f"a task is called every {STANDING:g}s at most: each call is a job in the database"

    @property
    def interval(self) -> float | None:
        return self.every

    @property
    def timed(self) -> bool:
        """It has ticks."""
        return self.every is not None or self.cron is not None


class JobsPlan(Part):
    """How jobs are worked off."""

    slots: Count = 10
    """How many one process works off at a time."""
    queues: Mapping[Name, Count] = Field({})
    """How many of a queue run at a time, on all workers together: sync, tasks, backfill (4 unless it is said),
    default."""
    keep_done: Duration = 1_209_600.0
    """How long jobs that are done are kept."""
    keep_ticks: Duration = 7_776_000.0
    """How long it is kept which ticks fired and which did not."""
