"""Reads the body of an answer, never more of it than is allowed.

A small body that unpacks to a huge one is stopped while it unpacks: never is more than twice the limit in memory. What
ends before its end is broken, never a short body.
"""

from collections.abc import AsyncIterator

import httpx

from ingest.sources.gunzip import Broken, Gunzip, TooLarge

__all__ = ["Broken", "TooLarge", "read"]


async def read(response: httpx.Response, limit: int) -> bytes:
    """At most `limit` bytes, unpacked. Raises TooLarge, Broken and what httpx raises for a connection that breaks."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    declared = response.headers.get("content-length", "")
    if encoding == "identity" and declared.isdecimal():
        if int(declared) > limit:
            raise TooLarge
        return await response.aread()
    pieces = _unpacked(response, limit) if encoding in ("gzip", "x-gzip") else response.aiter_bytes()
    parts: list[bytes] = []
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > limit:
            raise TooLarge
        parts.append(piece)
    return b"".join(parts)


async def _unpacked(response: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """In pieces of at most `limit` + 1 bytes."""
    gunzip = Gunzip(limit + 1)
    async for packed in response.aiter_raw():
        for piece in gunzip.feed(packed):
            yield piece
    gunzip.end()
