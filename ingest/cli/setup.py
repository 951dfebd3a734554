"""`init`, `check`, `schema`, `version`: before anything runs."""

import json
from importlib.metadata import version as installed
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ingest.cli.context import ConfigOption, loaded
from ingest.config.loader import FILE
from ingest.config.schema import json_schema
from ingest.errors import ConfigError

NEXT = """  ingest check
  ingest run --once
  ingest consume warehouse --once
  ingest events"""


def init(force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False) -> None:
    """Write a commented ingest.yaml and say what to run next."""
    path = Path(FILE)
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; --force overwrites it")
    path.write_text(files("ingest.cli").joinpath("init.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    typer.echo(f"wrote {path}; edit it, then\n{NEXT}")


def check(config: ConfigOption = None) -> None:
    """Validate the configuration; every mistake as file:line:column."""
    configuration = loaded(config)
    streams = sum(len(source.streams) for source in configuration.config.sources.values())
    sources, consumers = len(configuration.config.sources), len(configuration.config.consumers)
    counts = f"{sources} sources, {streams} streams, {consumers} consumers"
    typer.echo(f"{configuration.file}: good ({counts})")


def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))


def version() -> None:
    """Print the version."""
    typer.echo(f"ingest {installed('ingest')}")
