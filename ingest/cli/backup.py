"""`backup`: copies of the embedded files while everything runs."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ingest import backup as backups
from ingest.cli.context import REDACTOR, ConfigOption, JsonOption, loaded
from ingest.config import addresses
from ingest.config.addresses import SqliteAddress
from ingest.config.loader import Loaded
from ingest.errors import ConfigError

MB = 1_000_000


def backup(
    folder: Annotated[Path, typer.Argument(help="Where the copies go; made where it is missing.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the embedded files while they are in use. Log, store and state; the copies are checked."""
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    copies = []
    for path in dict.fromkeys(_files(loaded(config))):
        copied = backups.copy(path, folder / f"{path.stem}-{stamp}{path.suffix}")
        copies.append(copied)
        if not as_json:
            size = f"{copied.bytes / MB:,.1f} MB, {copied.rows:,} rows, checked"
            typer.echo(f"{copied.source} → {copied.target} ({size}, {copied.seconds:.1f} s)")
    if as_json:
        rows = [{**c._asdict(), "source": str(c.source), "target": str(c.target)} for c in copies]
        print(json.dumps(rows, indent=2))


def _files(configuration: Loaded) -> Iterator[Path]:
    """State and store before the log: with an older cursor a page comes twice, with a newer one it would be lost."""
    named = addresses.addresses(configuration.config, REDACTOR, configuration.where)
    embedded = [a for a in (named.state, named.store, named.log) if isinstance(a, SqliteAddress)]
    if not embedded:
        raise ConfigError("nothing here is an SQLite file: Postgres has pg_dump and its archive of WAL")
    for address in embedded:
        yield address.path.absolute()
