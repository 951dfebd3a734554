"""Reads a few fields out of records without building the rest of them.

Records are decoded into structures that have just the wanted names, a page of them in one call. Texts and whole numbers
are exact that way; records with anything else in a wanted field, and paths with an index or a wildcard, take a slower
way over the bytes that the API sent, so that every number keeps its digits.
"""

from collections.abc import Sequence
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from ingest.paths import JsonPath, find
from ingest.sources.answers import Answer, Slice, scalar


class Nested(Enum):
    """Stands where a field is an object or a list."""

    NESTED = "nested"


Field = str | int | Nested | None
"""Text, numbers that are not whole and booleans as they are written; None where nothing is there, or null."""

Column = list[str | int | None]
"""One field of every record of a page."""

_Exact = str | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None


class FieldReader:
    """Made once per stream. `read` gives one field per path, in their order.

    It raises Undecodable when a field holds half a surrogate pair, TypeError when the record is no object."""

    def __init__(self, paths: Sequence[JsonPath]) -> None:
        self._paths = tuple(paths)
        structure = _structure(self._paths)
        self._fast = None if structure is None else msgspec.json.Decoder(structure).decode
        self._page = None if structure is None else msgspec.json.Decoder(list[structure]).decode  # type: ignore[valid-type]
        self._getters = [attrgetter(f"f{n}") for n in range(len(self._paths))]

    def columns(self, records: Sequence[bytes]) -> list[Column] | None:
        """A column per path, each in the order of the records. None: one of them wants the slower way."""
        if self._page is None:
            return None
        try:
            rows = self._page(b"[%b]" % b",".join(records))
        except (msgspec.DecodeError, RecursionError):
            return None
        columns = [list(map(get, rows)) for get in self._getters]
        return None if any(0 in column for column in columns) else columns  # it may have been written -0

    def read(self, record: bytes) -> Sequence[Field]:
        if self._fast is not None:
            try:
                fields: tuple[Field, ...] = msgspec.structs.astuple(self._fast(record))
                if 0 not in fields:  # as above
                    return fields
            except (msgspec.DecodeError, RecursionError):  # a field of another kind, or half a surrogate pair anywhere
                pass
        if record.lstrip()[:1] != b"{":
            raise TypeError
        answer = Answer(record)
        return tuple([field(answer.first(path.steps)) for path in self._paths])


def field(value: Slice | None) -> Field:
    try:
        return scalar(value)
    except TypeError:
        return Nested.NESTED


def _structure(paths: Sequence[JsonPath]) -> type[Any] | None:
    """For plain one-level names, by far the commonest; None for anything else, and where one comes twice."""
    names = [path.plain for path in paths]
    if len(set(names)) < len(names) or any(name is None or len(name) != 1 for name in names):
        return None
    attributes = [f"f{n}" for n in range(len(names))]
    return msgspec.defstruct(
        "Fields",
        [(attribute, _Exact, None) for attribute in attributes],
        rename={attribute: name[0] for attribute, name in zip(attributes, names, strict=True) if name},
        gc=False,
    )


def values(record: bytes, path: JsonPath) -> list[object]:
    """Every value at the path, decoded; for messages to people, not for the hot path."""
    return list(find(msgspec.json.decode(record), path.steps))
