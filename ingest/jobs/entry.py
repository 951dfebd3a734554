"""Puts jobs into the queue, from Python.

    from ingest.jobs import enqueue

    enqueue("task:report", {"customer": 42})                      # in code that is not async
    await enqueue_async("task:report", {"customer": 42})          # in code that is
    enqueue("task:report", run_at=tomorrow, dedupe_key="report")  # later, and once

The queue is the one of the configuration: of `config=`, else of INGEST_CONFIG, else of ./ingest.yaml. Inside a task it
is that of the worker that runs it, over its connections.
"""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from checkpoints.jobs import Enqueued, Jobs, NewJob
from ingest.errors import ConfigError
from ingest.jobs.bounds import ensure
from ingest.jobs.kinds import task_job, task_named

if TYPE_CHECKING:
    from ingest.config.model import Config

PAYLOAD_LIMIT = 1_000_000  # bytes
PATIENCE = 120.0  # seconds that code in a thread waits for the loop of its worker


class Inside(NamedTuple):
    """A worker, as the tasks see it that it runs."""

    jobs: Jobs
    config: "Config"
    loop: asyncio.AbstractEventLoop


_inside: ContextVar[Inside | None] = ContextVar("inside", default=None)


def enter(inside: Inside) -> None:
    """What runs in this context enqueues through the worker."""
    _inside.set(inside)


def enqueue(
    kind: str,
    payload: Mapping[str, Any] | None = None,
    *,
    run_at: datetime | float | None = None,
    dedupe_key: str | None = None,
    dedupe_for: float = 0.0,
    source: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    attempts: int | None = None,
    config: Path | str | None = None,
) -> Enqueued:
    """A job that some worker will do; it is in the database when this returns. Returns its id, and whether it is fresh.

    `kind`: `task:NAME` for a task of the configuration. `payload`: what JSON has; secrets do not belong in it.
    `run_at`: not before, a datetime with a zone or seconds since 1970. `dedupe_key`: while a job with it waits or runs,
    and for `dedupe_for` seconds after it was done, no other one comes to be: the id of that one is returned.
    `source`: whose limits and pauses count, by default the task; or a source. `priority`: smaller first. `attempts`: by
    default the task's. Raises ConfigError and StoreUnavailable, and RuntimeError in code that is async.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("an event loop runs here, which this would hold up: await enqueue_async(…)")
    found = enqueue_async(
        kind, payload, run_at=run_at, dedupe_key=dedupe_key, dedupe_for=dedupe_for, source=source, queue=queue,
        priority=priority, attempts=attempts, config=config,
    )  # fmt: skip
    inside = None if config is not None else _inside.get()
    if inside is None:
        return asyncio.run(found)
    return asyncio.run_coroutine_threadsafe(found, inside.loop).result(PATIENCE)


async def enqueue_async(
    kind: str,
    payload: Mapping[str, Any] | None = None,
    *,
    run_at: datetime | float | None = None,
    dedupe_key: str | None = None,
    dedupe_for: float = 0.0,
    source: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    attempts: int | None = None,
    config: Path | str | None = None,
) -> Enqueued:
    """`enqueue` for code that is async."""

    def job(configuration: "Config") -> NewJob:
        plain = _plain(configuration, kind, source)
        new = msgspec.structs.replace(
            plain,
            payload=_encoded({} if payload is None else payload),
            run_at=_seconds(run_at),
            dedupe_key=dedupe_key,
            dedupe_for=dedupe_for,
            queue=plain.queue if queue is None else queue,
            priority=priority,
            max_attempts=plain.max_attempts if attempts is None else attempts,
        )
        return ensure(new)

    inside = None if config is not None else _inside.get()
    if inside is not None and inside.loop is asyncio.get_running_loop():
        [enqueued] = await inside.jobs.enqueue([job(inside.config)])
        return enqueued
    from ingest.app import App
    from ingest.config.loader import find, load
    from ingest.redaction import Redactor

    loaded = load(find(None if config is None else Path(config)))
    async with App(loaded, Redactor()) as app:
        [enqueued] = await (await app.jobs()).enqueue([job(app.config)])
        return enqueued


def _plain(config: "Config", kind: str, source: str | None) -> NewJob:
    """A job of this kind as the configuration has it, for `source` where that is named. Raises ConfigError for what no
    worker would take."""
    name = task_named(kind)
    if name is None or name not in config.tasks:
        named = ", ".join(f"task:{known}" for known in config.tasks) or "none"
        raise ConfigError(f"no jobs of kind `{kind}`; configured: {named}")
    if source is not None and source not in config.sources and source not in config.tasks:
        raise ConfigError(f"no source `{source}`; configured: {', '.join([*config.sources, *config.tasks])}")
    plain = task_job(name, config.tasks[name].attempts)
    return plain if source is None else msgspec.structs.replace(plain, source=source)


def _encoded(payload: Mapping[str, Any]) -> bytes:
    if not isinstance(payload, Mapping):
        raise ConfigError(f"the payload is an object, not {type(payload).__name__}")
    try:
        encoded = msgspec.json.encode(payload)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"the payload is no JSON: {exc}") from exc
    if len(encoded) > PAYLOAD_LIMIT:
        raise ConfigError(f"a payload of {len(encoded):,} bytes; at most {PAYLOAD_LIMIT:,}: name where it lies instead")
    return encoded


def _seconds(moment: datetime | float | None) -> float | None:
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise ConfigError(f"run_at={moment!r} has no time zone; write datetime(…, tzinfo=UTC)")
    return moment.timestamp()
