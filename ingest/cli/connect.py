"""`check --connect`: does everything that is configured answer? One page of each stream, the log, the databases.

Nothing is published or saved, no topic is created; the embedded file is.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import NamedTuple

from checkpoints import StreamId
from ingest import topics
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import REDACTOR
from ingest.cli.opened import Opened, open_source
from ingest.config import addresses
from ingest.errors import ConfigError, IngestError, Transient
from ingest.report import Report


class Answer(NamedTuple):
    what: str
    good: bool
    said: str
    code: int = 0  # what the command would end with for this alone


async def connect(app: App) -> list[Answer]:
    answers: list[Answer] = []
    for name in app.config.sources:
        answers += await _asked(f"source {name}", partial(_source, app, name))
    for what, ask in (("log", _log), ("store", _store), ("state", _state)):
        answers += await _asked(what, partial(ask, app))
    return answers


async def _asked(what: str, ask: Callable[[], Awaitable[list[Answer]]]) -> list[Answer]:
    try:
        return await ask()
    except IngestError as exc:
        return [_failed(what, exc)]


def _failed(what: str, exc: IngestError) -> Answer:
    code = 2 if isinstance(exc, ConfigError) else 3 if isinstance(exc, Transient) else 1
    return Answer(what, False, REDACTOR.scrub(str(exc)), code)


async def _source(app: App, name: str) -> list[Answer]:
    async with AsyncExitStack() as stack:
        opened = await open_source(app, name, stack, alone=True)
        return [await _stream(opened, StreamId(name, stream)) for stream in opened.source.streams]


async def _stream(opened: Opened, name: StreamId) -> Answer:
    if opened.source.streams[name.stream].job is not None:
        return Answer(f"stream {name}", True, "not asked: it would have a report made (`job`); `preview` does")
    report = Report(name)
    try:
        async with aclosing(opened.stream(name.stream).pages(None, report)) as pages:
            page = await anext(pages)
    except IngestError as exc:
        return _failed(f"stream {name}", exc)
    more = "and there is more" if page.stop is None else page.stop
    counts = f"{len(page.records)} records" + (f", {len(page.refused)} dead letters" if page.refused else "")
    return Answer(f"stream {name}", True, f"{counts} on the first page; {more}")


async def _log(app: App) -> list[Answer]:
    admin = await app.admin()
    wanted = [
        part.topic.format(source=name, stream=stream)
        for name, source in app.config.sources.items()
        for stream, part in source.streams.items()
    ]
    found = await admin.describe(wanted)
    missing = [name for name in wanted if name not in found]
    words = f"{len(found)} of {len(wanted)} topics exist"
    if missing:
        words += "; `run` creates the others" if app.config.topics.create else f"; missing: {', '.join(missing)}"
    answers = [Answer("log", app.config.topics.create or not missing, words, 0 if app.config.topics.create else 2)]
    for name, info in found.items() if app.replicated else ():
        try:
            topics.check([info], app.config.topics)
        except ConfigError as exc:
            answers.append(_failed(f"topic {name}", exc))
    return answers


async def _store(app: App) -> list[Answer]:
    await app.store()
    return [Answer("store", True, str(addresses.store(app.config, app.redactor, app.loaded.where)))]


async def _state(app: App) -> list[Answer]:
    checkpoints, _ = await app.state()
    saved = len(await checkpoints.list())
    where = addresses.state(app.config, app.redactor, app.loaded.where)
    return [Answer("state", True, f"{where}: {saved} saved cursors")]


def table(answers: list[Answer]) -> None:
    show.rows(("what", "answers", "said"), list(_rows(answers)))


def _rows(answers: list[Answer]) -> Iterator[tuple[str, str, str]]:
    for one in answers:
        yield one.what, "yes" if one.good else "NO", one.said


def exit_code(answers: list[Answer]) -> int:
    """A mistake first, then what failed, then what may pass by itself."""
    codes = {one.code for one in answers if not one.good}
    return next((code for code in (2, 1, 3) if code in codes), 0)
