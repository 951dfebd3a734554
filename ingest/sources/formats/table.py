"""CSV (RFC 4180): the first row names the fields, every other row is an object of texts.

The separator is the one that the first row has most of: a comma, a semicolon, a tab or a bar. A row of another length
than the first is no record: it becomes a list of its fields, which is refused alone. Any text is a table, an error in
words too: what lacks a column that it must have is none.
"""

import csv
import io
import json
import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from ingest.errors import Unlisted
from ingest.redaction import shown_whole
from ingest.sources.answers import Answer, Undecodable
from ingest.sources.gunzip import TooLarge

SEPARATORS = ",;\t|"
LOOKED_AT = 2000  # bytes at the beginning of a body
SHOWN = 300  # characters of names in a message
FIELD_LIMIT = 2**31 - 1  # characters; the module's own limit is 131,072

_QUOTED = re.compile(r'"[^"]*"')
_FIRST_ROW = re.compile(r'(?:"[^"]*"|[^"\n])*')  # a quoted field may hold line ends


def answer(text: bytes, limit: int, columns: Collection[str] = ()) -> Answer:
    """The rows as a list of objects, not more than `limit` bytes of them. `columns`: that it must have.

    Raises Undecodable, TooLarge and Unlisted."""
    csv.field_size_limit(FIELD_LIMIT)
    table = text.decode(errors="surrogateescape")  # what is not UTF-8 comes out again, for `decode` to judge
    rows = csv.reader(io.StringIO(table, newline=""), delimiter=_separator(table), strict=True)
    try:
        names = next((row for row in rows if row), None)
        if names is None:
            raise Undecodable("an empty table: not even a row of names")
        if lacking := ", ".join(f"`{one}`" for one in columns if one not in names):
            has = shown_whole(", ".join(names), SHOWN)
            raise Unlisted(f"a table without {lacking}, which `id` names; it has {has}")
        return Answer.of(list(_within(_objects(names, rows), limit)), shown=text, strict=True)
    except csv.Error as exc:
        raise Undecodable(f"no CSV: {exc} (line {rows.line_num})") from exc


def may_be(text: bytes) -> bool:
    """The first two lines have the same number, not 0, of one of the separators."""
    first, second, *_ = [*text.lstrip()[:LOOKED_AT].decode(errors="replace").splitlines(), "", ""]
    return any(0 < first.count(one) == second.count(one) for one in SEPARATORS)


def _separator(table: str) -> str:
    first = _QUOTED.sub("", _FIRST_ROW.match(table.lstrip("\r\n"))[0])  # type: ignore[index]
    return max(SEPARATORS, key=first.count)


def _objects(names: Sequence[str], rows: Iterator[list[str]]) -> Iterator[bytes]:
    unique = len(set(names)) == len(names)
    for row in rows:
        if len(row) != len(names):
            if row:
                yield _encoded(row)
        elif unique:
            yield _encoded(dict(zip(names, row, strict=True)))
        else:
            yield b"{%b}" % b",".join(
                b"%b:%b" % (_encoded(name), _encoded(value)) for name, value in zip(names, row, strict=True)
            )


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogateescape")


def _within(objects: Iterator[bytes], limit: int) -> Iterator[bytes]:
    for one in objects:
        limit -= len(one)
        if limit < 0:
            raise TooLarge
        yield one
