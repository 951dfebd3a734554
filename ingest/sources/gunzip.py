"""Unpacks gzip and deflate piece by piece, so that a small body that unpacks to a huge one can be stopped meanwhile."""

import zlib
from collections.abc import Iterator

GZIP = 31  # wbits: with the header of gzip (zlib, inflateInit2)
SLICE = 8192  # bytes that are unpacked at once: what follows a member is copied, once for each member in a slice


class TooLarge(Exception):
    """More than the limit, unpacked."""


class Broken(Exception):
    """What came is no whole body; a later try may get one."""


class Gunzip:
    """The members of a gzip file (RFC 1952 allows several) in pieces of at most `most` bytes. Zeros behind a member are
    padding, as gzip itself has it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._member = zlib.decompressobj(wbits=GZIP)
        self._begun = self._padded = False

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """What the next bytes of the file unpack to. Raises Broken."""
        for start in range(0, len(packed), SLICE):
            yield from self._slice(packed[start : start + SLICE])

    def _slice(self, packed: bytes) -> Iterator[bytes]:
        while packed := packed.lstrip(b"\0") if self._padded else packed:
            piece = _unpacked(self._member, packed, self._most)
            ended = self._member.eof
            packed = self._member.unused_data if ended else self._member.unconsumed_tail
            self._begun, self._padded = not ended, ended
            if ended:
                self._member = zlib.decompressobj(wbits=GZIP)
            if piece:
                yield piece

    def end(self) -> None:
        """Nothing follows. Raises Broken when something should."""
        if self._begun:
            raise Broken("the body ends before its packed data does")


class Inflate:
    """`Content-Encoding: deflate`, in pieces of at most `most` bytes: zlib (RFC 9110, 8.4.1.2), or the bare deflate
    that some servers send instead."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._head = b""
        self._stream = zlib.decompressobj()
        self._begun = False

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """What the next bytes unpack to. Raises Broken."""
        if not self._begun:
            packed = self._head = self._head + packed
            if len(packed) < 2:
                return
            self._begun = True
            if packed[0] & 15 != zlib.DEFLATED or int.from_bytes(packed[:2], "big") % 31:  # RFC 1950, 2.2
                self._stream = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        while packed and not self._stream.eof:
            piece = _unpacked(self._stream, packed, self._most)
            packed = self._stream.unconsumed_tail
            if piece:
                yield piece

    def end(self) -> None:
        """Nothing follows. Raises Broken when something should."""
        if self._head and not self._stream.eof:
            raise Broken("the body ends before its packed data does")


def _unpacked(stream: "zlib._Decompress", packed: bytes, most: int) -> bytes:
    try:
        return stream.decompress(packed, most)
    except zlib.error as exc:
        raise Broken(f"the body cannot be unpacked: {exc}") from exc
