"""What a handler raises decides what becomes of its job."""

import asyncio
import math
from datetime import timedelta
from typing import cast

import pytest

from checkpoints.jobs import ERROR_LIMIT, Job, Outcome
from ingest.errors import (
    BadRecord,
    ConfigError,
    Permanent,
    RateLimited,
    SourceRefused,
    StoreUnavailable,
    Superseded,
    Transient,
)
from ingest.jobs.handler import Again
from ingest.jobs.outcomes import (
    LONGEST_DELAY,
    RETRY_CAP,
    SUPERSEDED_DELAY,
    Cancelled,
    TimedOut,
    ended,
    retry_delay,
)
from ingest.redaction import Redactor
from ingest.sources.http import Unopened


def job(attempt: int = 1) -> Job:
    return Job(7, 3, "task:report", "report", "tasks", b"{}", attempt, 5, 0.0, 0.0)


class Wordless(Transient):
    def __init__(self) -> None:
        super().__init__("")

    def __str__(self) -> str:
        raise LookupError("no words")


def plain(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("raised", "outcome", "reason", "shortest", "longest"),
    [
        (None, Outcome.DONE, None, 0.0, 0.0),
        (StoreUnavailable("away"), Outcome.RETRY, None, 1.0, 2.0),
        (RateLimited("429", retry_after=60.0), Outcome.RETRY, None, 61.0, 62.0),
        (SourceRefused("403", 403), Outcome.DEAD, "permanent", 0.0, 0.0),
        (ConfigError("unset"), Outcome.DEAD, "permanent", 0.0, 0.0),
        (BadRecord("bad", stage="write"), Outcome.DEAD, "permanent", 0.0, 0.0),
        (Superseded("taken"), Outcome.RELEASED, None, SUPERSEDED_DELAY, SUPERSEDED_DELAY),
        (Again("later", 9.0), Outcome.RELEASED, None, 9.0, 9.0),
        (Cancelled("by a person"), Outcome.CANCELLED, None, 0.0, 0.0),
        (TimedOut("too long"), Outcome.RETRY, None, 1.0, 2.0),
        (ZeroDivisionError("oh"), Outcome.RETRY, None, 1.0, 2.0),
        (SystemExit(1), Outcome.RETRY, None, 1.0, 2.0),
        (ExceptionGroup("two", [ConfigError("unset"), Again("later")]), Outcome.RETRY, None, 1.0, 2.0),
        (Again("in a day", cast(float, timedelta(days=1))), Outcome.RELEASED, None, 86_400.0, 86_400.0),
        (Again("soon", cast(float, "5")), Outcome.RELEASED, None, 0.0, 0.0),
        (Again("never", math.inf), Outcome.RELEASED, None, LONGEST_DELAY, LONGEST_DELAY),
        (StoreUnavailable("away", retry_after=math.nan), Outcome.RETRY, None, 1.0, 2.0),
        (StoreUnavailable("away", retry_after=-(10**400)), Outcome.RETRY, None, 1.0, 2.0),
        (Wordless(), Outcome.RETRY, None, 1.0, 2.0),
    ],
)
def test_the_class_of_an_error_decides(
    raised: BaseException | None, outcome: Outcome, reason: str | None, shortest: float, longest: float
) -> None:
    found = ended(job(), raised, plain)
    assert (found.id, found.fence, found.outcome, found.reason) == (7, 3, outcome, reason)
    assert shortest <= found.delay <= longest
    assert found.error_class == (None if raised is None else type(raised).__name__)


def test_the_only_error_of_a_group_decides_as_if_it_were_alone() -> None:
    found = ended(job(), ExceptionGroup("one", [ExceptionGroup("one", [ConfigError("unset")])]), plain)
    assert (found.outcome, found.error_class, found.error) == (Outcome.DEAD, "ConfigError", "unset")


def test_attempts_wait_longer_and_longer_up_to_a_quarter_of_an_hour_and_never_all_together() -> None:
    for attempt, base in ((1, 2.0), (2, 4.0), (5, 32.0), (10, RETRY_CAP), (10_000, RETRY_CAP)):
        delays = {retry_delay(attempt) for _ in range(50)}
        assert base / 2 <= min(delays) < max(delays) <= base


def test_an_error_that_nobody_foresaw_keeps_its_traceback_without_secrets_and_the_end_of_it() -> None:
    redactor = Redactor()
    redactor.add("s3cr3t-token")
    try:
        raise LookupError("no s3cr3t-token \0here\ud800")
    except LookupError as exc:
        error = ended(job(), exc, redactor.scrub).error
    assert error is not None
    assert error.startswith("Traceback")
    assert error.endswith("LookupError: no *** �here?")
    long = ended(job(), RuntimeError("x" * 2 * ERROR_LIMIT + " the end"), plain).error
    assert long is not None and len(long) == ERROR_LIMIT and long.endswith("the end")


def test_an_error_is_looked_for_by_the_class_that_is_documented() -> None:
    class Mine(Permanent):
        """Of whoever wrote the task."""

    named = {type(exc).__name__: ended(job(), exc, plain).error_class for exc in (
        Unopened("401", 401), SourceRefused("401", 401), Mine("x"), KeyError("x"), TimedOut("x")
    )}  # fmt: skip
    assert named == {name: {"Unopened": "SourceRefused"}.get(name, name) for name in named}


def test_words_of_our_own_need_no_traceback() -> None:
    assert ended(job(), Wordless(), plain).error == "Wordless, and no words of it"
    assert ended(job(), SourceRefused("GET /x: 403", 403), plain).error == "GET /x: 403"
    assert "CancelledError" in (ended(job(), asyncio.CancelledError(), plain).error or "")
