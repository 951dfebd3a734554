"""`schedules`: what fires when, what became of each tick, and why."""

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from checkpoints.jobs import NOT_CONFIGURED, Overlap, Schedule, Schedules, Tick, TickOutcome
from checkpoints.jobs.desk import Filter
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import ConfigOption, JsonOption, loaded, with_app
from ingest.cli.desk import person
from ingest.cli.moments import clock, iso, moment, plain, point, span
from ingest.cli.table import Spare
from ingest.cli.watching import WatchOption, indented, looked
from ingest.config.loader import Loaded
from ingest.config.messages import suggestion
from ingest.errors import ConfigError

if TYPE_CHECKING:  # a start does without: cron and time zones take long to import
    from ingest.jobs.firing import Plan

T = TypeVar("T")

DAY = 86_400.0  # seconds
RECENT = 200  # ticks that are looked through
SKIPPED = tuple(outcome for outcome in TickOutcome if outcome is not TickOutcome.ENQUEUED)
REFUSED = 1
TICKS = Spare((), ("decided by", "late"))
LISTED = Spare(("skipped 24h", "became"), ("became", "last tick"))
NONE_YET = "no schedule yet: `ingest run` declares those that are configured"

app = typer.Typer(help="Schedules and their ticks.", no_args_is_help=True, rich_markup_mode=None)

IdArgument = Annotated[str, typer.Argument(help="SOURCE/STREAM, or task:NAME.", metavar="ID")]


class Line(NamedTuple):
    """One schedule of the list."""

    schedule: Schedule
    next_at: float | None
    last: Tick | None
    skipped: int  # ticks, of those decided in the last day


@app.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False, watch: WatchOption = False) -> None:
    """Every schedule: whether it is on, what became of its last tick, and when the next one is."""
    configuration = loaded(config)
    planned = plans(configuration)

    async def look(opened: App) -> list[Line]:
        schedules = await opened.schedules()
        return [await _line(schedules, one, planned.get(one.id)) for one in await schedules.load([])]

    looked(configuration, look, lambda lines: _listed(lines, as_json, indented(watch)), watch=watch)


async def _line(schedules: Schedules, one: Schedule, plan: "Plan | None") -> Line:
    last = [*await schedules.ticks(one.id, (), 1)]
    skipped = await schedules.ticks(one.id, SKIPPED, RECENT)
    lately = sum(tick.covers for tick in skipped if tick.decided_at > one.now - DAY)
    next_at = None if plan is None or one.paused else plan.timing.after(one.now)
    return Line(one, next_at, last[0] if last else None, lately)


def _listed(lines: Sequence[Line], as_json: bool, indent: int | None) -> None:
    if as_json:
        print(json.dumps([_fields(line) for line in lines], indent=indent))
        return
    if not lines:
        print(NONE_YET)
        return
    columns = ("schedule", "ticks", "state", "last tick", "became", "skipped 24h", "next", "job")
    show.rows(columns, [_cells(line) for line in lines], LISTED)
    print(clock(lines[0].schedule.now))


def _cells(line: Line) -> list[str]:
    one, last = line.schedule, line.last
    state = f"paused: {one.note}" if one.paused and one.note else "paused" if one.paused else "on"
    became = "" if last is None else f"job {last.job}" if last.job is not None else str(last.outcome)
    return [
        one.id, one.spec, state, moment(last.tick_at if last else None, one.now), became,
        f"{line.skipped:,}" if line.skipped else "", moment(line.next_at, one.now),
        "" if one.running is None else f"{one.running} is live",
    ]  # fmt: skip


def _fields(line: Line) -> dict[str, Any]:
    last = None if line.last is None else _tick(line.last)
    more = {"next_at": iso(line.next_at), "last_tick": last, "skipped_24h": line.skipped}
    shown = {name: value for name, value in plain(line.schedule).items() if name != "now"}
    return {**shown, "now": iso(line.schedule.now), **more}


def _tick(tick: Tick) -> dict[str, Any]:
    times = {"tick_at": iso(tick.tick_at), "decided_at": iso(tick.decided_at)}
    return {**tick._asdict(), **times, "outcome": tick.outcome.value}


@app.command("next")
def next_(
    id: IdArgument,
    number: Annotated[int, typer.Option("-n", min=1, max=10_000, help="How many.")] = 10,
    since: Annotated[float | None, typer.Option("--from", parser=point, help="Else now.", metavar="TIME")] = None,
    until: Annotated[float | None, typer.Option("--to", parser=point, help="No later.", metavar="TIME")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """When it ticks, by the configuration alone; with what happens on days on which clocks are set."""
    from ingest.jobs.preview import coming, remarks

    configuration = loaded(config)
    plan = _planned(configuration, id)
    now = time.time() if since is None else since
    found = [one for one in coming(plan, now, number) if until is None or one.tick_at <= until]
    if as_json:
        rows = [{**one._asdict(), "tick_at": iso(one.tick_at), "begins_at": iso(one.begins_at)} for one in found]
        print(json.dumps(rows, indent=2))
        return
    rows_ = [[one.local, moment(one.begins_at, time.time()), one.remark or ""] for one in found]
    show.rows(("tick", "begins", "remark"), rows_)
    for remark in remarks(plan, now):
        print(remark)


@app.command()
def ticks(
    id: IdArgument,
    outcome: Annotated[list[TickOutcome] | None, typer.Option("--outcome", help="Only these.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000_000, help="The newest so many.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What became of its ticks, the newest first; a row may stand for many."""
    configuration = loaded(config)

    async def look(schedules: Schedules) -> tuple[Schedule, Sequence[Tick]]:
        schedule = await _existing(schedules, id)
        return schedule, await schedules.ticks(id, outcome or (), limit)

    schedule, found = _at(configuration, look)
    if as_json:
        print(json.dumps([_tick(tick) for tick in found], indent=2))
        return
    columns = ("tick", "outcome", "covers", "job", "late", "decided by", "note")
    show.rows(columns, [_tick_cells(tick, schedule.now) for tick in found], TICKS)
    print(clock(schedule.now))


def _tick_cells(tick: Tick, now: float) -> list[str]:
    job = "" if tick.job is None else str(tick.job)
    late = span(max(0.0, tick.decided_at - tick.tick_at))
    return [
        moment(tick.tick_at, now), str(tick.outcome), f"{tick.covers:,}", job, late, tick.decided_by, tick.note or "",
    ]  # fmt: skip


@app.command()
def why(
    id: IdArgument,
    at: Annotated[
        float | None, typer.Option("--at", parser=point, help="What became of the tick then.", metavar="TIME")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why it did not fire, or when it will: everything that may be in its way."""
    from ingest.jobs.why import Known, decided, reasons

    configuration = loaded(config)
    plan = plans(configuration).get(id)

    async def look(opened: App) -> tuple[Known, Sequence[Tick]]:
        schedules, desk = await opened.schedules(), await opened.desk()
        found = [*await schedules.load([id])]
        if not found and plan is None:
            raise _unknown(id, [*plans(configuration), *(one.id for one in await schedules.load([]))])
        ours = time.time()
        schedule = found[0] if found else None
        jobs = (await desk.list(Filter(schedule=id), 1)).rows
        running = None if schedule is None or schedule.running is None else await desk.show(schedule.running)
        source = plan.job.source if plan is not None else jobs[0].source if jobs else None
        summary = next((one for one in (await desk.summary()).sources if one.source == source), None)
        known = Known(
            plan, schedule, ours, summary, await desk.workers(), running and running.row, jobs[0] if jobs else None
        )
        return known, await schedules.ticks(id, (), RECENT)

    known, recent = with_app(configuration, look)
    now = known.ours if known.schedule is None else known.schedule.now
    shown = partial(moment, now=now)
    lines = list(reasons(known, shown))
    if recent or at is not None:
        lines.insert(1, decided(recent, now if at is None else at, plan, shown))
    if as_json:
        print(json.dumps({"id": id, "now": iso(now), "reasons": lines}, indent=2))
        return
    for line in lines:
        print(line)
    print(clock(now))


@app.command()
def trigger(
    id: IdArgument,
    overlap: Annotated[Overlap | None, typer.Option("--overlap", help="Else as it is configured.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """A job now, whether it ticks or not, paused or not."""
    configuration = loaded(config)
    plan = _planned(configuration, id)
    policy = overlap or plan.policy.overlap

    async def work(schedules: Schedules) -> tuple[int | None, int | None]:
        await _existing(schedules, id)
        job = await schedules.trigger(id, plan.job, person(), policy)
        return job, (await _existing(schedules, id)).running

    job, running = _at(configuration, work)
    if as_json:
        print(json.dumps({"job": job, "in_the_way": running if job is None else None}))
    elif job is None:
        print(f"refused: job {running} is live, and overlap is {policy}; --overlap says otherwise")
    else:
        print(f"job {job}")
    raise typer.Exit(REFUSED if job is None else 0)


@app.command()
def pause(
    id: IdArgument,
    note: Annotated[str, typer.Option("--note", help="Why, for whoever wonders.")] = "",
    config: ConfigOption = None,
) -> None:
    """It fires no more until it is resumed; what runs goes on."""
    said = f"{note} ({person()})" if note else f"by {person()}"
    _change(loaded(config), id, lambda schedules: schedules.pause(id, said))
    typer.echo(f"{id}: paused until `schedules resume`")


@app.command()
def resume(
    id: IdArgument,
    catch_up: Annotated[
        bool, typer.Option("--catch-up", help="From where it was paused, as `catch_up` says; else from now.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """It fires again."""

    async def work(schedules: Schedules) -> bool:
        resumed = await schedules.resume(id, catch_up=catch_up)
        for one in await schedules.load([id]):
            if one.paused and one.note == NOT_CONFIGURED:
                raise ConfigError(f"{id} is {NOT_CONFIGURED}: nothing fires before it is")
        return resumed

    _change(loaded(config), id, work)
    typer.echo(f"{id}: goes on {'from where it was paused' if catch_up else 'from now'}")


def plans(configuration: Loaded) -> "dict[str, Plan]":
    """Every schedule of the configuration, by its id."""
    from ingest.jobs.plans import of_sources, of_tasks

    parts = configuration.config
    return {plan.id: plan for plan in (*of_sources(parts.sources), *of_tasks(parts.tasks))}


def _planned(configuration: Loaded, id: str) -> "Plan":
    planned = plans(configuration)
    if id in planned:
        return planned[id]
    source, _, stream = id.partition("/")
    part = configuration.config.sources.get(source)
    if part is not None and stream in part.streams:
        raise ConfigError(f"{id} is polled so often that it has no ticks: one process stands by and polls it")
    raise _unknown(id, list(planned))


def _unknown(id: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(f"no schedule `{id}`{suggestion(id, known)}")


async def _existing(schedules: Schedules, id: str) -> Schedule:
    found = [*await schedules.load([id])]
    if not found:
        known = [one.id for one in await schedules.load([])]
        raise _unknown(id, known) if known else ConfigError(NONE_YET)
    return found[0]


def _change(configuration: Loaded, id: str, work: Callable[[Schedules], Awaitable[bool]]) -> None:
    async def change(schedules: Schedules) -> None:
        if not await work(schedules):
            await _existing(schedules, id)

    _at(configuration, change)


def _at(configuration: Loaded, work: Callable[[Schedules], Awaitable[T]]) -> T:
    async def opened(app: App) -> T:
        return await work(await app.schedules())

    return with_app(configuration, opened)
