"""Reads the body of an answer, never more of it than is allowed.

A small body that unpacks to a huge one is stopped while it unpacks, however often it was packed: never are more than a
few times the limit in memory. What ends before its end is broken, never a short body.
"""

from collections.abc import AsyncIterator, Mapping

import httpx

from ingest.sources.gunzip import Broken, Gunzip, Inflate, TooLarge

__all__ = ["Broken", "TooLarge", "read"]

CODINGS: Mapping[str, type[Gunzip | Inflate]] = {"gzip": Gunzip, "x-gzip": Gunzip, "deflate": Inflate}
"""What is unpacked; a body of any other coding is read as it is."""

LAYERS = 3  # of packing


async def read(response: httpx.Response, limit: int) -> bytes:
    """At most `limit` bytes, unpacked. Raises TooLarge, Broken and what httpx raises for a connection that breaks."""
    told = response.headers.get("content-encoding", "identity").strip().lower()
    codings = [coding for one in told.split(",") if (coding := one.strip()) in CODINGS]
    if len(codings) > LAYERS:
        raise Broken(f"the body is packed {len(codings)} times, more than {LAYERS}")
    declared = response.headers.get("content-length", "")
    if not codings and declared.isdecimal() and int(declared) > limit:
        raise TooLarge
    pieces = response.aiter_bytes() if told == "identity" else response.aiter_raw()
    for coding in reversed(codings):
        pieces = _unpacked(pieces, coding, limit)
    return b"".join([piece async for piece in _within(pieces, limit)])


async def _within(pieces: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > limit:
            raise TooLarge
        yield piece


async def _unpacked(pieces: AsyncIterator[bytes], coding: str, limit: int) -> AsyncIterator[bytes]:
    """In pieces of at most `limit` + 1 bytes. What is packed is no larger than `limit` either."""
    stream = CODINGS[coding](limit + 1)
    async for packed in _within(pieces, limit):
        for piece in stream.feed(packed):
            yield piece
    stream.end()
