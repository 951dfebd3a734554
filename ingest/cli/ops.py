"""Where a process listens for metrics and health: `--ops`, else `ops.listen`, else what suits the verb."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated

import typer

from checkpoints.jobs.desk import JobDesk
from ingest.config.model import Config
from ingest.errors import ConfigError
from ingest.web.readiness import Readiness

OpsOption = Annotated[
    str | None,
    typer.Option(
        "--ops",
        help="HOST:PORT of /metrics, /healthz and /readyz, or off. Absent: off under --once.",
        metavar="HOST:PORT",
    ),
]


def listening(
    option: str | None,
    config: Config,
    readiness: Readiness,
    *,
    once: bool,
    desk: Callable[[], Awaitable[JobDesk]] | None = None,
) -> AbstractAsyncContextManager[None]:
    """`desk`: whose jobs the metrics show. Raises ConfigError for what is no address."""
    wanted = option or (config.ops.listen if config.ops is not None else None)
    if wanted == "off" or (wanted is None and once):
        return nullcontext()
    from ingest.jobs.gauges import Gauges
    from ingest.web import ops as server  # a run that listens nowhere does without

    refresh = None if desk is None else Gauges(desk).refresh
    return server.serve(None if wanted is None else address(wanted), readiness, refresh)


def address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{text!r} is no address to listen on; write HOST:PORT, or off")
    return host.strip("[]") or "0.0.0.0", int(port)
