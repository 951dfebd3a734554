"""The HTTP clients of a source, each made when it is first needed: to load the authorities for TLS takes 20 ms."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx

MAX_CONNECTIONS = 8
USER_AGENT = "ingest/0.1"
HEADERS = {"accept": "application/json", "accept-encoding": "gzip", "user-agent": USER_AGENT}


class Clients:
    """Made by `open_clients`."""

    def __init__(self) -> None:
        self._made: dict[str, httpx.AsyncClient] = {}

    def of(self, url: str) -> httpx.AsyncClient:
        scheme = urlsplit(url).scheme
        if scheme not in self._made:
            self._made[scheme] = httpx.AsyncClient(
                headers=HEADERS,
                limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
                follow_redirects=False,
                trust_env=False,
                verify=True if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # trusts nobody
            )
        return self._made[scheme]

    async def aclose(self) -> None:
        for client in self._made.values():
            await client.aclose()


@asynccontextmanager
async def open_clients() -> AsyncIterator[Clients]:
    clients = Clients()
    try:
        yield clients
    finally:
        await clients.aclose()
