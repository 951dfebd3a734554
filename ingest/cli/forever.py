"""`run` without `--once`: streams that are polled all the time stand by, all else is scheduled, and done as jobs."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from checkpoints import StreamId
from ingest.app import App
from ingest.cli.streams import Polling
from ingest.cli.working import OF_STREAMS, Selection, open_worker, tidying
from ingest.config.model import Config
from ingest.jobs import plans
from ingest.jobs.firing import Plan
from ingest.jobs.kinds import TASK, task_kind
from ingest.jobs.scheduler import Scheduler
from ingest.report import Report
from ingest.web.readiness import Readiness


async def forever(
    app: App,
    selected: Sequence[StreamId],
    tasks: Sequence[str],
    polling: Polling,
    readiness: Readiness,
    stop: asyncio.Event,
    tell: Callable[[Report], None],
) -> list[Report]:
    """Until `stop`. `tell` hears of the streams that stand by; of jobs the database knows."""
    standing = [name for name in selected if _standing(app, name)]
    scheduled = [name for name in selected if not _standing(app, name)]
    async with asyncio.TaskGroup() as group:
        if standing:

            def changed(report: Report) -> None:
                polling.runner.changed(report)
                tell(report)

            streams = [await polling.streams.open(name) for name in standing]
            group.create_task(replace(polling.runner, changed=changed).forever(streams, stop))
        group.create_task(_jobs(app, selected, scheduled, tasks, polling, readiness, stop))
    return list(polling.runner.latest.values())


async def _jobs(
    app: App,
    selected: Sequence[StreamId],
    scheduled: Sequence[StreamId],
    tasks: Sequence[str],
    polling: Polling,
    readiness: Readiness,
    stop: asyncio.Event,
) -> None:
    """Backfills of streams that stand by are jobs, too."""
    sources = list(dict.fromkeys(name.source for name in selected))
    kinds = [*(OF_STREAMS if sources else ()), *map(task_kind, tasks)]
    selection = Selection(kinds, [*sources, *tasks])
    worker = await open_worker(app, selection, app.config.jobs.slots, readiness, polling)
    scheduler = Scheduler(
        await app.schedules(), _plans(app, scheduled, tasks), owned(app.config, scheduled, tasks), app.holder,
        partial(readiness.set, "schedules"),
    )  # fmt: skip
    async with asyncio.TaskGroup() as group:
        group.create_task(scheduler.run(stop))
        tidy = group.create_task(tidying(app))
        await worker.run(stop)
        tidy.cancel()


def _standing(app: App, name: StreamId) -> bool:
    return app.config.sources[name.source].streams[name.stream].standing


def _plans(app: App, scheduled: Sequence[StreamId], tasks: Sequence[str]) -> list[Plan]:
    streams = [plans.of_stream(*name, app.config.sources[name.source].streams[name.stream]) for name in scheduled]
    return [*streams, *plans.of_tasks({name: app.config.tasks[name] for name in tasks})]


def owned(config: Config, scheduled: Sequence[StreamId], tasks: Sequence[str]) -> list[str]:
    """What the ids of schedules begin with of which we know all: of sources whose streams are all selected."""
    whole = [
        source
        for source in dict.fromkeys(name.source for name in scheduled)
        if all(
            part.standing or StreamId(source, stream) in scheduled
            for stream, part in config.sources[source].streams.items()
        )
    ]
    return [*(f"{source}/" for source in whole), *([TASK] if tasks else [])]
