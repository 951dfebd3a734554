"""What a tick finds that comes while a job of its schedule is pending or running."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checkpoints.jobs import Overlap, State

GUARD: Mapping[Overlap, str] = {one: one.value for one in Overlap if one is not Overlap.ALLOW}
"""What the job's row has, for the database to keep others out."""

SUPERSEDED = "cancelled: the next tick of its schedule came"
"""The note of a job whose schedule says cancel_previous."""


class Live(NamedTuple):
    id: int
    state: State
    fence: int
    attempts: int
    max_attempts: int


def in_the_way(overlap: Overlap, live: Sequence[Live]) -> Live | None:
    """The job that keeps another one of its schedule from being made, as the unique indexes have it; they alone would
    not see jobs of another policy, which the schedule may have had before."""
    if overlap is Overlap.ALLOW:
        return None
    if overlap is Overlap.SKIP:
        return next(iter(live), None)
    return next((one for one in live if one.state == State.PENDING and one.fence == 0), None)


def why(live: Live | None) -> str:
    """The reason of a tick that was skipped; None: what was in the way a moment ago is over."""
    if live is None:
        return "a job of an earlier tick was not over"
    if live.state == State.RUNNING:
        return f"job {live.id} is running, try {live.attempts} of {live.max_attempts}"
    if live.attempts:
        return f"job {live.id} waits for try {live.attempts + 1} of {live.max_attempts}"
    return f"job {live.id} has not begun"
