"""`source`: pause a source, let fewer of its jobs run at a time, and see what holds. Nothing that runs is ended."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer

from checkpoints.jobs.desk import FOREVER, JobDesk, SourceRow
from ingest.cli import show
from ingest.cli.context import ConfigOption, JsonOption, loaded
from ingest.cli.desk import at_desk, person
from ingest.cli.moments import clock, moment, plain, seconds, span
from ingest.config.loader import Loaded
from ingest.errors import ConfigError

app = typer.Typer(help="What holds for the jobs of a source.", no_args_is_help=True, rich_markup_mode=None)

T = TypeVar("T")

NameArgument = Annotated[str, typer.Argument(help="A source, or a task.", metavar="SOURCE")]
CONFIGURED, MOST = "configured", 1_000_000


@app.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """How many jobs may run at a time, pauses, and who was served last."""

    async def look(desk: JobDesk) -> tuple[float, Sequence[SourceRow]]:
        return (await desk.summary()).now, await desk.sources()

    now, found = at_desk(loaded(config), look)
    if as_json:
        print(json.dumps([plain(row) for row in found], indent=2))
        return
    columns = ("source", "at a time", "pending", "running", "paused", "served last")
    show.rows(columns, [_row(row, now) for row in found])
    print(clock(now))


def _row(row: SourceRow, now: float) -> list[str]:
    limit = "any number" if row.max_running is None else str(row.max_running)
    if row.limited_to is not None:
        limit = f"{row.limited_to} (configured: {limit})"
    paused = f"{moment(row.paused_until, now)} {row.pause_note or ''}".strip()
    return [row.name, limit, f"{row.pending:,}", f"{row.running:,}", paused, moment(row.last_claim_at, now)]


@app.command()
def pause(
    source: NameArgument,
    lasting: Annotated[
        float | None, typer.Option("--for", parser=seconds, help="Else until `source resume`.", metavar="DURATION")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="Why, for whoever wonders.")] = "",
    config: ConfigOption = None,
) -> None:
    """Begin none of its jobs; those that run go on."""
    said = f"{note} ({person()})" if note else f"by {person()}"
    _of(loaded(config), source, lambda desk: desk.pause(source, FOREVER if lasting is None else lasting, said))
    typer.echo(f"{source}: paused {'until `source resume`' if lasting is None else f'for {span(lasting)}'}")


@app.command()
def resume(source: NameArgument, config: ConfigOption = None) -> None:
    """End its pause, whoever began it."""
    paused = _of(loaded(config), source, lambda desk: desk.resume(source))
    typer.echo(f"{source}: {'goes on' if paused else 'was not paused'}")


@app.command()
def limit(
    source: NameArgument,
    number: Annotated[str, typer.Argument(help=f"So many jobs at a time, or `{CONFIGURED}`.", metavar="NUMBER")],
    config: ConfigOption = None,
) -> None:
    """How many of its jobs may run at a time, on all workers together, instead of what is configured."""
    if number != CONFIGURED and not (number.isdecimal() and 0 < int(number) <= MOST):
        raise typer.BadParameter(f"a number of jobs, or `{CONFIGURED}`; `source pause` lets none run")
    wanted = None if number == CONFIGURED else int(number)
    _of(loaded(config), source, lambda desk: desk.limit(source, wanted))
    typer.echo(f"{source}: {'as configured' if wanted is None else f'{wanted} at a time'}")


def _of(configuration: Loaded, source: str, work: Callable[[JobDesk], Awaitable[T]]) -> T:
    """Raises ConfigError for a name that nobody knows: a pause of it would never be noticed."""

    async def known(desk: JobDesk) -> T:
        parts = configuration.config
        names = {*parts.sources, *parts.tasks, *(row.name for row in await desk.sources())}
        if source not in names:
            raise ConfigError(f"no source or task `{source}`; there are: {', '.join(sorted(names)) or 'none'}")
        return await work(desk)

    return at_desk(configuration, known)
