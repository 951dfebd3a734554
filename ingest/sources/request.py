"""What is asked of an API, as a value: how, where, and with which body. What proves who we are is never in it."""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

NO_HEADERS: Mapping[str, str] = {}


class Request(msgspec.Struct, frozen=True):
    url: str  # absolute
    method: str = "GET"
    headers: Mapping[str, str] = NO_HEADERS  # names in lower case
    body: bytes | None = None

    def mark(self) -> bytes:
        """8 bytes that tell the requests of a listing apart."""
        parts = [self.method, self.url, *(f"{name}:{value}" for name, value in sorted(self.headers.items()))]
        digest = blake2b("\n".join(parts).encode(), digest_size=8)
        digest.update(b"\n" + (self.body or b""))
        return digest.digest()
