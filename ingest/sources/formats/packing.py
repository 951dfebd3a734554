"""Unpacks what its first bytes show to be packed, whatever the headers say: gzip, zip, and one inside the other."""

import io
import zipfile
import zlib
from collections.abc import Iterable

from ingest.errors import SourceChanged
from ingest.sources.gunzip import Broken, Gunzip, TooLarge
from ingest.sources.slices import Undecodable

LAYERS = 3  # of packing
GZIP_MARK = b"\x1f\x8b"
ZIP_MARKS = (b"PK\x03\x04", b"PK\x05\x06")  # a file, the end of an empty zip
MAX_FILES = 10_000  # in a zip
RESOURCES = "__MACOSX/"  # what macOS packs beside the files


def unpacked(body: bytes, limit: int) -> list[bytes]:
    """The files in it: itself, unless it is packed. Raises TooLarge, Undecodable for what cannot be unpacked,
    SourceChanged for what never can."""
    files = [body]
    for _ in range(LAYERS):
        if not any(file[:2] == GZIP_MARK or file[:4] in ZIP_MARKS for file in files):
            break
        room = limit
        further: list[bytes] = []
        for file in files:
            found = _files(file, room)
            room -= sum(map(len, found))
            further += found
        files = further
    return files


def _files(file: bytes, room: int) -> list[bytes]:
    if file[:2] == GZIP_MARK:
        return [_gunzipped(file, room)]
    if file[:4] in ZIP_MARKS:
        return _unzipped(file, room)
    return [file]


def _gunzipped(file: bytes, room: int) -> bytes:
    gunzip = Gunzip(room + 1)
    try:
        content = _within(gunzip.feed(file), room)
        gunzip.end()
    except Broken as exc:
        raise Undecodable(str(exc)) from exc
    return content


def _unzipped(file: bytes, room: int) -> list[bytes]:
    files: list[bytes] = []
    try:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            members = [
                one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith(RESOURCES)
            ]
            if len(members) > MAX_FILES:
                raise SourceChanged(f"a zip of {len(members)} files, more than {MAX_FILES}")
            for member in members:
                if member.flag_bits & 1:
                    raise SourceChanged(f"the zip is encrypted: {member.filename}")
                with archive.open(member) as content:
                    files.append(_within(iter(lambda: content.read(65_536), b""), room))
                room -= len(files[-1])
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as exc:
        raise Undecodable(f"the zip cannot be unpacked: {exc}") from exc
    return files


def _within(pieces: Iterable[bytes], room: int) -> bytes:
    """Raises TooLarge before much more than `room` is there."""
    found: list[bytes] = []
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            raise TooLarge
        found.append(piece)
    return b"".join(found)
