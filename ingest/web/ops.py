"""/metrics, /healthz and /readyz of a process that runs for long.

Healthy: the event loop answers. Ready: it has started, and the log and the databases answered when last asked. An API
that is away leaves a process ready: it waits for it.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ingest import metrics
from ingest.errors import ConfigError
from ingest.web.readiness import Readiness

log = structlog.get_logger()

DEFAULT_ADDRESS = ("127.0.0.1", 9090)
SHUTDOWN = 2  # seconds for requests under way


class _Server(uvicorn.Server):
    """Signals are the program's, not the server's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


Refresh = Callable[[], Awaitable[None]]
"""Brings gauges up to date that are known elsewhere; raises nothing."""


def application(readiness: Readiness, refresh: Refresh | None = None) -> Starlette:
    async def exposition(_: Request) -> Response:
        if refresh is not None:
            await refresh()
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        if readiness.ready:
            lines = [f"lost: {part}: {what}" for part, what in sorted(readiness.lost.items())]
            return PlainTextResponse("\n".join(["ready", *lines, ""]))
        waits = sorted(readiness.blocked) or ["starting"]
        return PlainTextResponse(f"not ready: {', '.join(waits)}\n", status_code=503)

    return Starlette(routes=[Route("/metrics", exposition), Route("/healthz", healthz), Route("/readyz", readyz)])


@asynccontextmanager
async def serve(
    address: tuple[str, int] | None, readiness: Readiness, refresh: Refresh | None = None
) -> AsyncIterator[None]:
    """Listen while the body runs. None: on 127.0.0.1:9090, or a free port where that is taken. Raises ConfigError."""
    metrics.build_info.info({"version": version("ingest")})
    listener = _listen(address)
    host, port = listener.getsockname()[:2]
    log.info("metrics and health", url=f"http://{host}:{port}/metrics")
    config = uvicorn.Config(
        application(readiness, refresh),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=SHUTDOWN,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        listener.close()


def _listen(address: tuple[str, int] | None) -> socket.socket:
    try:
        return socket.create_server(address or DEFAULT_ADDRESS)
    except OSError as exc:
        if address is None:
            return socket.create_server((DEFAULT_ADDRESS[0], 0))
        raise ConfigError(f"cannot listen on {address[0]}:{address[1]}: {exc}; see `ops.listen` and `--ops`") from exc
