"""What every verb shares: its options, the configuration, and the opened parts."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

import typer

from ingest import logging
from ingest.app import App
from ingest.config.loader import Loaded, find, load
from ingest.redaction import Redactor

T = TypeVar("T")

REDACTOR = Redactor()
"""One per process: the command's last words pass it too."""

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The file; else INGEST_CONFIG, else ingest.yaml here.")
]
LogFormat = Annotated[str, typer.Option("--log-format", help="auto, text or json.", envvar="INGEST_LOG_FORMAT")]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.", envvar="INGEST_LOG_LEVEL")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


def loaded(config: Path | None, *, log_format: str = "auto", log_level: str = "warning") -> Loaded:
    if log_format not in get_args(logging.Format):
        raise typer.BadParameter("auto, text or json", param_hint="--log-format")
    if log_level not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter("debug, info, warning or error", param_hint="--log-level")
    logging.configure(REDACTOR, form=cast(logging.Format, log_format), level=log_level)
    return load(find(config))


def with_app(configuration: Loaded, work: Callable[[App], Awaitable[T]]) -> T:
    """Run `work` with the parts opened on demand and closed behind it."""

    async def opened() -> T:
        async with App(configuration, REDACTOR) as app:
            return await work(app)

    coroutine: Coroutine[Any, Any, T] = opened()
    return asyncio.run(coroutine)
