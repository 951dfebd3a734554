"""When something is done again and again: `every` or `cron`, and what becomes of a time at which it was not done."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from ingest.config.part import Mistake, Part
from ingest.config.values import Count, Duration, Interval, Zone

if TYPE_CHECKING:
    from ingest.jobs.cron import Cron

STANDING = 10.0  # seconds; what is done more often is done by one process that stands by, without ticks
DEFAULT_EVERY = 300.0  # seconds


def _cron(text: str) -> str:
    if "${" in text:
        raise ValueError("a cron expression holds no reference")
    return _read(text).text


def _read(text: str) -> "Cron":
    from ingest.jobs.cron import Cron  # a file without one does without

    return Cron(text)


CronText = Annotated[str, AfterValidator(_cron), Field(examples=["0 6 * * 1-5", "*/15 * * * *"])]


class Dst(Part):
    """What a `cron` does where clocks are set; one for every hour of the day goes by elapsed time instead."""

    gap: Literal["shift", "skip"] = "shift"
    """A time that is left out: `shift`, when the clock is set forward, or `skip`."""
    fold: Literal["first", "last", "both"] = "first"
    """A time that comes twice."""


class Scheduled(Part):
    """What has a schedule."""

    every: Interval | None = None
    """From one start to the next; absent: 5m, unless `cron` says when. Without effect under `--once`."""
    cron: CronText | None = None
    """Minute, hour, day of the month, month and day of the week: 0 6 * * 1-5."""
    timezone: Zone | None = None
    """Of `cron`; absent: UTC."""
    dst: Dst = Dst()
    jitter: Duration = 0.0
    """Each start is put off by up to so much, always by the same for one tick; at most half the time between two."""
    overlap: Literal["skip", "queue_one", "allow", "cancel_previous"] = "skip"
    """What a tick does while the run of an earlier one is not over."""
    catch_up: Literal["latest", "all", "none"] = "latest"
    """Which of the ticks still start a run that nobody was there for."""
    catch_up_window: Duration | None = None
    """How late they may be; absent: an hour, or twice the time between two where that is more."""
    max_catch_up: Count = 24
    """How many of them, under `catch_up: all`."""
    attempts: Count = 5
    """Tries of one run before a person must look at it."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.every is not None and self.cron is not None:
            yield "cron", "`every` and `cron` both say when; write one of them"
        if self.cron is None:
            for key in ("timezone", "dst"):
                if key in self.model_fields_set:
                    yield key, f"`{key}` is of `cron`, which is not here: `every` knows no time of day"
        elif "dst" in self.model_fields_set and _read(self.cron).elapsed:
            yield "dst", f"`{self.cron}` is for every hour of the day and goes by elapsed time: `dst` means nothing"
        if "max_catch_up" in self.model_fields_set and self.catch_up != "all":
            yield "max_catch_up", f"`max_catch_up` is of `catch_up: all`; here it is `{self.catch_up}`"
        if self.catch_up_window is not None and self.catch_up == "none":
            yield "catch_up_window", "`catch_up_window` means nothing: `catch_up` is `none`"

    @property
    def interval(self) -> float | None:
        """Seconds; None: `cron` says when."""
        return (self.every or DEFAULT_EVERY) if self.cron is None else None

    @property
    def standing(self) -> bool:
        """It is done so often that it has no ticks."""
        return self.interval is not None and self.interval < STANDING
