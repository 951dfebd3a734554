"""`checkpoints`: see the saved cursors, and move them by hand, under the same lease and fence as any poller."""

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer

from checkpoints import Checkpoint, Checkpoints, Claim, Save, StreamId, stream_lease
from checkpoints.keeping import LEASE_TTL
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import ConfigOption, JsonOption, loaded, with_app
from ingest.config.loader import Loaded
from ingest.errors import ConfigError, StoreUnavailable
from ingest.sources.cursor import Cursor, decode, describe
from ingest.sources.incremental import Bounds
from ingest.sources.parent import partition

app = typer.Typer(help="Saved cursors.", no_args_is_help=True, rich_markup_mode=None)

T = TypeVar("T")

StreamArgument = Annotated[str, typer.Argument(help="SOURCE/STREAM", metavar="SOURCE/STREAM")]
ParentOption = Annotated[str | None, typer.Option("--parent", metavar="ID", help="Of one parent, by its id.")]


@app.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Every saved cursor."""
    found = _saved(loaded(config))
    if as_json:
        rows = [{**c._asdict(), "stream": str(c.stream), "cursor": json.loads(c.cursor)} for c in found]
        print(json.dumps(rows, indent=2))
        return
    cells = [[str(c.stream), _described(c), str(c.fence), c.updated_at, c.holder or ""] for c in found]
    show.rows(("stream", "cursor", "fence", "saved", "held by"), cells)


def _described(checkpoint: Checkpoint) -> str:
    kept = f" ({checkpoint.partitions} cursors)" if checkpoint.partitions else ""
    return f"{describe(checkpoint.cursor) or ''}{kept}"


@app.command("show")
def show_(stream: StreamArgument, parent: ParentOption = None, config: ConfigOption = None) -> None:
    """One cursor as it is saved."""
    wanted = _stream(stream)
    if parent is not None:
        names = [partition(parent)]
        found = with_app(loaded(config), lambda opened: _state(opened, lambda state: state.cursors(wanted, names)))
        if not found:
            raise ConfigError(f"no cursor is saved for {parent} in {wanted}")
        print(json.dumps(json.loads(found[names[0]]), indent=2))
        return
    for checkpoint in _saved(loaded(config)):
        if checkpoint.stream == wanted:
            print(json.dumps(json.loads(checkpoint.cursor), indent=2))
            return
    raise ConfigError(f"no cursor is saved for {wanted}")


@app.command()
def history(stream: StreamArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Finished listings and manual changes, the newest first."""
    wanted = _stream(stream)
    found = with_app(loaded(config), lambda opened: _state(opened, lambda checkpoints: checkpoints.history(wanted)))
    if as_json:
        rows = [{**h._asdict(), "stream": str(h.stream), "cursor": json.loads(h.cursor)} for h in found]
        print(json.dumps(rows, indent=2))
        return
    show.rows(
        ("saved", "fence", "cursor", "note"),
        [[h.saved_at, str(h.fence), describe(h.cursor) or "", h.note] for h in found],
    )


@app.command("set")
def set_(
    stream: StreamArgument,
    high_water: Annotated[str, typer.Argument(help="RFC 3339, or a whole number, as `show` prints it.")],
    parent: ParentOption = None,
    config: ConfigOption = None,
) -> None:
    """Move the high-water mark; the next run starts a new listing there. Nothing that was seen is forgotten."""
    wanted = _stream(stream)
    configuration = loaded(config)
    value = _mark(configuration, wanted, high_water, parent)

    async def change(checkpoints: Checkpoints, claim: Claim) -> None:
        if claim.cursor is None:
            raise ConfigError(f"{wanted} has never run: set `since.first` in the configuration instead")
        name = None if parent is None else partition(parent)
        before = claim.cursor if name is None else (await checkpoints.cursors(wanted, [name])).get(name)
        old = decode(before or claim.cursor)
        new = Cursor(old.fingerprint, old.updated_at, high_water=value).encode()
        note = f"{f'{parent}: ' if parent else ''}set by hand from {describe(before)}"
        if name is None:
            await checkpoints.save(claim, Save(cursor=new, history=note))
        else:
            await checkpoints.save(claim, Save(cursor=claim.cursor, partitions={name: new}, history=note))

    _manually(configuration, wanted, change)
    typer.echo(f"{wanted}{f', parent {parent}' if parent else ''}: the high-water mark is {value}")


@app.command()
def reset(
    stream: StreamArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
) -> None:
    """Forget the cursor and everything seen: the next run reads it all again. The store ignores what it has."""
    wanted = _stream(stream)
    configuration = loaded(config)
    if wanted not in _configured(configuration) and not any(c.stream == wanted for c in _saved(configuration)):
        raise ConfigError(f"no stream {wanted}: it is neither configured nor saved")
    if not yes:
        typer.confirm(f"Forget the cursor of {wanted} and everything seen?", abort=True)
    _manually(configuration, wanted, lambda checkpoints, claim: checkpoints.forget(claim))
    typer.echo(f"{wanted}: the next run starts from the beginning")


def _stream(text: str) -> StreamId:
    source, slash, stream = text.partition("/")
    if not (source and slash and stream):
        raise ConfigError(f"{text!r} names no stream; write SOURCE/STREAM")
    return StreamId(source, stream)


def _saved(configuration: Loaded) -> Sequence[Checkpoint]:
    return with_app(configuration, lambda opened: _state(opened, lambda checkpoints: checkpoints.list()))


def _configured(configuration: Loaded) -> list[StreamId]:
    sources = configuration.config.sources
    return [StreamId(source, stream) for source in sources for stream in sources[source].streams]


def _mark(configuration: Loaded, stream: StreamId, text: str, parent: str | None) -> str | int | None:
    """The mark as a cursor has it. Raises ConfigError for a stream that has none, and for what is none of its marks."""
    if stream not in _configured(configuration):
        raise ConfigError(f"no stream {stream}; configured: {', '.join(map(str, _configured(configuration)))}")
    listed = configuration.config.sources[stream.source].streams[stream.stream]
    incremental, family = listed.incremental, listed.parent
    if incremental is not None and (family is None) is not (parent is None):
        each = f"has a mark for each of `{family.stream}`: name one with --parent" if family else "has no parents"
        raise ConfigError(f"{stream} {each}")
    if incremental is None:
        raise ConfigError(f"{stream} has no `incremental`: every run lists everything, there is no mark to move")
    bounds = Bounds(incremental)
    try:
        position = bounds.parse(text)
    except ValueError as exc:
        example = "2026-01-31T12:00:00Z" if bounds.micros else "a whole number"
        raise ConfigError(f"{text!r} is no mark of {stream} ({exc}); write {example}") from exc
    if bounds.micros and position is not None and position > time.time_ns() // 1000:
        raise ConfigError(f"{text} is in the future: nothing would be read until then")
    return bounds.show(position)


async def _state(opened: App, work: Callable[[Checkpoints], Awaitable[T]]) -> T:
    return await work((await opened.state())[0])


def _manually(configuration: Loaded, stream: StreamId, change: Callable[[Checkpoints, Claim], Awaitable[None]]) -> None:
    """Under the stream's lease: a poller that runs is not disturbed, and one that wakes up late is refused."""

    async def work(opened: App) -> None:
        checkpoints, leases = await opened.state()
        claim = await checkpoints.claim(stream, opened.holder, LEASE_TTL)
        if claim is None:
            holder = await leases.holder(stream_lease(stream))
            raise StoreUnavailable(f"{stream} is being polled by {holder}: stop it first, or wait {LEASE_TTL:.0f} s")
        try:
            await change(checkpoints, claim)
        finally:
            if claim.lease.clean:  # else a page may be in flight, and the next poller has to know
                await leases.release(claim.lease)

    with_app(configuration, work)
