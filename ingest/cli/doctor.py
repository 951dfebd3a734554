"""`doctor`: looks at everything that is configured, and says what a person must do."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import typer

from ingest.app import App
from ingest.cli import show
from ingest.cli.context import REDACTOR, ConfigOption, JsonOption, loaded, with_app
from ingest.config import addresses
from ingest.config.addresses import KafkaAddress, PostgresAddress, SqliteAddress
from ingest.doctor import Finding, Level, act, good, note
from ingest.errors import ConfigError, IngestError
from migrations import runner

ANSWER = 20.0  # seconds for each thing that is asked
ACT = 1

Asked = Callable[[], Awaitable[list[Finding]]]


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Say what a person must do, if anything. Looks at databases, log, jobs and schedules; exit 1 then."""
    found = with_app(loaded(config), _findings)
    scrubbed = [finding._replace(said=REDACTOR.scrub(finding.said)) for finding in found]
    if as_json:
        print(json.dumps([finding._asdict() for finding in scrubbed], indent=2))
    else:
        show.rows(("what", "", "found", "what to do"), [_row(finding) for finding in scrubbed])
    raise typer.Exit(ACT if any(finding.level is Level.ACT for finding in found) else 0)


def _row(finding: Finding) -> list[str]:
    level = "" if finding.level is Level.GOOD else finding.level.upper()
    return [finding.about, level, finding.said, finding.todo]


async def _findings(app: App) -> list[Finding]:
    found: list[Finding] = []
    for about, ask in _questions(app):
        found += await _asked(about, ask)
    return found


def _questions(app: App) -> Iterator[tuple[str, Asked]]:
    """Each thing once, whatever it is used for."""
    named = addresses.addresses(app.config, app.redactor, app.loaded.where)
    databases = {str(a): a for a in (named.state, named.store, named.log) if not isinstance(a, KafkaAddress)}
    for shown, address in databases.items():
        if isinstance(address, PostgresAddress):
            yield shown, partial(_postgres, shown, address)
        else:
            yield shown, partial(_sqlite, app, address)
    if isinstance(named.log, KafkaAddress):
        yield str(named.log), partial(_kafka, app, str(named.log))
    yield "jobs", partial(_queue, app)


async def _asked(about: str, ask: Asked) -> list[Finding]:
    try:
        return await asyncio.wait_for(ask(), ANSWER)
    except TimeoutError:
        return [act(about, f"no answer within {ANSWER:.0f} s", "is it there, and does a firewall let us through?")]
    except IngestError as exc:
        todo = "mend what is configured" if isinstance(exc, ConfigError) else "bring it back; everything waits for it"
        return [act(about, str(exc), todo)]


async def _postgres(about: str, address: PostgresAddress) -> list[Finding]:
    from ingest.doctor import postgres

    return await _migrations(about, address.url) or await postgres.examine(about, address.url)


async def _sqlite(app: App, address: SqliteAddress) -> list[Finding]:
    from ingest.doctor import sqlite
    from ingest.sqlite import open_database

    path = address.path.absolute()
    library = sqlite.library(sqlite3.sqlite_version_info)
    if not await asyncio.to_thread(path.exists):
        return [library, note(f"file {path}", "not there yet; it is made when it is first used")]
    missing = await _migrations(f"file {path}", f"sqlite:///{path}")
    async with open_database(path) as database:
        return [library, *missing, *await sqlite.examine(database)]


async def _migrations(about: str, url: str) -> list[Finding]:
    missing = await runner.pending(url)
    return [act(about, f"not applied: {', '.join(missing)}", "`ingest migrate`")] if missing else []


async def _kafka(app: App, about: str) -> list[Finding]:
    names = await (await app.admin()).topics()
    return [good(about, f"it answers; {len(names)} topics")]


async def _queue(app: App) -> list[Finding]:
    from ingest.cli.schedules import plans
    from ingest.doctor import queue
    from ingest.jobs.why import late

    desk, schedules, planned = await app.desk(), await app.schedules(), plans(app.loaded)
    known = [(planned.get(one.id), one) for one in await schedules.load([]) if not one.paused]
    ticking = [
        queue.Ticking(one.id, plan.job.kind, plan.job.source, late(plan, one))
        for plan, one in known
        if plan is not None
    ]
    return queue.examine(await desk.summary(), await desk.workers(), ticking)
