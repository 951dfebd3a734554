"""`run`: poll sources, publish, save cursors."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Annotated

import structlog
import typer

from checkpoints import StreamId, noted
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import REDACTOR, ConfigOption, JsonOption, LogFormat, LogLevel, loaded, with_app
from ingest.cli.ops import OpsOption, listening
from ingest.cli.streams import Streams, open_polling
from ingest.cli.telling import telling
from ingest.errors import ConfigError, IngestError, Transient
from ingest.report import Outcome, Report, exit_code
from ingest.run import Stream
from ingest.signals import stopping
from ingest.sources.cursor import describe
from ingest.web.readiness import Readiness

log = structlog.get_logger()

SourceOption = Annotated[list[str] | None, typer.Option("--source", "-s", help="Which sources; all when absent.")]
StreamOption = Annotated[
    list[str] | None, typer.Option("--stream", "-t", help="Which of their streams; all when absent.")
]
Once = Annotated[bool, typer.Option("--once", help="Every stream once, then exit: 0 only when all are complete.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Fetch and count once; publish nothing, save nothing.")]


def run(
    source: SourceOption = None,
    stream: StreamOption = None,
    once: Once = False,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    ops: OpsOption = None,
    as_json: JsonOption = False,
    log_format: LogFormat = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Poll sources, publish their events, save the cursors. On schedule, or once; tasks are called too."""
    configuration = loaded(
        config, log_format=log_format, log_level="warning" if once and log_level == "info" else log_level
    )

    async def work(app: App) -> list[Report]:
        tasks = [] if source or stream or once or dry_run else list(app.config.tasks)
        selected = [] if tasks and not app.config.sources else select(app, source or [], stream or [])
        readiness = Readiness()
        async with AsyncExitStack() as stack:
            streams = Streams(app, stack)
            opened = [await streams.open(name) for name in selected]
            if dry_run:
                return [await _rehearse(app, s) for s in opened]
            await stack.enter_async_context(listening(ops, app.config, readiness, once=once, desk=app.desk))
            progress = stack.enter_context(show.Progress(quiet=as_json or not once))

            def changed(report: Report) -> None:
                readiness.set(str(report.stream), report.blocked)
                progress.report(report)

            tell = await stack.enter_async_context(telling(app, once=once))
            stop = (await stack.enter_async_context(stopping())).stop
            polling = await open_polling(app, streams, changed)
            readiness.started = True
            if once:
                return await polling.runner.once(opened, stop)
            from ingest.cli.forever import forever

            return await forever(app, selected, tasks, polling, readiness, stop, tell)

    found = with_app(configuration, work)
    if once or dry_run:
        show.reports(found, as_json=as_json, scrub=REDACTOR.scrub)
        raise typer.Exit(exit_code(found))


def select(app: App, sources: Sequence[str], streams: Sequence[str]) -> list[StreamId]:
    """Raises ConfigError for a name that is not configured, and when nothing is left to run."""
    configured = app.config.sources
    for name in sources:
        if name not in configured:
            raise ConfigError(f"no source `{name}`; configured: {', '.join(configured) or 'none'}")
    chosen = [
        StreamId(s, t) for s in sources or configured for t in configured[s].streams if not streams or t in streams
    ]
    missing = [t for t in streams if t not in {stream.stream for stream in chosen}]
    if missing or not chosen:
        raise ConfigError(
            f"no stream {', '.join(missing)} in {', '.join(sources or configured) or 'an empty configuration'}"
        )
    return chosen


async def open_streams(app: App, selected: Sequence[StreamId], stack: AsyncExitStack) -> list[Stream]:
    """References of the selected sources are resolved here, and nowhere before."""
    streams = Streams(app, stack)
    return [await streams.open(name) for name in selected]


def names(streams: Sequence[Stream]) -> list[str]:
    return [topic for stream in streams for topic in stream.topics]


async def _rehearse(app: App, stream: Stream) -> Report:
    """Fetch and count from where the saved cursor stands; publish nothing, save nothing."""
    name = stream.target.stream
    report = Report(name)
    checkpoints, _ = await app.state()

    async def saved(partitions: Sequence[str]) -> Mapping[str, bytes]:
        return await checkpoints.cursors(name, partitions)

    cursor = next((c.cursor for c in await checkpoints.list() if c.stream == name), None)
    report.cursor_from = describe(cursor)
    try:
        async for page in stream.source.pages(cursor, report, saved):
            known = await checkpoints.seen(name, [record.id for record in page.records])
            fresh = sum(known.get(record.id) != noted(record.version, record.deleted) for record in page.records)
            report.pages += 1
            report.events += fresh
            report.unchanged += len(page.records) - fresh
            report.cursor_to = describe(page.cursor)
            report.dead_letters += len(page.refused)
            report.skipped += page.skipped
            report.gaps += page.gaps
            if page.stop is not None:
                report.end(Outcome.COMPLETE, f"dry run: {page.stop}")
    except Transient as exc:
        report.end(Outcome.UNAVAILABLE, str(exc))
    except IngestError as exc:
        report.end(Outcome.FAILED, str(exc))
    return report
