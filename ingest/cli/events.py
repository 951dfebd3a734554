"""`events`: look into the store."""

import sys
from typing import Annotated

import orjson
import typer

from consumers.store import Query, Row
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import ConfigOption, loaded, with_app
from ingest.cli.table import Spare

SHOWN = 50  # newest rows of a table
PAYLOAD_SHOWN = 60  # characters
_EMPTY = "the store is empty: `ingest consume NAME --once` writes into it what `ingest run --once` brought into the log"
_NONE_OF_THOSE = "the store has others; without options the newest are shown"
SPARE = Spare(("occurred_at",), ("offset", "partition", "type", "topic", "occurred_at"))
COLUMNS = ("event_id", "key", "type", "occurred_at", "topic", "partition", "offset", "payload")


def events(
    source: Annotated[str | None, typer.Option("--source", "-s")] = None,
    stream: Annotated[str | None, typer.Option("--stream", "-t")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only events with this key.")] = None,
    event_id: Annotated[str | None, typer.Option("--id", help="Only this event.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Only the newest so many.")] = None,
    form: Annotated[str, typer.Option("--format", help="table (the last 50) or jsonl (all).")] = "table",
    count: Annotated[bool, typer.Option("--count", help="Print only how many there are.")] = False,
    config: ConfigOption = None,
) -> None:
    """List what is stored. A table of the newest, or every event as a line of JSON."""
    if form not in ("table", "jsonl"):
        raise typer.BadParameter("table or jsonl", param_hint="--format")
    configuration = loaded(config)
    query = Query(source, stream, key, event_id, limit or (SHOWN if form == "table" else None))

    async def work(app: App) -> None:
        store = await app.store()
        if count:
            print(await store.count(query))
        elif form == "jsonl":
            async for row in store.events(query):
                sys.stdout.write(_line(row))
        else:
            found = [row async for row in store.events(query)]
            show.rows(COLUMNS, [_cells(row) for row in found], SPARE)
            print(f"{len(found):,} of {await store.count(query):,} events")
            if not found:
                typer.echo(_EMPTY if not await store.count(Query()) else _NONE_OF_THOSE, err=True)

    with_app(configuration, work)


def _line(row: Row) -> str:
    """One object; the payload is embedded as it is, line ends inside it as spaces."""
    fields = {name: value for name, value in row._asdict().items() if name != "payload"}
    head = orjson.dumps(fields).decode()
    return f'{head[:-1]},"payload":{row.payload.replace(chr(10), " ").replace(chr(13), " ")}}}\n'


def _cells(row: Row) -> list[str]:
    fields = row._asdict()
    payload = " ".join(row.payload.split())
    fields["payload"] = payload if len(payload) <= PAYLOAD_SHOWN else payload[: PAYLOAD_SHOWN - 1] + "…"
    return ["" if fields[name] is None else str(fields[name]) for name in COLUMNS]
