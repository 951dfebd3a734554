"""`init`, `check`, `schema`, `version`: before anything runs."""

import json
import time
from collections.abc import Iterator
from importlib.metadata import version as installed
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from consumers.run import matching
from ingest.cli import connect
from ingest.cli.context import ConfigOption, loaded, with_app
from ingest.config import placeholders
from ingest.config.addresses import KafkaAddress, SqliteAddress, addresses, alone_beside_kafka
from ingest.config.credentials import credentials
from ingest.config.loader import FILE, Loaded
from ingest.config.model import Source
from ingest.config.references import Where, resolve
from ingest.config.schema import json_schema
from ingest.config.slipping import WHAT, counts_what_moves, remedy
from ingest.deadletter import MARK
from ingest.errors import ConfigError
from ingest.redaction import Redactor
from ingest.tls import UnfitFile, tls_context

NEXT = """  ingest check                        what is wrong with it, all at once
  ingest preview                      what a stream would publish, and why its listing stops
  ingest run --once                   from the API into the log
  ingest consume warehouse --once     from the log into the store
  ingest events                       what is stored
Or let an API propose it: ingest discover URL"""


def init(force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False) -> None:
    """Write a commented ingest.yaml and say what to run next."""
    path = Path(FILE)
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; --force overwrites it")
    path.write_text(files("ingest.cli").joinpath("init.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    typer.echo(f"wrote {path}; edit it, then\n{NEXT}")


def check(
    config: ConfigOption = None,
    connecting: Annotated[
        bool, typer.Option("--connect", help="Ask every source, the log and the databases, too.")
    ] = False,
) -> None:
    """Say everything that is wrong with the configuration. Every mistake as file:line:column."""
    from ingest.cli.schedules_shown import schedules  # the other verbs do without

    configuration = loaded(config)
    parts = configuration.config
    sources, consumers, tasks = parts.sources, parts.consumers, parts.tasks
    if tasks:
        from ingest.jobs.tasks import ensure_found  # the other verbs do without

        ensure_found(configuration, tasks)
    streams = sum(len(source.streams) for source in sources.values())
    numbers = [("source", len(sources)), ("stream", streams), ("consumer", len(consumers))]
    numbers += [("task", len(tasks))] if tasks else []
    counts = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in numbers)
    typer.echo(f"{configuration.file}: good ({counts})")
    for line in schedules(configuration.config, time.time()):
        typer.echo(line)
    for note in _notes(configuration):
        typer.echo(note, err=True)
    if connecting:
        answers = with_app(configuration, connect.connect)
        connect.table(answers)
        raise typer.Exit(connect.exit_code(answers))


def _notes(configuration: Loaded) -> Iterator[str]:
    """What is no mistake of the file: what would keep it from running here (it may be checked where no secret is), or
    lose rows."""
    unknown = Redactor()
    for name, source in configuration.config.sources.items():
        where = configuration.within(f"sources.{name}")
        try:
            known = resolve(source, unknown, where)
            if known.tls is not None:
                tls_context(known.tls.ca, known.tls.cert, known.tls.key)
            _look_at_keys(known, where)
        except ConfigError as exc:
            yield from (f"{line}, and is needed to run `{name}`" for line in str(exc).splitlines())
        except UnfitFile as exc:
            yield f"{where(f'tls.{exc.key}')}: {exc}, and is needed to run `{name}`"
        for stream, part in source.streams.items():
            for inside in placeholders.literal_names(part.path):
                at = where(f"streams.{stream}.path")
                yield f"{at}: `{{{inside}}}` is sent as it is; a field of a parent's record is `{{parent.{inside}}}`"
    yield from _read_by_nobody(configuration)
    yield from _slipping(configuration)
    try:
        found = addresses(configuration.config, unknown, configuration.where)
    except ConfigError as exc:
        yield str(exc)
    else:
        yield from _security(configuration, unknown, found.log)
        for what, database in (("store", found.store), ("state", found.state)):
            if odd := alone_beside_kafka(found.log, what, database):
                yield odd


def _slipping(configuration: Loaded) -> Iterator[str]:
    for source, part in configuration.config.sources.items():
        for name, stream in part.streams.items():
            if counts_what_moves(stream):
                where = configuration.where(f"sources.{source}.streams.{name}.paginate")
                yield f"{where}: warning: {WHAT}; {remedy(stream)}"


def _look_at_keys(source: Source, where: Where) -> None:
    """Raises ConfigError for one that signs nothing."""
    parts = {"": source.auth} | {f"streams.{name}.": stream.auth for name, stream in source.streams.items()}
    for path, auth in parts.items():
        if auth is not None and auth.jwt is not None:
            from ingest.sources.auth.jwt import signing  # takes 30 ms

            try:
                signing(auth.jwt)
            except ConfigError as exc:
                raise ConfigError(f"{where(f'{path}auth.jwt.key')}: {exc}") from exc


def _read_by_nobody(configuration: Loaded) -> Iterator[str]:
    """Topic patterns that no stream of the file fits; there may be others, of other files."""
    topics = [
        part.topic.format(source=name, stream=stream)
        for name, source in configuration.config.sources.items()
        for stream, part in source.streams.items()
    ]
    for name, consumer in configuration.config.consumers.items():
        for n, pattern in enumerate(consumer.topics):
            if topics and MARK not in pattern and not matching(topics, [pattern], name):
                where = configuration.where(f"consumers.{name}.topics.{n}")
                yield f"{where}: `{pattern}` fits no topic of this file; there are {', '.join(topics)}"


def _security(configuration: Loaded, unknown: Redactor, log: SqliteAddress | KafkaAddress) -> Iterator[str]:
    security = None if configuration.config.log is None else configuration.config.log.security
    if security is None or not isinstance(log, KafkaAddress):
        return
    if security.exposed is not None:
        yield f"{configuration.where('log.security')}: {security.exposed}"
    try:
        credentials(security, unknown, configuration.within("log.security"))
    except ConfigError as exc:
        yield from (f"{line}, and is needed to reach Kafka" for line in str(exc).splitlines())


def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))


def version() -> None:
    """Print the version."""
    typer.echo(f"ingest {installed('ingest')}")
