"""Credentials as the files say them now that the configuration refers to: a mounted secret is renewed in place."""

from collections.abc import Callable

import structlog

from ingest.errors import ConfigError
from ingest.sources.auth import Credentials
from ingest.sources.request import Request

log = structlog.get_logger()


class Current:
    """`generation` grows when a file has changed, and `make` makes them anew. Where it raises ConfigError, as what is
    there is no good, those before stay."""

    def __init__(self, generation: Callable[[], int], make: Callable[[], Credentials]) -> None:
        self._generation, self._make = generation, make
        self._seen = generation()
        self._made = make()

    async def prepare(self, request: Request) -> Request:
        self._look()
        return await self._made.prepare(request)

    async def renew(self, sent: Request) -> bool:
        return self._look() or await self._made.renew(sent)

    def strip(self, url: str) -> str:
        return self._made.strip(url)

    def _look(self) -> bool:
        """Whether there are others now."""
        generation = self._generation()
        if generation == self._seen:
            return False
        self._seen = generation
        try:
            self._made = self._make()
        except ConfigError as exc:
            log.warning("a secret that changed is no good; the one before is used", error=str(exc))
            return False
        return True
