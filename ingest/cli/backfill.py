"""`backfill`: read a range of a stream, in slices that any number of workers share, beside whoever polls it.

The same command again adds nothing: it takes up slices that died, and shows how far the others are.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from checkpoints import StreamId
from checkpoints.jobs import Cap, NewJob, State
from checkpoints.jobs.desk import BATCH, Filter, JobDesk, Row, WorkerRow
from ingest.app import App
from ingest.backfill import AT_ONCE, KIND, QUEUE, job, short
from ingest.backfill.plan import Plan, Wanted, plan
from ingest.cli import backfill_shown as shown
from ingest.cli.context import REDACTOR, ConfigOption, JsonOption, loaded, with_app
from ingest.cli.desk import person
from ingest.cli.run import select
from ingest.cli.watching import CLEAR, EVERY
from ingest.config.model import Config
from ingest.errors import StoreUnavailable
from ingest.signals import stopping

READ_FOR = 10 * 365 * 86_400.0  # seconds for which a slice that was read is not read again; its row goes earlier


def backfill(
    source: Annotated[str, typer.Option("--source", "-s", help="Which source.")],
    stream: Annotated[str, typer.Option("--stream", "-t", help="Which of its streams.")],
    start: Annotated[str, typer.Option("--from", help="From here on (RFC 3339, as the API takes it, or a number).")],
    end: Annotated[str, typer.Option("--to", help="To before this.")],
    slices: Annotated[int | None, typer.Option("--slices", min=1, help="In so many parts; else as it fits.")] = None,
    max_running: Annotated[
        int | None, typer.Option("--max-running", min=1, help="So many of them at a time, on all workers together.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what was read before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the slices as they would be asked for.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show how far they are, until all have ended.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a range of a stream, in slices that workers share. Its own cursor is not touched; 1 when a slice is dead."""
    configuration = loaded(config)
    name = StreamId(source, stream)

    async def work(app: App) -> list[Row]:
        select(app, [source], [stream])
        found = plan(name, app.config.sources[source], Wanted(start, end, slices), time.time_ns() // 1000)
        if dry_run:
            shown.planned(name, found, as_json=as_json)
            return []
        ids = await _enqueued(app, name, found, max_running, again=again)
        return await _followed(app, name, found, ids, watch=watch, as_json=as_json)

    rows = with_app(configuration, work)
    raise typer.Exit(1 if any(row.state is State.DEAD for row in rows) else 0)


async def _enqueued(app: App, name: StreamId, found: Plan, max_running: int | None, *, again: bool) -> list[int]:
    """The jobs of the slices, in their order: new ones, and those that are there."""
    jobs, desk, queue = await app.jobs(), await app.desk(), QUEUE
    if (cap := _own_cap(app.config, name.source, max_running)) is not None:
        queue = _queue(name, found)
        await jobs.limit((), [Cap(queue, cap)])
    wanted = [job(*name, one.slice, queue, 0.0 if again else READ_FOR) for one in found.slices]
    await _take_up(desk, wanted)
    return [one.id for one in await jobs.enqueue(wanted)]


def _own_cap(config: Config, source: str, max_running: int | None) -> int | None:
    """How many of this backfill may run at a time, where that is less than of all of them together. One place of the
    source is left to its streams, where it has more than one."""
    shared = config.jobs.queues.get(QUEUE, AT_ONCE)
    own = min(max_running or shared, max(1, config.sources[source].limits.concurrency - 1))
    return own if own < shared else None


def _queue(name: StreamId, found: Plan) -> str:
    """One of its own, since its cap is its own."""
    first, last = found.slices[0].slice, found.slices[-1].slice
    return f"{QUEUE}:{name}@{short(first.stretch.start, first.micros)}..{short(last.stretch.end, last.micros)}"


async def _take_up(desk: JobDesk, wanted: Sequence[NewJob]) -> None:
    """Slices that died, or were cancelled, begin anew; each goes on from its own cursor."""
    keys = {one.dedupe_key for one in wanted}
    dead = await desk.list(Filter((State.DEAD,), wanted[0].source, KIND), sys.maxsize)
    newest = {row.dedupe_key: row.id for row in reversed(dead.rows) if row.dedupe_key in keys}
    ids = sorted(newest.values())
    for at in range(0, len(ids), BATCH):
        await desk.requeue(ids[at : at + BATCH], person())


async def _followed(
    app: App, name: StreamId, found: Plan, ids: Sequence[int], *, watch: bool, as_json: bool
) -> list[Row]:
    """As it stands, or with `watch` until all have ended; JSON only then."""
    desk = await app.desk()
    rows, workers = await _look(desk, ids)
    drawn: list[Row] = []
    async with stopping() as signalled:
        while True:
            over = not watch or signalled.stop.is_set() or all(row.state in (State.DONE, State.DEAD) for row in rows)
            if over or (rows != drawn and not as_json):
                if watch and sys.stdout.isatty():
                    sys.stdout.write(CLEAR)
                shown.progress(name, found, rows, as_json=as_json, scrub=REDACTOR.scrub)
                if not as_json:
                    shown.hints(name, found, workers, rows, watched=watch)
                drawn = rows
            if over:
                return rows
            await _either(signalled.stop)
            try:
                rows, workers = await _look(desk, ids)
            except StoreUnavailable as exc:  # who watches waits
                print(REDACTOR.scrub(str(exc)), file=sys.stderr, flush=True)


async def _either(stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), EVERY)
    except TimeoutError:
        return


async def _look(desk: JobDesk, ids: Sequence[int]) -> tuple[list[Row], Sequence[WorkerRow]]:
    """The jobs that are still kept, in the order of the slices, and who may take them."""
    rows = {row.id: row for row in (await desk.list(Filter(ids=ids), len(ids))).rows}
    return [rows[id] for id in ids if id in rows], await desk.workers()
