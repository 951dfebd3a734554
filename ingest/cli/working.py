"""Puts a worker together: which jobs it takes, and what works them off."""

import asyncio
import os
import socket
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from checkpoints.jobs import Cap
from checkpoints.jobs import Worker as Identity
from ingest.app import App
from ingest.backfill import AT_ONCE as BACKFILLS_AT_ONCE
from ingest.backfill import KIND as BACKFILL
from ingest.backfill import QUEUE as BACKFILL_QUEUE
from ingest.backfill import handler as backfilling
from ingest.cli.streams import Polling
from ingest.config.messages import suggestion
from ingest.config.model import Config
from ingest.errors import ConfigError
from ingest.jobs import syncing, tasks
from ingest.jobs.entry import Inside
from ingest.jobs.kinds import SYNC, task_kind, task_named
from ingest.jobs.tidying import tidy_forever
from ingest.jobs.worker import Times, Worker
from ingest.web.readiness import Readiness

TASKS = "task"  # as a kind: all of them
OF_STREAMS = (SYNC, BACKFILL)
TIMES = Times()


class Selection(NamedTuple):
    kinds: Sequence[str]
    sources: Sequence[str]  # and tasks


def select(config: Config, kinds: Sequence[str], sources: Sequence[str]) -> Selection:
    """None named: all. Raises ConfigError for a name that is not configured, and when nothing is left."""
    every_task = [task_kind(name) for name in config.tasks]
    known = [*(OF_STREAMS if config.sources else ()), *every_task]
    chosen = [one for kind in kinds for one in (every_task if kind == TASKS else [kind])] or known
    for kind in chosen:
        if kind not in known:
            raise ConfigError(f"no jobs of kind `{kind}`{suggestion(kind, known)}")
    names = [*config.sources, *config.tasks]
    for name in sources:
        if name not in names:
            raise ConfigError(f"no source or task `{name}`{suggestion(name, names)}")
    if not chosen:
        raise ConfigError("nothing to do: neither `sources` nor `tasks` are configured")
    return Selection(chosen, list(sources) or names)


def caps(config: Config) -> tuple[list[Cap], list[Cap]]:
    """What the configuration says of how many jobs run at a time: of sources, and of queues."""
    sources = [Cap(name, source.limits.concurrency) for name, source in config.sources.items()]
    queues = {BACKFILL_QUEUE: BACKFILLS_AT_ONCE, **config.jobs.queues}
    return [*sources, *(Cap(name, None) for name in config.tasks)], [*map(Cap._make, queues.items())]


async def tidying(app: App) -> None:
    """Until cancelled."""
    await tidy_forever(await app.desk(), app.config.jobs.keep_done, app.config.jobs.keep_ticks)


async def open_worker(
    app: App, selection: Selection, slots: int, readiness: Readiness, polling: Polling | None
) -> Worker:
    """`polling`: for runs of streams, where they are selected."""
    jobs = await app.jobs()
    await jobs.limit(*caps(app.config))
    inside = Inside(jobs, app.config, asyncio.get_running_loop())
    names = [name for kind in selection.kinds if (name := task_named(kind)) is not None]
    handlers = dict(tasks.handlers(names, app.loaded, app.redactor, inside))
    if polling is not None:
        runner, streams = polling

        async def hold(source: str, seconds: float, reason: str) -> None:
            await jobs.hold(source, seconds, app.redactor.scrub(reason))

        of_streams = {
            SYNC: syncing.handler(runner, streams.open, hold),
            BACKFILL: backfilling.handler(runner, streams.open_slice, hold),
        }
        handlers |= {kind: handler for kind, handler in of_streams.items() if kind in selection.kinds}
    return Worker(
        jobs, app.jobs_apart, identity(app, selection, slots), handlers, app.redactor, times=TIMES,
        changed=partial(readiness.set, "jobs"),
    )  # fmt: skip


def identity(app: App, selection: Selection, slots: int) -> Identity:
    return Identity(
        app.holder, socket.gethostname(), os.getpid(), version("ingest"), slots, selection.kinds, selection.sources
    )
