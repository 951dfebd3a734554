"""Where requests may go, and what they carry there.

base_url's origin (scheme, host and port) gets everything, other hosts only what the configuration names: those in
`allow_hosts` a bare request, those in `auth_hosts` credentials too. Nobody is asked in the clear what began as https.
URLs are read as the HTTP client reads them, so that nothing means one host here and another one there.
"""

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import httpx

from ingest.config.values import HOST

PORTS = {"http": 80, "https": 443}

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_.])?|[0-9a-f:]+:[0-9a-f:.]*")  # of a host, or an IPv6 address


class Standing(IntEnum):
    FOREIGN = 0  # in `allow_hosts`: asked without credentials
    TRUSTED = 1  # in `auth_hosts` too
    NAMED = 2  # by its whole URL, for one purpose, such as a token endpoint
    HOME = 3  # base_url's origin


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def root(self) -> str:
        """Its URL in the usual spelling, with the slash that ends it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port == PORTS[self.scheme] else f':{self.port}'}/"


def origin(url: str) -> Origin:
    """RFC 6454. Raises ValueError for what is no plain http(s) URL."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as exc:
        raise ValueError(str(exc)) from None
    host = parts.raw_host.decode("ascii")
    if parts.scheme not in PORTS or "\\" in url or parts.userinfo or not _NAME.fullmatch(host):
        raise ValueError("this is no plain http(s) URL")
    return Origin(parts.scheme, host, parts.port or PORTS[parts.scheme])


class Rule(NamedTuple):
    """An entry of `allow_hosts` or `auth_hosts`. `port` None: the scheme's own."""

    host: str  # in lower case, as it goes over the wire
    port: int | None
    wild: bool  # the hosts below it, not itself

    @classmethod
    def of(cls, text: str) -> "Rule":
        """Raises ValueError."""
        match = HOST.fullmatch(text)
        if match is None:
            raise ValueError(f"`{text}` is no host")
        host = httpx.URL(f"http://{match['host']}").raw_host.decode("ascii")
        return cls(host, int(match["port"]) if match["port"] else None, match["wild"] is not None)

    def fits(self, host: str, port: int, usual: int) -> bool:
        named = host.endswith(f".{self.host}") if self.wild else host == self.host
        return named and port == (self.port or usual)


class Hosts:
    """The rules of one source, or of one other place that its configuration names."""

    def __init__(self, base_url: str, allow: Iterable[str] = (), auth: Iterable[str] = ()) -> None:
        self.home = origin(base_url)
        self._beneath = self.home.root
        self._allow, self._auth = [Rule.of(one) for one in allow], [Rule.of(one) for one in auth]

    def standing(self, url: str) -> Standing:
        """Raises ValueError where it may not be asked, which says why."""
        if url.startswith(self._beneath) and "\\" not in url:  # what follows that slash is no host, whoever reads it
            return Standing.HOME
        asked = origin(url)
        if asked == self.home:
            return Standing.HOME
        if asked.scheme != "https" and self.home.scheme == "https":
            raise ValueError("https is never left")
        allowed = [rule for rule in self._allow if rule.fits(asked.host, asked.port, PORTS[asked.scheme])]
        if not allowed:
            raise ValueError(f"not {self.home}, nor in `allow_hosts`")
        trusted = any(rule.fits(asked.host, asked.port, PORTS[asked.scheme]) for rule in self._auth)
        return Standing.TRUSTED if trusted else Standing.FOREIGN

    def only_by_wildcard(self, host: str) -> bool:
        """Nobody named this host, so where its name leads is not known either."""
        named = host == self.home.host or any(rule.host == host and not rule.wild for rule in self._allow)
        return not named
