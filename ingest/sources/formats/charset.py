"""The text of a file as UTF-8, whatever it was written in."""

import codecs
import re

from ingest.sources.slices import Undecodable

_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s;"',]+)""", re.IGNORECASE)
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins like that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BARE = (  # the first characters of JSON, CSV and XML are ASCII (RFC 4627, 3)
    (re.compile(rb"\0\0\0[^\0]", re.DOTALL), "utf-32-be"),
    (re.compile(rb"[^\0]\0\0\0", re.DOTALL), "utf-32-le"),
    (re.compile(rb"\0[^\0]", re.DOTALL), "utf-16-be"),
    (re.compile(rb"[^\0]\0", re.DOTALL), "utf-16-le"),
)


def in_utf8(file: bytes, content_type: str, *, utf8_first: bool) -> bytes:
    """A byte order mark decides, then zero bytes at the start, then the charset of the Content-Type.

    `utf8_first`: what is UTF-8 is no other charset, whatever the header says; so it is with JSON. What is in none of
    them stays as it came. Raises Undecodable for half a character of UTF-16 or UTF-32."""
    if file.startswith(codecs.BOM_UTF8):
        return file[len(codecs.BOM_UTF8) :]
    for mark, encoding in _MARKS:
        if file.startswith(mark):
            return _recoded(file[len(mark) :], encoding)
    if b"\0" in file[:4]:
        for pattern, encoding in _BARE:
            if pattern.match(file):
                return _recoded(file, encoding)
    declared = _declared(content_type)
    if declared is None or (utf8_first and _is_utf8(file)):
        return file
    try:
        return file.decode(declared).encode()
    except UnicodeError:
        return file


def _declared(content_type: str) -> str | None:
    """The charset, where it is one that is known, and not UTF-8."""
    match = _CHARSET.search(content_type)
    if match is None:
        return None
    try:
        "".encode(match[1])  # LookupError also for what encodes no text
        name = codecs.lookup(match[1]).name
    except (LookupError, ValueError):
        return None
    return None if name in ("utf-8", "utf-8-sig", "ascii") else name


def _recoded(file: bytes, encoding: str) -> bytes:
    try:
        return file.decode(encoding).encode()
    except UnicodeError as exc:
        raise Undecodable(f"not {encoding.upper()}: {exc}") from exc


def _is_utf8(file: bytes) -> bool:
    try:
        file.decode()
    except UnicodeDecodeError:
        return False
    return True
