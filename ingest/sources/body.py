"""Reads the body of an answer, never more of it than is allowed.

A small body that unpacks to a huge one is stopped while it unpacks: never is more than twice the limit in memory. What
ends before its end is broken, never a short body.
"""

import zlib
from collections.abc import AsyncIterator

import httpx

GZIP = 31  # wbits: with the header of gzip (zlib, inflateInit2)


class TooLarge(Exception):
    """More than the limit."""


class Broken(Exception):
    """What came is no whole body; a later try may get one."""


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
    """The members of a gzip file (RFC 1952 allows several), in pieces of at most `limit` + 1 bytes."""
    member = zlib.decompressobj(wbits=GZIP)
    begun = False
    async for packed in response.aiter_raw():
        while packed:
            try:
                piece = member.decompress(packed, limit + 1)
            except zlib.error as exc:
                raise Broken(f"the body cannot be unpacked: {exc}") from exc
            begun = not member.eof
            packed = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member = zlib.decompressobj(wbits=GZIP)
            if piece:
                yield piece
    if begun:
        raise Broken("the body ends before its packed data does")
