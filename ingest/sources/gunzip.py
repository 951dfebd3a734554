"""Unpacks gzip piece by piece, so that a small body that unpacks to a huge one can be stopped on the way."""

import zlib
from collections.abc import Iterator

GZIP = 31  # wbits: with the header of gzip (zlib, inflateInit2)


class TooLarge(Exception):
    """More than the limit, unpacked."""


class Broken(Exception):
    """What came is no whole body; a later try may get one."""


class Gunzip:
    """The members of a gzip file (RFC 1952 allows several) in pieces of at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._member = zlib.decompressobj(wbits=GZIP)
        self._begun = False

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """What the next bytes of the file unpack to. Raises Broken."""
        while packed:
            try:
                piece = self._member.decompress(packed, self._most)
            except zlib.error as exc:
                raise Broken(f"the body cannot be unpacked: {exc}") from exc
            self._begun = not self._member.eof
            packed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=GZIP)
            if piece:
                yield piece

    def end(self) -> None:
        """Nothing follows. Raises Broken when something should."""
        if self._begun:
            raise Broken("the body ends before its packed data does")
