"""Requests signed with a shared secret, each try anew: what is signed is what goes out."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import httpx
from msgspec.structs import replace

from ingest.config.model import Hmac
from ingest.config.signing import parts
from ingest.sources.auth.static import Static
from ingest.sources.request import Request


class Signed:
    """`rest`: what stays the same; it is put on first, so that its parameters are signed too."""

    def __init__(self, rest: Static, how: Hmac, wall: Callable[[], float]) -> None:
        self._rest, self._how, self._wall = rest, how, wall
        self._parts = parts(how.sign)

    async def prepare(self, request: Request) -> Request:
        how, request = self._how, self._rest.put(request)
        now = _shown(self._wall(), how.timestamp_format)
        values = _values(request, now)
        signed = b"".join(values[part] if n % 2 else part.encode() for n, part in enumerate(self._parts))
        digest = hmac.digest(how.key.encode(), signed, how.algorithm)
        signature = digest.hex() if how.encoding == "hex" else base64.b64encode(digest).decode()
        value = how.value.replace("{signature}", signature).replace("{timestamp}", now)
        headers = {**request.headers, how.header.lower(): value}
        if "timestamp" in self._parts[1::2]:
            headers[how.timestamp.lower()] = now
        return replace(request, headers=headers)

    async def renew(self, sent: Request) -> bool:
        return False

    def strip(self, url: str) -> str:
        return self._rest.strip(url)


def _values(request: Request, now: str) -> Mapping[str, bytes]:
    """What the parts of a request are, as it goes out."""
    url = httpx.URL(request.url)
    path, _, query = url.raw_path.partition(b"?")
    body = request.body or b""
    return {
        "method": request.method.encode(),
        "host": url.netloc,
        "path": path,
        "query": query,
        "target": url.raw_path,
        "timestamp": now.encode(),
        "body": body,
        "body_sha256": hashlib.sha256(body).hexdigest().encode(),
    }


def _shown(now: float, form: str) -> str:
    if form == "unix":
        return str(int(now))
    if form == "unix_ms":
        return str(int(now * 1000))
    return datetime.fromtimestamp(int(now), UTC).isoformat().replace("+00:00", "Z")
