"""`workers`: who takes jobs, and whether they live."""

import json
from collections.abc import Sequence

from checkpoints.jobs import JOB_TTL
from checkpoints.jobs.desk import WorkerRow
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import ConfigOption, JsonOption, loaded
from ingest.cli.moments import clock, moment, plain, span
from ingest.cli.table import Spare
from ingest.cli.watching import WatchOption, indented, looked

SPARE = Spare(("lost leases",), ("version", "started"))

Found = tuple[float, Sequence[WorkerRow]]


def workers(config: ConfigOption = None, as_json: JsonOption = False, watch: WatchOption = False) -> None:
    """List the processes that take jobs. What each may take, how many it is at, and its last sign of life."""

    async def look(opened: App) -> Found:
        desk = await opened.desk()
        return (await desk.summary()).now, await desk.workers()

    looked(loaded(config), look, lambda found: _draw(found, as_json, indented(watch)), watch=watch)


def _draw(found: Found, as_json: bool, indent: int | None) -> None:
    now, rows = found
    if as_json:
        print(json.dumps([{**plain(row), "state": _state(row)} for row in rows], indent=indent))
        return
    columns = ("worker", "state", "version", "started", "sign of life", "running", "lost leases", "takes")
    show.rows(columns, [_row(row, now) for row in rows], SPARE)
    print(clock(now))


def _state(row: WorkerRow) -> str:
    """`gone`: its claims have ended, and others take its jobs back."""
    return "gone" if row.silent > JOB_TTL else "stopping" if row.stopping else "alive"


def _row(row: WorkerRow, now: float) -> list[str]:
    takes = f"{', '.join(row.kinds) or 'any kind'} of {', '.join(row.sources) or 'any source'}"
    return [
        row.name, _state(row), row.version, moment(row.started_at, now), f"{span(row.silent)} ago",
        f"{row.running}/{row.slots}", f"{row.lost:,}", takes,
    ]  # fmt: skip
