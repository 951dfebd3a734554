"""What people are told of, once each: a dead job, a stream that failed. Port and vocabulary.

An incident begins when there is trouble and none is open for its subject, and ends when the trouble does: the job is
requeued or cancelled, or a later one of its schedule is done. Any number of processes look, tell and may die at any
point: the rows say what has been told, so each incident is told once, and again only by the successor of a process that
died between telling and writing that down.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

AT_ONCE = 1_000  # incidents that are looked for or told at a time


class Trouble(msgspec.Struct, frozen=True):
    """A dead job that nobody has been told of."""

    id: int
    kind: str
    source: str
    schedule: str | None
    attempts: int
    deaths: int  # of earlier jobs of its schedule
    dead_reason: str | None
    last_error_class: str | None
    last_error: str | None

    @property
    def subject(self) -> str:
        return self.schedule or str(self.id)


class Incident(NamedTuple):
    subject: str  # a job's id, or its schedule's: SOURCE/STREAM, task:NAME
    event: str  # job.dead | stream.failed
    message: str  # redacted
    job: int | None = None  # None: a stream that runs without jobs


class Due(NamedTuple):
    """An incident that is ours to tell now. `tries`: how often that was begun, this time included."""

    subject: str
    event: str
    message: str
    tries: int


class Incidents(Protocol):
    """Everything raises StoreUnavailable, and may be repeated."""

    async def survey(self, kind: str | None = None) -> Sequence[Trouble]:
        """End the incidents of jobs whose trouble is over; the dead jobs without an incident, of this kind where one is
        named, at most AT_ONCE."""

    async def begin(self, incidents: Sequence[Incident]) -> None:
        """Those whose subject has none open."""

    async def end(self, subject: str) -> None:
        """Of a stream that runs without jobs; none may be open."""

    async def take(self, seconds: float) -> Sequence[Due]:
        """What is not told and nobody else is telling, the oldest AT_ONCE; ours for so long."""

    async def told(self, subjects: Sequence[str]) -> None: ...

    async def put_off(self, subjects: Sequence[str], seconds: float) -> None:
        """They could not be told: try again in so long."""
