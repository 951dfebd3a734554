"""`jobs`: what is to be done, what is being done, what is dead; and what a person decides about it."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import typer

from checkpoints.jobs import State
from checkpoints.jobs.desk import BATCH, Filter, JobDesk, Listed, Ruling, Summary, clean
from ingest.app import App
from ingest.cli import jobs_shown
from ingest.cli.context import REDACTOR, ConfigOption, JsonOption, loaded
from ingest.cli.desk import at_desk, person
from ingest.cli.moments import point, seconds
from ingest.cli.watching import WatchOption, indented, looked
from ingest.config.loader import Loaded
from ingest.errors import ConfigError

SHOWN, MOST_SHOWN = 50, 1_000_000  # jobs of a list

app = typer.Typer(help="Durable jobs.", rich_markup_mode=None)

Ids = Annotated[list[int] | None, typer.Argument(help="Which jobs.", metavar="ID…")]
SourceOption = Annotated[str | None, typer.Option("--source", "-s", help="Of this source, or this task.")]
KindOption = Annotated[str | None, typer.Option("--kind", help="sync, backfill, task:NAME …")]
ErrorOption = Annotated[str | None, typer.Option("--error-class", help="That failed so last: SourceRefused …")]
ScheduleOption = Annotated[str | None, typer.Option("--schedule", help="Of this schedule: SOURCE/STREAM, task:NAME.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would become of each; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.callback(invoke_without_command=True)
def group(context: typer.Context) -> None:
    """Durable jobs; without a verb, the summary."""
    if context.invoked_subcommand is None:
        summary()


@app.command()
def summary(config: ConfigOption = None, as_json: JsonOption = False, watch: WatchOption = False) -> None:
    """How many jobs of each source are in which state, and how the last hour went."""

    async def look(opened: App) -> Summary:
        return await (await opened.desk()).summary()

    looked(loaded(config), look, lambda found: jobs_shown.summary(found, as_json=as_json), watch=watch)


@app.command("list")
def list_(
    state: Annotated[list[State] | None, typer.Option("--state", help="pending, running, done, dead.")] = None,
    source: SourceOption = None,
    kind: KindOption = None,
    error_class: ErrorOption = None,
    schedule: ScheduleOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=MOST_SHOWN, help="The newest so many.")] = SHOWN,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """The newest jobs that fit."""
    chosen = Filter(state or (), source, kind, error_class, schedule)

    async def look(opened: App) -> Listed:
        return await (await opened.desk()).list(chosen, limit)

    def draw(found: Listed) -> None:
        jobs_shown.listed(found, as_json=as_json, indent=indented(watch), scrub=REDACTOR.scrub)

    looked(loaded(config), look, draw, watch=watch)


@app.command()
def show(
    id: Annotated[int, typer.Argument(help="Which job.", max=2**63 - 1)],
    errors: Annotated[bool, typer.Option("--errors", help="The whole text of every error.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """One job with the history of its attempts."""
    found = at_desk(loaded(config), lambda desk: desk.show(id))
    if found is None:
        raise ConfigError(f"there is no job {id}")
    jobs_shown.shown(found, as_json=as_json, errors=errors, scrub=REDACTOR.scrub)


@app.command()
def requeue(
    ids: Ids = None,
    all_dead: Annotated[bool, typer.Option("--all-dead", help="All that are dead and fit, instead of ids.")] = False,
    source: SourceOption = None,
    kind: KindOption = None,
    error_class: ErrorOption = None,
    schedule: ScheduleOption = None,
    spread: Annotated[
        float, typer.Option("--spread", parser=seconds, help="Let them begin within so long: 10m.", metavar="DURATION")
    ] = 0.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Dead jobs begin anew, with all their attempts."""
    filtered = Filter((State.DEAD,), source, kind, error_class, schedule) if all_dead else None
    by = person()

    def wish(desk: JobDesk, some: Sequence[int]) -> Awaitable[Sequence[Ruling]]:
        return desk.requeue(some, by, spread=spread, dry=dry_run)

    _decide("Requeue", "--all-dead", ids, filtered, wish, loaded(config), ask=not yes, dry=dry_run, as_json=as_json)


@app.command()
def cancel(
    ids: Ids = None,
    every: Annotated[bool, typer.Option("--all", help="All that fit, instead of ids.")] = False,
    state: Annotated[
        list[State] | None, typer.Option("--state", help="With --all: pending (the default), running, dead.")
    ] = None,
    source: SourceOption = None,
    kind: KindOption = None,
    error_class: ErrorOption = None,
    schedule: ScheduleOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What is pending or dead is done with; what is running is asked to end."""
    filtered = Filter(state or (State.PENDING,), source, kind, error_class, schedule) if every else None
    by = person()

    def wish(desk: JobDesk, some: Sequence[int]) -> Awaitable[Sequence[Ruling]]:
        return desk.cancel(some, by, dry=dry_run)

    _decide("Cancel", "--all", ids, filtered, wish, loaded(config), ask=not yes, dry=dry_run, as_json=as_json)


@app.command("run-now")
def run_now(ids: Ids = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """What waits for its time, or for another try, is due at once."""
    by = person()

    def wish(desk: JobDesk, some: Sequence[int]) -> Awaitable[Sequence[Ruling]]:
        return desk.run_now(some, by)

    _decide("Run", "", ids, None, wish, loaded(config), ask=False, dry=False, as_json=as_json)


@app.command()
def enqueue(
    kind: Annotated[str, typer.Argument(help="task:NAME, or a kind that a worker of yours takes.")],
    payload: Annotated[str, typer.Option("--payload", help="JSON, for whoever does it. No secrets.")] = "{}",
    source: Annotated[str | None, typer.Option("--source", "-s", help="Whose limits count; else the task's.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Else the kind's.")] = None,
    priority: Annotated[int, typer.Option("--priority", help="Smaller first.")] = 0,
    run_at: Annotated[
        float | None, typer.Option("--run-at", parser=point, help="2026-12-01T06:00:00Z.", metavar="TIME")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option("--attempts", min=1, help="How often it is tried; else as the task says.")
    ] = None,
    dedupe_key: Annotated[
        str | None, typer.Option("--dedupe-key", help="None comes to be while one with it is pending or running.")
    ] = None,
    dedupe_for: Annotated[
        float, typer.Option("--dedupe-for", parser=seconds, help="Nor so long after it was done.", metavar="DURATION")
    ] = 0.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a job into the queue. Workers take it."""
    from ingest.jobs import enqueue as put

    try:
        parsed = json.loads(payload)
    except ValueError as exc:
        raise typer.BadParameter(f"no JSON: {exc}", param_hint="--payload") from exc
    if not isinstance(parsed, dict):
        raise typer.BadParameter("write an object: {…}", param_hint="--payload")
    loaded(config)
    found = put(
        kind, parsed, run_at=run_at, dedupe_key=dedupe_key, dedupe_for=dedupe_for, source=source, queue=queue,
        priority=priority, attempts=attempts, config=config,
    )  # fmt: skip
    if as_json:
        print(json.dumps(found._asdict()))
        return
    typer.echo(f"job {found.id}" if found.fresh else f"job {found.id} has this dedupe key: nothing is enqueued")


@app.command()
def cleanup(
    keep_done: Annotated[
        float | None,
        typer.Option("--keep-done", parser=seconds, help="What was done; else `jobs.keep_done`.", metavar="DURATION"),
    ] = None,
    keep_ticks: Annotated[
        float | None, typer.Option("--keep-ticks", parser=seconds, help="Else `jobs.keep_ticks`.", metavar="DURATION")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what is old, in small transactions; workers do it by themselves. Dead jobs stay."""
    configuration = loaded(config)
    plan = configuration.config.jobs
    done = plan.keep_done if keep_done is None else keep_done
    decided = plan.keep_ticks if keep_ticks is None else keep_ticks
    swept = at_desk(configuration, lambda desk: clean(desk, done, decided))
    if as_json:
        print(json.dumps({"jobs": swept.jobs, "ticks": swept.ticks}))
        return
    typer.echo(f"deleted {swept.jobs:,} jobs and {swept.ticks:,} ticks")


def _decide(
    verb: str,
    option: str,
    ids: Sequence[int] | None,
    filtered: Filter | None,
    wish: Callable[[JobDesk, Sequence[int]], Awaitable[Sequence[Ruling]]],
    configuration: Loaded,
    *,
    ask: bool,
    dry: bool,
    as_json: bool,
) -> None:
    """For the jobs that are named, or for all that fit, BATCH at a time; how many these are is said before."""
    if bool(ids) == (filtered is not None):
        raise ConfigError(f"name the jobs by their ids{f', or all of them by {option}' if option else ''}")

    async def work(desk: JobDesk) -> list[Ruling]:
        chosen = ids or (await desk.find(filtered) if filtered is not None else ())
        if filtered is not None and chosen and ask and not dry:
            typer.confirm(f"{verb} {len(chosen):,} jobs?", abort=True, err=True)
        found: list[Ruling] = []
        for first in range(0, len(chosen), BATCH):
            found += await wish(desk, chosen[first : first + BATCH])
        return found

    rulings = at_desk(configuration, work)
    if not rulings and not as_json:
        typer.echo("no such job")
    raise typer.Exit(jobs_shown.rulings(rulings, as_json=as_json, dry=dry))
