"""`verify`: is everything that the API has in the log and in the store?"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import typer

from checkpoints import StreamId
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import REDACTOR, ConfigOption, JsonOption, loaded, with_app
from ingest.cli.opened import Opened, open_source
from ingest.cli.run import SourceOption, StreamOption, select
from ingest.cli.table import Spare
from ingest.config.incremental import UNFILTERED
from ingest.config.model import Incremental, Stream
from ingest.errors import ConfigError
from ingest.report import Report
from ingest.sources import times
from ingest.sources.cursor import Cursor
from ingest.verify import API, LOG, STORE, Entry, Finding, Ledger, Range, ledger, listed, logged, stored

AT_ONCE = 1000  # entries
HINTS = {
    "missing": "not polled or not consumed yet? `ingest run --once`, `ingest consume --once`, then verify again",
    "extra": "gone from the API; `deletes: {sweep: …}` says so with its next sweep",
    "differing": "changed without a new version; see `version`",
    "repeated": "a crash published it again; the store has it once",
}


class Verified(NamedTuple):
    stream: StreamId
    listed: int
    dead_letters: int  # records that can be no events
    findings: Sequence[Finding]

    @property
    def wrong(self) -> bool:
        return any(finding.wrong for finding in self.findings)


def verify(
    source: SourceOption = None,
    stream: StreamOption = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Only records from here on (RFC 3339, or a number).")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Only records before this.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the API again, and compare it with log and store. Ids and bytes; exit 1 when something is wrong."""
    configuration = loaded(config)

    async def work(app: App) -> list[Verified]:
        async with AsyncExitStack() as stack:
            found, opened = [], {}
            for name in select(app, source or [], stream or []):
                if name.source not in opened:
                    opened[name.source] = await open_source(app, name.source, stack)
                found.append(await _verified(app, opened[name.source], name, start, end))
            return found

    found = with_app(configuration, work)
    _print_json(found) if as_json else _print(found)
    raise typer.Exit(1 if any(one.wrong for one in found) else 0)


async def _verified(app: App, opened: Opened, name: StreamId, start: str | None, end: str | None) -> Verified:
    stream = opened.source.streams[name.stream]
    incremental = stream.incremental
    wanted = Range(_position(name, incremental, start), _position(name, incremental, end))
    topic = stream.topic.format(source=name.source, stream=name.stream)
    dead_letters = 0
    with ledger() as book:
        cursor = None if incremental is None or wanted.start is None else _from(incremental, wanted.start)
        async for page in opened.stream(name.stream).pages(cursor, Report(name)):
            book.add(API, listed(name, (record for record in page.records if wanted.holds(record))))
            if page.listed is not None:
                book.lists(page.listed)
            dead_letters += len(page.refused)
        await _add(book, LOG, logged(name, topic, await app.reader()))
        await _add(book, STORE, stored(name, await app.store(), versioned=_versioned(stream)))
        whole = wanted == Range() and not _begins_later(incremental)
        findings = [*book.findings(LOG, whole=whole), *book.findings(STORE, whole=whole)]
        return Verified(name, book.count(API), dead_letters, findings)


def _begins_later(incremental: Incremental | None) -> bool:
    """The API has more than is listed here, and a backfill may have read it."""
    since = None if incremental is None else incremental.since
    return since is not None and since.first not in (None, UNFILTERED)


def _versioned(stream: Stream) -> bool:
    return bool(stream.id) and stream.version.path != "none"


async def _add(book: Ledger, side: str, entries: AsyncIterator[Entry]) -> None:
    some: list[Entry] = []
    async for entry in entries:
        some.append(entry)
        if len(some) == AT_ONCE:
            book.add(side, some)
            some = []
    book.add(side, some)


def _position(name: StreamId, incremental: Incremental | None, text: str | None) -> int | None:
    if text is None:
        return None
    if incremental is None or incremental.field is None:
        raise ConfigError(f"{name} has no incremental field: --from and --to say nothing about it")
    try:
        if incremental.type == "integer":
            return times.parse_integer(text)
        return times.parse_rfc3339(text, incremental.timezone or UTC)
    except ValueError as exc:
        raise ConfigError(f"--from and --to: {exc}") from exc


def _from(incremental: Incremental, position: int) -> bytes:
    """A cursor that has read everything before it."""
    shown = position if incremental.type == "integer" else times.rfc3339(position)
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return Cursor(fingerprint="", updated_at=now, high_water=shown).encode()


def _print_json(found: Sequence[Verified]) -> None:
    rows = [
        {
            "source": one.stream.source,
            "stream": one.stream.stream,
            "listed": one.listed,
            "dead_letters": one.dead_letters,
            "right": not one.wrong,
            "findings": [finding._asdict() for finding in one.findings if finding.total],
        }
        for one in found
    ]
    print(REDACTOR.scrub(json.dumps(rows, indent=2)))


def _print(found: Sequence[Verified]) -> None:
    kinds = ("missing", "extra", "differing", "repeated")
    rows = []
    for one in found:
        for side in (LOG, STORE):
            counts = {finding.kind: finding.total for finding in one.findings if finding.where == side}
            cells = [f"{counts[kind]:,}" if kind in counts else "-" for kind in kinds]
            rows.append([str(one.stream), side, f"{one.listed:,}", f"{one.dead_letters:,}", *cells])
    show.rows(("stream", "compared with", "listed", "dead letters", *kinds), rows, Spare(("dead letters", "repeated")))
    for one in found:
        for finding in one.findings:
            if finding.total:
                names = ", ".join(finding.names[:5]) + (", …" if finding.total > 5 else "")
                print(REDACTOR.scrub(f"{one.stream}: {finding.kind} in the {finding.where}: {names}"))
    for kind in dict.fromkeys(f.kind for one in found for f in one.findings if f.total):
        print(f"{kind}: {HINTS[kind]}")
