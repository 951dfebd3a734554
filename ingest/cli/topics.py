"""`topics describe`: what the log really has, beside what the configuration says."""

import json
from typing import Annotated

import typer

from ingest import topics
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import ConfigOption, JsonOption, loaded, with_app
from ingest.eventlog import TopicInfo, TopicSpec

app = typer.Typer(help="Topics of the event log.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Topics of the event log."""


@app.command()
def describe(
    topic: Annotated[list[str] | None, typer.Argument(help="Which; all when absent.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Partitions, replication, limits and offsets of topics."""
    configuration = loaded(config)

    async def work(opened: App) -> tuple[dict[str, TopicInfo], bool]:
        admin = await opened.admin()
        return dict(await admin.describe(topic or await admin.topics())), opened.replicated

    found, replicated = with_app(configuration, work)
    missing = [name for name in topic or () if name not in found]
    if as_json:
        print(json.dumps([_fields(info) for info in found.values()], indent=2))
    else:
        wanted = {name: topics.spec(name, configuration.config.topics) for name in found}
        columns = (
            "topic",
            "partitions",
            "replication",
            "min in sync",
            "in sync",
            "retention",
            "max message",
            "messages",
            "differs",
        )
        compare = _differs if replicated else lambda *_: ""
        show.rows(columns, [_row(info, compare(info, wanted[name])) for name, info in found.items()])
    for name in missing:
        typer.echo(f"no topic {name}", err=True)
    raise typer.Exit(1 if missing else 0)


def _fields(info: TopicInfo) -> dict[str, object]:
    described = {**info.spec._asdict(), **info._asdict()}
    del described["spec"]
    return described


def _differs(info: TopicInfo, wanted: TopicSpec) -> str:
    pairs = zip(info.spec._asdict().items(), wanted, strict=True)
    return ", ".join(f"{name} configured {configured}" for (name, real), configured in pairs if real != configured)


def _row(info: TopicInfo, differs: str) -> list[str]:
    spec = info.spec
    days = "for ever" if spec.retention_ms < 0 else f"{spec.retention_ms / 86_400_000:g} d"
    count = sum(info.end_offsets) - sum(info.first_offsets)
    return [
        spec.name, str(spec.partitions), str(spec.replication), str(spec.min_insync), str(info.in_sync), days,
        f"{spec.max_message:,}", f"{count:,}", differs,
    ]  # fmt: skip
