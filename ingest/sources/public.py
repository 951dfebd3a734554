"""Keeps hosts that only a wildcard allows from leading into our own network.

Looked at is the very address that is then connected to: a name that means another address a moment later gains nothing.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import httpcore

Address = IPv4Address | IPv6Address

_NAT64 = ip_network("64:ff9b::/96")  # its last 32 bits are the IPv4 address that it leads to (RFC 6052)
_NOT_PUBLIC = [  # beside what `ipaddress` knows, which differs between versions of Python
    ip_network(text)
    for text in (
        *("100.64.0.0/10", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4"),
        *("64:ff9b:1::/48", "2001::/32", "2002::/16", "fec0::/10"),
    )
]


class NotPublic(Exception):
    """The host leads to an address of a private network, of this machine, or of its cloud."""


def is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)
        if inner is not None:
            return is_public(inner)
    if any(address in network for network in _NOT_PUBLIC if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


class PublicOnly(httpcore.AsyncNetworkBackend):
    """Connects as httpcore does, save to hosts that are `guarded`: these only at public addresses."""

    def __init__(self, guarded: Callable[[str], bool], inner: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._guarded, self._inner = guarded, inner or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        connect = self._inner.connect_tcp
        if not self._guarded(host):
            return await connect(host, port, timeout, local_address, socket_options)
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in await _addresses(host, port, timeout):
            if not is_public(ip_address(address)):
                raise NotPublic(f"{host} leads to {address}")
            try:
                return await connect(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                failure = exc
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise NotPublic(path)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


async def _addresses(host: str, port: int, timeout: float | None) -> list[str]:
    try:
        async with asyncio.timeout(timeout):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError as exc:
        raise httpcore.ConnectTimeout(f"no address for {host} in time") from exc
    except OSError as exc:
        raise httpcore.ConnectError(str(exc)) from exc
    return [str(address[0]) for *_, address in found]
