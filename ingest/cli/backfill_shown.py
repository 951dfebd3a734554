"""A backfill as tables and as JSON: what `ingest backfill` prints."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from checkpoints import StreamId
from checkpoints.jobs import State
from checkpoints.jobs.desk import Row, WorkerRow
from ingest.backfill import KIND, short
from ingest.backfill.plan import Asked, Plan
from ingest.cli import show

LINE = 80  # characters of an error in a table


def planned(name: StreamId, found: Plan, *, as_json: bool) -> None:
    """As they would be asked for."""
    if as_json:
        print(json.dumps({"stream": str(name), "slices": [_asked(one) for one in found.slices], "notes": found.notes}))
        return
    rows = [[str(n), *_ends(one), one.since or "", one.until or "(no end)"] for n, one in enumerate(found.slices, 1)]
    show.rows(("slice", "from", "to", "asked for", "and"), rows)
    _note(found)
    print("dry run: nothing was added")


def _note(found: Plan) -> None:
    if found.window is not None:
        print(f"each is asked for in windows of {found.window:g} s, as `window` says")
    for note in found.notes:
        print(note)


def _ends(one: Asked) -> list[str]:
    return [short(position, one.slice.micros) for position in one.slice.stretch]


def _asked(one: Asked) -> dict[str, Any]:
    start, end = _ends(one)
    return {"from": start, "to": end, "since": one.since, "until": one.until}


def progress(name: StreamId, found: Plan, rows: Sequence[Row], *, as_json: bool, scrub: Callable[[str], str]) -> None:
    """How far each slice is."""
    known = {row.dedupe_key: row for row in rows}
    each = [(one, known.get(f"{KIND}:{name}@{one.slice.name}")) for one in found.slices]
    if as_json:
        slices = [{**_asked(one), **({} if row is None else _state(row, scrub))} for one, row in each]
        print(json.dumps({"stream": str(name), "slices": slices, "notes": found.notes}), flush=True)
        return
    cells = [[*_ends(one), *_row(row, scrub)] for one, row in each]
    show.rows(("from", "to", "job", "state", "pages", "events", "at", "error"), cells)
    counts = Counter(str(row.state) for row in rows)
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    print(f"{name}: {len(each)} slices, {states}", flush=True)


def _state(row: Row, scrub: Callable[[str], str]) -> dict[str, Any]:
    error = None if row.last_error is None else scrub(row.last_error)
    return {"job": row.id, "state": str(row.state), "progress": _told(row), "error": error}


def _told(row: Row) -> Mapping[str, Any]:
    return {} if row.progress is None else json.loads(row.progress)


def _row(row: Row | None, scrub: Callable[[str], str]) -> list[str]:
    if row is None:
        return ["", "", "", "", "", ""]
    told = _told(row)
    state = f"dead: {row.dead_reason}" if row.state is State.DEAD else str(row.state)
    counts = [f"{told[key]:,}" if key in told else "" for key in ("pages", "events")]
    if row.state is State.DONE:
        return [str(row.id), state, *counts, "", ""]
    error = scrub(row.last_error or "").split("\n", 1)[0][:LINE]
    return [str(row.id), state, *counts, str(told.get("position") or ""), error]


def hints(name: StreamId, found: Plan, workers: Sequence[WorkerRow], rows: Sequence[Row], *, watched: bool) -> None:
    """What to know, and what to do next."""
    if all(row.state is State.DONE for row in rows):
        if not watched:
            print("all of it was read before; `--again` reads it once more")
        return
    waits = any(row.state is State.PENDING for row in rows)
    if waits and not any(not one.stopping and _takes(one, name.source) for one in workers):
        print(f"no worker takes them yet: start `ingest worker`, or `ingest run --source {name.source}`")
    if not watched:
        _note(found)
        print(f"follow it: the same command with --watch, or `ingest jobs list --kind {KIND}`, `ingest jobs show ID`")


def _takes(worker: WorkerRow, source: str) -> bool:
    return (not worker.kinds or KIND in worker.kinds) and (not worker.sources or source in worker.sources)
