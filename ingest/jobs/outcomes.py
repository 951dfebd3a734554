"""What the end of a handler means for its job. Pure."""

import random
import traceback
from collections.abc import Callable
from datetime import timedelta

from checkpoints.jobs import ERROR_LIMIT, Ended, Job, Outcome
from ingest.errors import BadRecord, ConfigError, IngestError, Permanent, Superseded, Transient
from ingest.jobs.handler import Again

RETRY_BASE, RETRY_CAP = 2.0, 900.0  # seconds
SUPERSEDED_DELAY = 5.0  # seconds until a job comes again whose work someone else had in hand
LONGEST_DELAY = 366 * 86_400.0  # seconds: databases have no time for what is much later
CUT = "…\n"  # where an error text was too long to keep
NAME_LIMIT = 200  # characters of the name of an error's class


class TimedOut(Exception):
    """The handler took longer than its kind may."""


class Cancelled(Exception):
    """A person asked for the end of the job."""


def retry_delay(attempt: int) -> float:
    """Seconds until a job runs again whose attempt number `attempt` (1 is the first) failed: half of it is fixed, so
    that a source that fails is left alone, the other half random, so that jobs that failed together part."""
    return min(RETRY_CAP, RETRY_BASE * 2.0 ** min(attempt - 1, 60)) * random.uniform(0.5, 1.0)


def ended(job: Job, exc: BaseException | None, scrub: Callable[[str], str], progress: bytes | None = None) -> Ended:
    """`exc`: what the handler raised, None where it returned. `scrub` takes secrets out of texts."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:  # of a TaskGroup in the handler
        exc = exc.exceptions[0]
    if exc is None:
        return Ended(job.id, job.fence, Outcome.DONE, progress=progress)
    delay, reason = 0.0, None
    match exc:
        case Again():
            outcome, delay = Outcome.RELEASED, _seconds(exc.delay)
        case Superseded():
            outcome, delay = Outcome.RELEASED, SUPERSEDED_DELAY
        case Cancelled():
            outcome = Outcome.CANCELLED
        case Permanent() | ConfigError() | BadRecord():
            outcome, reason = Outcome.DEAD, "permanent"
        case Transient():  # what the other side asked for is a floor
            outcome, delay = Outcome.RETRY, _seconds(exc.retry_after) + retry_delay(job.attempt)
        case _:
            outcome, delay = Outcome.RETRY, retry_delay(job.attempt)
    error = _kept(scrub(_told(exc)))
    return Ended(job.id, job.fence, outcome, delay, _named(exc), error, reason, progress)


def _named(exc: BaseException) -> str:
    """What people look for it by: of an error of ours that a module has for itself, the one of ingest.errors."""
    kinds = type(exc).__mro__ if type(exc).__module__.startswith("ingest.") else ()
    name = next((kind.__name__ for kind in kinds if kind.__module__ == "ingest.errors"), type(exc).__name__)
    return name[:NAME_LIMIT]


def text_of(exc: BaseException) -> str:
    """Its words, also where it is a task's own class whose words cannot be had."""
    try:
        return str(exc)
    except Exception:
        return f"{type(exc).__name__}, and no words of it"


def _seconds(said: object) -> float:
    """A task may say what is no duration, or none that a database has a time for."""
    seconds = said.total_seconds() if isinstance(said, timedelta) else said
    if not isinstance(seconds, int | float):
        return 0.0
    return float(min(max(0, seconds), LONGEST_DELAY))  # `max` takes what is no number for less than 0


def _told(exc: BaseException) -> str:
    """Errors that we raise on purpose say all in their words; of others the traceback does."""
    if isinstance(exc, (IngestError, Again, TimedOut, Cancelled)):
        return text_of(exc)
    return "".join(traceback.format_exception(exc))


def _kept(text: str) -> str:
    """The end of it, where it is too long: a traceback ends with what happened."""
    text = text.encode(errors="replace").decode().replace("\0", "�").strip()  # what Postgres has no text for
    return text if len(text) <= ERROR_LIMIT else CUT + text[len(CUT) - ERROR_LIMIT :]
