"""`worker`: take jobs and work them off."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Annotated

import typer

from checkpoints.jobs import Outcome
from ingest.app import App
from ingest.cli.context import ConfigOption, JsonOption, LogFormat, LogLevel, loaded, with_app
from ingest.cli.ops import OpsOption, listening
from ingest.cli.telling import telling
from ingest.imports import lightly
from ingest.jobs.tally import Tally
from ingest.report import Report
from ingest.signals import stopping
from ingest.web.readiness import Readiness

FAILED, UNAVAILABLE = 1, 3

KindOption = Annotated[
    list[str] | None, typer.Option("--kind", help="Which: sync, backfill, task (all), task:NAME. All when absent.")
]
SourceOption = Annotated[
    list[str] | None, typer.Option("--source", "-s", help="Only jobs of these sources or tasks; of all when absent.")
]
SlotsOption = Annotated[
    int | None, typer.Option("--slots", min=1, help="How many at a time; else `jobs.slots` of the file.")
]
Once = Annotated[
    bool, typer.Option("--once", "--drain", help="Until nothing is due, then exit: 0 only when all are done.")
]


def worker(
    kind: KindOption = None,
    source: SourceOption = None,
    slots: SlotsOption = None,
    once: Once = False,
    config: ConfigOption = None,
    ops: OpsOption = None,
    as_json: JsonOption = False,
    log_format: LogFormat = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Take jobs and work them off: runs of streams, tasks. Any number of workers share them."""
    configuration = loaded(
        config, log_format=log_format, log_level="warning" if once and log_level == "info" else log_level
    )

    async def work(app: App) -> tuple[Tally, bool]:
        with lightly():
            from ingest.cli.streams import Streams, open_polling
            from ingest.cli.working import OF_STREAMS, open_worker, select, tidying

        selection = select(app.config, kind or [], source or [])
        readiness = Readiness()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(listening(ops, app.config, readiness, once=once, desk=app.desk))
            await stack.enter_async_context(telling(app, once=once))
            stop = (await stack.enter_async_context(stopping())).stop

            def changed(report: Report) -> None:
                readiness.set(str(report.stream), report.blocked)

            of_streams = not {*OF_STREAMS}.isdisjoint(selection.kinds)
            polling = await open_polling(app, Streams(app, stack), changed) if of_streams else None
            opened = await open_worker(app, selection, slots or app.config.jobs.slots, readiness, polling)
            readiness.started = True
            async with asyncio.TaskGroup() as group:
                tidy = group.create_task(tidying(app))
                tally = await opened.run(stop, drain=once)
                tidy.cancel()
            return tally, stop.is_set()

    tally, stopped = with_app(configuration, work)
    if once:
        typer.echo(json.dumps(counts(tally)) if as_json else shown(tally))
        raise typer.Exit(exit_code(tally, stopped=stopped))


def counts(tally: Tally) -> dict[str, int]:
    return {**{outcome.value: tally.count(outcome) for outcome in Outcome}, "dead": tally.died, "lost": tally.lost}


def shown(tally: Tally) -> str:
    found = counts(tally)
    words = ("done", "done"), ("retry", "to be tried again"), ("released", "given back"), ("dead", "dead"), (
        "cancelled", "cancelled"), ("lost", "lost to other workers")  # fmt: skip
    return ", ".join(f"{found[key]} {word}" for key, word in words if found[key]) or "nothing was due"


def exit_code(tally: Tally, *, stopped: bool) -> int:
    """0: all that was due is done; 1: a job is dead, or the worker was stopped; 3: some come again."""
    if tally.died or stopped:
        return FAILED
    return UNAVAILABLE if tally.count(Outcome.RETRY) or tally.count(Outcome.RELEASED) or tally.lost else 0
