"""What a job may be that somebody puts into the queue: what every database keeps, and people can be shown. Pure.

One row that cannot be read would stand in the way of every list that it is in.
"""

import math

from checkpoints.jobs import NewJob
from ingest.errors import ConfigError

LATEST = 253_370_764_800.0  # 9999-01-01T00:00:00Z in seconds since 1970
DEDUPE_LONGEST = 36_525 * 86_400.0  # seconds
PRIORITY, ATTEMPTS = 2**31 - 1, 1_000_000
NAME_LIMIT, KEY_LIMIT = 200, 1_000  # bytes


def ensure(job: NewJob) -> NewJob:
    """Raises ConfigError."""
    _ensure_text("queue", job.queue, NAME_LIMIT)
    if job.dedupe_key is not None:
        _ensure_text("dedupe_key", job.dedupe_key, KEY_LIMIT)
    _ensure_number("dedupe_for", job.dedupe_for, 0, DEDUPE_LONGEST, "seconds from 0 to 100 years")
    if job.run_at is not None:
        _ensure_number("run_at", job.run_at, 0, LATEST, "a time from 1970 to the year 9998")
    _ensure_number("priority", job.priority, -PRIORITY, PRIORITY, f"a whole number up to {PRIORITY:,}", whole=True)
    _ensure_number("attempts", job.max_attempts, 1, ATTEMPTS, f"a whole number from 1 to {ATTEMPTS:,}", whole=True)
    return job


def _ensure_text(name: str, value: object, limit: int) -> None:
    said = ascii(value)[:60]
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name}={said} is no text")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ConfigError(f"{name}={said} has characters that no database takes")
    if len(value.encode()) > limit:
        raise ConfigError(f"{name}={said}… has more than {limit:,} bytes")


def _ensure_number(name: str, value: object, least: float, most: float, what: str, *, whole: bool = False) -> None:
    fits = isinstance(value, int) or (isinstance(value, float) and not whole and math.isfinite(value))
    if not fits or not least <= value <= most:  # type: ignore[operator]  # it is a number then
        raise ConfigError(f"{name}={ascii(value)[:60]}: write {what}")
