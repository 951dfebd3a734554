"""The HTTP clients of a source, each made when it is first needed: to load the authorities for TLS takes 20 ms.

What a client shows of us depends on where it goes: our certificate is for those alone who get credentials. The source's
`tls.ca` stands instead of the system's authorities for base_url, and beside them for every other host.
"""

import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Protocol
from urllib.parse import urlsplit

import httpcore
import httpx

from ingest.config.model import Tls
from ingest.sources.hosts import Hosts, Standing
from ingest.sources.public import PublicOnly
from ingest.tls import tls_context

MAX_IDLE = 32  # connections that are kept; how many requests are under way is the gate's affair
KEEPALIVE = 5.0  # seconds that an idle connection is kept
USER_AGENT = "ingest/0.1"
HEADERS = {"accept": "application/json", "accept-encoding": "gzip", "user-agent": USER_AGENT}


class AnyClients(Protocol):
    def of(self, url: str, standing: Standing) -> httpx.AsyncClient:
        """The client for a URL, where we have that standing."""

    async def aclose(self) -> None: ...


class Clients:
    """`aclose` is the caller's. Raises ingest.tls.UnfitFile for a certificate that cannot be used."""

    def __init__(self, tls: Tls | None, hosts: Hosts) -> None:
        self._tls, self._hosts = tls or Tls.model_construct(), hosts
        self._made: dict[tuple[str, Standing], httpx.AsyncClient] = {}
        if tls is not None:  # what is wrong with the files is said at once
            self._context(Standing.HOME)
            self._context(Standing.NAMED)

    def of(self, url: str, standing: Standing) -> httpx.AsyncClient:
        kind = urlsplit(url).scheme, standing
        if kind not in self._made:
            context = self._context(standing) if kind[0] == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            transport = _Transport(context, self._way(standing))
            self._made[kind] = httpx.AsyncClient(
                headers=HEADERS, cookies=_forgetful(), follow_redirects=False, trust_env=False, transport=transport
            )
        return self._made[kind]

    async def aclose(self) -> None:
        for client in self._made.values():
            await client.aclose()

    def _way(self, standing: Standing) -> httpcore.AsyncNetworkBackend:
        named = standing in (Standing.NAMED, Standing.HOME)
        return httpcore.AnyIOBackend() if named else PublicOnly(self._hosts.only_by_wildcard)

    def _context(self, standing: Standing) -> ssl.SSLContext:
        has = self._tls
        if standing is Standing.HOME:
            return tls_context(has.ca, has.cert, has.key)
        cert, key = (None, None) if standing is Standing.FOREIGN else (has.cert, has.key)
        context = tls_context(None, cert, key)
        if has.ca is not None:
            context.load_verify_locations(has.ca)
        return context


def _forgetful() -> CookieJar:
    """Keeps no cookie: a jar would show them to every port of a host, and what logs in says where its cookie goes."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


class _Transport(httpx.AsyncHTTPTransport):
    """httpx's own, over a network backend of our choice."""

    def __init__(self, context: ssl.SSLContext, backend: httpcore.AsyncNetworkBackend) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=KEEPALIVE,
            network_backend=backend,
        )
