"""Requests beside the pages of a stream: for a token, a login, a look whether we are let in.

They go the one way out too, each to the one origin that it is configured for, and with credentials of their own.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import structlog

from ingest.redaction import Redactor
from ingest.sources import Notice
from ingest.sources.answers import Undecodable
from ingest.sources.auth import Credentials
from ingest.sources.exchange import Response
from ingest.sources.request import Request
from ingest.sources.transport import Limits, Transport, Unshown

T = TypeVar("T")

log = structlog.get_logger()

UNAUTHORIZED = 401  # what a refused errand means for whoever needs it done, whatever its own status was
SHOWN = 200  # characters of an answer in a message
WAIT_WORTH_A_LINE = 5.0  # seconds


class Told:
    """Fulfils `sources.Watch` for requests that serve several streams: waits are said in the log."""

    def __init__(self, source: str) -> None:
        self._source = source

    def requested(self, seconds: float) -> None:
        return

    def retrying(self, attempt: int, delay: float, reason: str) -> None:
        self.waiting(delay, reason)

    def waiting(self, delay: float, reason: str) -> None:
        if delay >= WAIT_WORTH_A_LINE:
            log.warning("waiting", source=self._source, seconds=round(delay, 1), reason=reason)

    def noticed(self, notice: Notice) -> None:
        log.warning(notice.message, source=self._source, kind=notice.kind)

    def restarted(self, reason: str) -> None:
        log.warning("restarted", source=self._source, reason=reason)


class Errands(NamedTuple):
    source: str  # its name
    transport: Transport
    limits: Limits
    redactor: Redactor

    def toward(self, url: str) -> "Errands":
        """To the origin of `url`, which the configuration names."""
        return self._replace(transport=self.transport.toward(url))

    async def send(self, request: Request, credentials: Credentials, decode: Callable[[Response], T]) -> T:
        """As `Transport.send`; but what came with a good status is never shown, as it may hold a new secret."""

        def discreetly(response: Response) -> T:
            try:
                return decode(response)
            except Undecodable as exc:
                raise Unshown(str(exc)) from exc

        return await self.transport.send(request, credentials, self.limits, Told(self.source), discreetly)

    def monotonic(self) -> float:
        return self.transport.clock.monotonic()

    def answered(self, response: Response, text: str = "") -> str:
        """For a message: what was asked, and what its answer means to us."""
        what = f"{self.transport.shown(response.request)} answered {response.status}"
        return f"{what}: {self.redactor.scrub(text)[:SHOWN]}" if text else what
