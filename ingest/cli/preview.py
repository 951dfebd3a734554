"""`preview`: what a stream would publish, page by page, and why its listing stops. Touches no state."""

import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkpoints import StreamId
from ingest import topics
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import REDACTOR, ConfigOption, JsonOption, loaded, with_app
from ingest.cli.looking import ANYWHERE, is_open, lists_in_answer
from ingest.cli.opened import open_source
from ingest.cli.table import Spare
from ingest.config.loader import Loaded, find, load
from ingest.config.problems import ConfigErrors
from ingest.discovery.answer import ListOf
from ingest.errors import ConfigError
from ingest.event import deletion_id, event_id
from ingest.eventlog import partition_of
from ingest.report import Report
from ingest.sources import Notice, Page, SourceRecord, nothing_saved
from ingest.sources.cursor import describe
from ingest.sources.request import Request
from ingest.telltale import masked

if TYPE_CHECKING:
    from ingest.sources.exchange import Response
    from ingest.sources.recording import Deferred, Recording

PAGES = 3
RECORDS = 5  # shown of each page, unless all are asked for
HTTP_SHOWN = 2000  # characters of a body under --http
WIDTH = 70  # characters of a record in the table
SPARE = Spare(("position", "occurred at"), ("position", "partition", "occurred at"))
COLUMNS = ("eventId", "key", "partition", "occurred at", "position", "record")


def preview(
    source: Annotated[str | None, typer.Option("--source", "-s", help="Which source.")] = None,
    stream: Annotated[str | None, typer.Option("--stream", "-t", help="Which of its streams.")] = None,
    pages: Annotated[int, typer.Option("--pages", "-p", min=1, help="At most so many pages.")] = PAGES,
    records: Annotated[int, typer.Option("--records", "-n", min=0, help="Records shown of each page.")] = RECORDS,
    saved: Annotated[bool, typer.Option("--saved", help="From the saved cursor; else from the beginning.")] = False,
    http: Annotated[bool, typer.Option("--http", help="Every request and answer, without secrets.")] = False,
    save: Annotated[Path | None, typer.Option("--save", help="Write the exchanges into this folder.")] = None,
    replay: Annotated[Path | None, typer.Option("--replay", help="Answer from such a folder, not the API.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what real pages of a stream would become. Publishes nothing, saves nothing."""
    configuration = _loaded(config)
    name = _chosen(configuration, source, stream)
    if is_open(configuration, name):
        found = with_app(configuration, lambda app: lists_in_answer(app, name, _recording(replay)))
        _propose(found, configuration.where(f"sources.{name.source}.streams.{name.stream}"), as_json=as_json)
        configuration = load(find(config), records=found[0].path)

    async def work(app: App) -> None:
        view = _Json(app.loaded, name, records) if as_json else _Plain(app.loaded, name, records)
        async with AsyncExitStack() as stack:
            trace = _tracing(http, save)
            if trace is not None:
                stack.callback(trace.close)
            opened = await open_source(app, name.source, stack, alone=True, clients=_recording(replay), trace=trace)
            cursor = await _cursor(app, name) if saved else None
            parts = (await app.state())[0].cursors if saved else None
            view.begin(cursor)
            report = Report(name) if as_json else _Noting(name)
            count = 0
            look_up = nothing_saved if parts is None else partial(parts, name)
            async for page in opened.stream(name.stream).pages(cursor, report, look_up):
                if page.bare and page.stop is None:
                    continue
                count += 1
                view.page(count, page)
                if page.stop is not None or count == pages:
                    break
            view.end(page.stop or f"--pages {pages}: there is more", report)

    with_app(configuration, work)


def _loaded(config: Path | None) -> Loaded:
    """Also a file whose streams do not all say where their records are."""
    try:
        return loaded(config)
    except ConfigErrors as exc:
        try:
            return load(find(config), records=ANYWHERE)
        except ConfigErrors:
            raise exc from None


def _propose(found: Sequence[ListOf], where: str, *, as_json: bool) -> None:
    """Says which of the lists in an answer may be the records; the first is shown."""
    if as_json:
        print(REDACTOR.scrub(json.dumps({"records": {one.path: len(one.records) for one in found}, "where": where})))
        return
    listed = ", ".join(f"{one.path} ({len(one.records)})" for one in found)
    said = f"{where}: no `records` yet; lists in the first answer: {listed}; shown as if it said `records: "
    print(REDACTOR.scrub(f"{said}{found[0].path}`"))


def _chosen(configuration: Loaded, source: str | None, stream: str | None) -> StreamId:
    """The only one that fits. Raises ConfigError where none does, or several do."""
    known = [StreamId(name, one) for name, part in configuration.config.sources.items() for one in part.streams]
    fitting = [one for one in known if source in (None, one.source) and stream in (None, one.stream)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ConfigError(f"which stream? choose with --source and --stream: {', '.join(map(str, fitting))}")
    wanted = "/".join(name for name in (source, stream) if name is not None) or "at all"
    raise ConfigError(f"no stream {wanted}; configured: {', '.join(map(str, known)) or 'none'}")


async def _cursor(app: App, name: StreamId) -> bytes | None:
    checkpoints, _ = await app.state()
    return next((one.cursor for one in await checkpoints.list() if one.stream == name), None)


class _Previewed:
    """One record as it would be published, or refused."""

    def __init__(self, loaded: Loaded, name: StreamId) -> None:
        topic = loaded.config.sources[name.source].streams[name.stream].topic
        self._name, self.topic = name, topic.format(source=name.source, stream=name.stream)
        self._partitions = topics.spec(self.topic, loaded.config.topics).partitions

    def record(self, record: SourceRecord) -> dict[str, Any]:
        name = deletion_id if record.deleted else event_id
        return {
            "event_id": name(*self._name, record.id, record.version),
            "key": record.key,
            "partition": partition_of(record.key.encode(), self._partitions),
            "occurred_at": record.occurred_at,
            "position": record.position,
            "deleted": record.deleted,
        }

    def page(self, number: int, page: Page, shown: int) -> dict[str, Any]:
        return {
            "page": number,
            "records": len(page.records),
            "refused": len(page.refused),
            "skipped": page.skipped,
            "cursor": json.loads(masked(REDACTOR.scrub(page.cursor.decode()))),
            "notices": [notice.message for notice in page.notices],
            "shown": [
                {**self.record(one), "payload": json.loads(one.value, parse_float=str)} for one in page.records[:shown]
            ],
            "dead_letters": [
                {"error": str(one.error), "payload": one.value.decode("utf-8", "replace")}
                for one in page.refused[:shown]
            ],
        }


class _Plain:
    """For people."""

    def __init__(self, loaded: Loaded, name: StreamId, shown: int) -> None:
        self._previewed, self._shown = _Previewed(loaded, name), shown

    def begin(self, cursor: bytes | None) -> None:
        print(f"topic {self._previewed.topic}; from {describe(cursor) or 'the beginning'}")

    def page(self, number: int, page: Page) -> None:
        counts = f"{len(page.records)} records, {len(page.refused)} dead letters, {page.skipped} left out"
        print(f"\npage {number}: {counts}; cursor after it: {describe(page.cursor)}")
        rows = [self._row(record) for record in page.records[: self._shown]]
        if rows:
            show.rows(COLUMNS, rows, SPARE)
        if len(page.records) > len(rows) > 0:
            print(f"… and {len(page.records) - len(rows)} more")
        for refused in page.refused[: self._shown]:
            text = _short(refused.value.decode("utf-8", "replace"))
            print(REDACTOR.scrub(f"dead letter: {refused.error}: {text}"))

    def end(self, why: str, report: Report) -> None:
        waited = f", waited {report.waited:.1f} s" if report.waited else ""
        print(
            f"\nstopped because: {REDACTOR.scrub(why)} ({report.requests} requests, {report.retries} retries{waited})"
        )

    def _row(self, record: SourceRecord) -> Sequence[str]:
        found = self._previewed.record(record)
        text = _short(REDACTOR.scrub(record.value.decode("utf-8", "replace")))
        cells = [found[name] for name in ("event_id", "key", "partition", "occurred_at", "position")]
        return [*("-" if cell is None else str(cell) for cell in cells), text]


class _Json:
    """One line for each page, and one at the end."""

    def __init__(self, loaded: Loaded, name: StreamId, shown: int) -> None:
        self._previewed, self._shown = _Previewed(loaded, name), shown

    def begin(self, cursor: bytes | None) -> None:
        pass

    def page(self, number: int, page: Page) -> None:
        print(REDACTOR.scrub(json.dumps(self._previewed.page(number, page, self._shown))))

    def end(self, why: str, report: Report) -> None:
        last = {"stopped": why, "requests": report.requests, "retries": report.retries}
        print(REDACTOR.scrub(json.dumps(last)))


class _Noting(Report):
    """Notices are a part of what is shown, not lines of the log."""

    def noticed(self, notice: Notice) -> None:
        if notice.kind not in self.notices:
            self.notices[notice.kind] = notice.message
            print(REDACTOR.scrub(f"note: {notice.message}"))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _recording(folder: Path | None) -> "Recording | None":
    if folder is None:
        return None
    from ingest.sources.recording import Recording

    return Recording(folder, REDACTOR)


def _tracing(http: bool, save: Path | None) -> "Deferred | None":
    """Shows and keeps what goes over the wire."""
    if not http and save is None:
        return None
    from ingest.sources.recording import Deferred, Recorder, shown

    def show_it(sent: Request, response: "Response") -> None:
        _print_exchange(shown(sent, response, REDACTOR))

    return Deferred(*([] if save is None else [Recorder(save, REDACTOR)]), *([show_it] if http else []))


def _print_exchange(exchange: dict[str, Any]) -> None:
    request, response = exchange["request"], exchange["response"]
    lines = [f"> {request['method']} {request['url']}"]
    lines += [f"> {name}: {value}" for name, value in request["headers"].items()]
    lines += [f"> {_short(request['body'])}"] if "body" in request else []
    lines += [f"< {response['status']}", *(f"< {name}: {value}" for name, value in response["headers"].items())]
    body = response.get("body", "")
    lines.append(f"< {body[:HTTP_SHOWN]}{'…' if len(body) > HTTP_SHOWN else ''}")
    print("\n".join(lines), file=sys.stderr)
