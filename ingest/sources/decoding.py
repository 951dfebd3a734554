"""Makes the records of a page fit to be events: what JSON forbids, or its readers disagree on, follows `decode`.

A record is changed only where its policy says so, every other byte of it stays, and its neighbours are not touched.
What comes out is an object of JSON in UTF-8; half a surrogate pair, written as an escape, is JSON (RFC 8259, 8.2).
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson

from ingest.config.records import Decode
from ingest.errors import BadRecord, SourceChanged
from ingest.sources.slices import Strict, Undecodable, without_halves

CHUNK = 32_768  # bytes of records that are built as objects at once: what the processor's cache holds

_NOT_A_NUMBER = re.compile(
    rb'(?P<string>"(?:[^"\\]++|\\.)*+")|[+-]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])', re.DOTALL | re.IGNORECASE
)
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")


class Decoded(NamedTuple):
    records: Sequence[bytes]  # that are good
    at: Sequence[int]  # where on the page they stood
    refused: list[tuple[int, BadRecord]]  # where on the page the others stood, and what is wrong
    changed: int = 0  # records that a policy changed


class Decoder:
    """The policies of one stream."""

    def __init__(self, config: Decode) -> None:
        self._config = config
        self._looks_for_names = config.duplicate_keys != "keep"

    def page(self, records: Sequence[bytes], *, clean: bool) -> Decoded:
        """`clean`: the answer is known to be strict JSON in UTF-8. Raises SourceChanged where a policy says `fail`."""
        if clean and not (self._looks_for_names and may_repeat_a_name(records)):
            return Decoded(records, range(len(records)), [])
        good: list[bytes] = []
        at: list[int] = []
        refused: list[tuple[int, BadRecord]] = []
        for n, record in enumerate(records):
            try:
                good.append(self._names(record) if clean else self._one(record))
                at.append(n)
            except BadRecord as exc:
                refused.append((n, exc))
            except _Fails as exc:
                raise SourceChanged(f"record {n + 1} of {len(records)} {exc}") from exc
        return Decoded(good, at, refused, sum(fit != records[n] for fit, n in zip(good, at, strict=True)))

    def _one(self, record: bytes) -> bytes:
        """The record as it may be published."""
        fit = self._utf8(record)
        wrong = _not_json(fit)
        if wrong is not None:
            fit = self._numbers(fit)
            wrong = _not_json(without_halves(fit))
        if wrong is not None:
            raise BadRecord(f"the record is no JSON: {wrong}", stage="decode", code="not_json")
        return self._names(fit)

    def _utf8(self, record: bytes) -> bytes:
        try:
            record.decode()
        except UnicodeDecodeError as exc:
            if self._config.invalid_utf8 == "fail":
                raise _Fails("is not UTF-8, and `decode.invalid_utf8` is `fail`") from exc
            if self._config.invalid_utf8 == "dead_letter":
                words = f"the record is no UTF-8: {exc.reason} at byte {exc.start}"
                raise BadRecord(words, stage="decode", code="not_utf8") from exc
            return record.decode(errors="replace").encode()
        return record

    def _numbers(self, record: bytes) -> bytes:
        def instead(match: re.Match[bytes]) -> bytes:
            if match["string"] is not None:
                return match[0]
            if self._config.nan == "fail":
                raise _Fails(f"holds {match[0].decode()}, and `decode.nan` is `fail`")
            return b"null" if self._config.nan == "as_null" else b'"%b"' % match[0]

        return _NOT_A_NUMBER.sub(instead, record)

    def _names(self, record: bytes) -> bytes:
        if self._looks_for_names and (name := _repeated_name(record)) is not None:
            words = f"`{name[:100]}` twice in one object"
            if self._config.duplicate_keys == "fail":
                raise _Fails(f"holds {words}, and `decode.duplicate_keys` is `fail`")
            raise BadRecord(f"the record holds {words}", stage="decode", code="duplicate_key")
        return record


class _Fails(Exception):
    """A policy says that the page fails."""


def may_repeat_a_name(records: Sequence[bytes]) -> bool:
    """False: no object in them, at any depth, has a name twice. `records` are strict JSON in UTF-8."""
    return any(map(_may_repeat, _chunks(records)))


def _chunks(records: Sequence[bytes]) -> Iterator[bytes]:
    count = max(1, len(records) * CHUNK // max(1, sum(map(len, records))))
    for start in range(0, len(records), count):
        yield b"[%b]" % b",".join(records[start : start + count])


def _may_repeat(text: bytes) -> bool:
    """What is built from it and written again has lost the members whose name comes again: it is another text, with
    fewer colons. Of the colons in texts it has as many, but for those that were written as an escape."""
    try:
        again = orjson.dumps(orjson.loads(text))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # a number beyond a double, or nested deeply
        return True
    return again != text and (again.count(b":") != text.count(b":") or _has_escaped_colon(text))


def _has_escaped_colon(text: bytes) -> bool:
    return b"\\u003" in text and _ESCAPED_COLON.search(text) is not None


def _repeated_name(record: bytes) -> str | None:
    """The first name that an object of the record has twice."""

    def look(members: list[tuple[str, object]]) -> None:
        if len(dict(members)) < len(members):
            names = [name for name, _ in members]
            raise _Repeated(next(name for name in names if names.count(name) > 1))

    try:
        json.loads(record.decode(), object_pairs_hook=look, parse_int=str, parse_float=str)
    except _Repeated as exc:
        return str(exc)
    except RecursionError as exc:
        raise BadRecord("the record is no JSON: nested too deeply", stage="decode", code="not_json") from exc
    return None


class _Repeated(Exception):
    """A name comes again."""


def _not_json(record: bytes) -> str | None:
    """What is wrong with it, None for a good object. Raises BadRecord for another kind of value."""
    try:
        Strict().members(record)
    except Undecodable as exc:
        return str(exc)
    except TypeError as exc:
        raise BadRecord("the record is no object", stage="decode", code="not_object") from exc
    return None
