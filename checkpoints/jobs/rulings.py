"""Which wishes of people about jobs are granted, and what is said about the others. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from checkpoints.jobs import State
from checkpoints.jobs.desk import Ruling


class Standing(NamedTuple):
    """A job that someone wishes something about, locked."""

    id: int
    state: State
    dead_reason: str | None
    dedupe_key: str | None
    schedule: str | None
    overlap: str | None
    fence: int
    due: bool  # run_at is not in the future
    paused: bool  # its source is


class Live(NamedTuple):
    """A job that is in the way of another's requeueing."""

    id: int
    state: State
    dedupe_key: str | None
    schedule: str | None
    overlap: str | None
    fence: int


def requeued(ids: Sequence[int], found: Sequence[Standing], live: Iterable[Live]) -> list[Ruling]:
    """Of dead jobs that are alike the newest is taken."""
    taken: dict[tuple[str, str], str] = {place: _words(job) for job in live for place in _places(job)}
    rulings = {}
    for job in sorted(found, key=lambda job: -job.id):
        said = None if job.state is State.DEAD else f"it is {job.state}; only what is dead is requeued"
        wanted = list(_wanted(job))
        said = said or next((taken[place] for place in wanted if place in taken), None)
        rulings[job.id] = Ruling(job.id, said is None, said or "requeued")
        if said is None:
            taken |= dict.fromkeys(wanted, f"job {job.id} is like it, newer, and requeued")
    return [rulings.get(id) or _unknown(id) for id in ids]


def _places(job: Live) -> Iterator[tuple[str, str]]:
    """What no second job can have at the same time; see the unique indexes of the table."""
    if job.dedupe_key is not None:
        yield "dedupe", job.dedupe_key
    if job.schedule is not None and job.overlap == "skip":
        yield "skip", job.schedule
    waits = job.state is State.PENDING and job.fence == 0  # and has never been claimed
    if job.schedule is not None and job.overlap in ("queue_one", "cancel_previous") and waits:
        yield "queue_one", job.schedule


def _wanted(job: Standing) -> Iterator[tuple[str, str]]:
    return _places(Live(job.id, State.PENDING, job.dedupe_key, job.schedule, job.overlap, job.fence))


def _words(job: Live) -> str:
    alike = f"has its dedupe key {job.dedupe_key!r}" if job.dedupe_key else f"is of its schedule {job.schedule}"
    return f"job {job.id} {alike} and is {job.state}"


def cancelled(ids: Sequence[int], found: Sequence[Standing]) -> list[Ruling]:
    said: Mapping[State, tuple[bool, str]] = {
        State.PENDING: (True, "cancelled"),
        State.RUNNING: (True, "its worker is asked to end it"),
        State.DEAD: (True, "cancelled: it stays dead, and needs nobody any more"),
        State.DONE: (False, "it is done"),
    }
    rulings = {job.id: Ruling(job.id, *said[job.state]) for job in found}
    gone = {job.id: Ruling(job.id, False, "it was cancelled already") for job in found if _was_cancelled(job)}
    return [(rulings | gone).get(id) or _unknown(id) for id in ids]


def _was_cancelled(job: Standing) -> bool:
    return job.state is State.DEAD and job.dead_reason == "cancelled"


def hastened(ids: Sequence[int], found: Sequence[Standing]) -> list[Ruling]:
    rulings = {job.id: _hastened(job) for job in found}
    return [rulings.get(id) or _unknown(id) for id in ids]


def _hastened(job: Standing) -> Ruling:
    if job.state is not State.PENDING:
        hint = ": `jobs requeue` begins it anew" if job.state is State.DEAD else ""
        return Ruling(job.id, False, f"it is {job.state}{hint}")
    paused = ", but its source is paused" if job.paused else ""
    return Ruling(job.id, True, f"{'due already' if job.due else 'due now'}{paused}")


def _unknown(id: int) -> Ruling:
    return Ruling(id, False, "there is no such job")


def granted(rulings: Iterable[Ruling], among: Collection[int] | None = None) -> list[int]:
    return [ruling.id for ruling in rulings if ruling.done and (among is None or ruling.id in among)]
