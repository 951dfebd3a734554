"""`migrate`: bring the store and the state database up to date."""

import asyncio
from typing import Annotated

import typer

from ingest.cli.context import REDACTOR, ConfigOption, loaded
from ingest.config import addresses
from ingest.config.addresses import KafkaAddress, PostgresAddress, SqliteAddress
from migrations import runner

BEHIND = 1


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 when something is to be applied.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Apply the numbered migrations to the databases. To every one that the configuration names."""
    configuration = loaded(config)
    named = addresses.addresses(configuration.config, REDACTOR, configuration.where)
    databases = {str(a): _url(a) for a in (named.state, named.store, named.log) if not isinstance(a, KafkaAddress)}
    behind = False
    for shown, url in databases.items():
        names = asyncio.run(runner.pending(url) if check else runner.migrate(url))
        behind = behind or bool(names)
        verb = "to be applied" if check else "applied"
        typer.echo(f"{shown}: {', '.join(names) + ' ' + verb if names else 'up to date'}")
    raise typer.Exit(BEHIND if check and behind else 0)


def _url(address: SqliteAddress | PostgresAddress) -> str:
    return address.url if isinstance(address, PostgresAddress) else f"sqlite:///{address.path.absolute()}"
