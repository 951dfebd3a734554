"""Reads a few fields out of a record without building the rest of it.

A record is decoded into a structure that has just the wanted names; each field stays the slice of bytes that the API
sent, so numbers keep their digits. Paths with an index or a wildcard, and records whose shape surprises, take a slower way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ingest.paths import JsonPath, find
from ingest.sources.answers import Answer, Slice, Undecodable

_NOTHING = msgspec.Raw()

Fields = tuple[Slice | None, ...]
"""One slice per path, None where the record has nothing there."""


class FieldReader:
    """Made once per stream. `read` raises Undecodable when the record is no JSON, TypeError when it is no object."""

    def __init__(self, paths: Sequence[JsonPath]) -> None:
        self._paths = tuple(paths)
        self._fast = _compiled(self._paths)

    def read(self, record: bytes) -> Fields:
        if self._fast is not None:
            try:
                return self._fast(record)
            except msgspec.ValidationError:
                pass
            except msgspec.DecodeError as exc:
                raise Undecodable(str(exc)) from exc
        if record.lstrip()[:1] != b"{":
            raise TypeError
        answer = Answer(record)
        return tuple(answer.first(path.steps) for path in self._paths)


def _compiled(paths: Sequence[JsonPath]) -> Callable[[bytes], Fields] | None:
    """A decoder for plain one-level names, by far the commonest; None for anything else."""
    names = [path.plain for path in paths]
    if any(name is None or len(name) != 1 for name in names):
        return None
    unique = sorted({name[0] for name in names if name})
    attribute = {name: f"f{i}" for i, name in enumerate(unique)}
    structure = msgspec.defstruct(
        "Fields",
        [(attribute[name], msgspec.Raw, _NOTHING) for name in unique],
        rename={attribute[name]: name for name in unique},
        gc=False,
    )
    decode = msgspec.json.Decoder(structure).decode
    attributes = [attribute[name[0]] for name in names if name]

    def read(record: bytes) -> Fields:
        fields: Any = decode(record)
        return tuple([value if (value := getattr(fields, name)) is not _NOTHING else None for name in attributes])

    return read


def values(record: bytes, path: JsonPath) -> list[object]:
    """Every value at the path, decoded; for messages to people, not for the hot path."""
    return list(find(msgspec.json.decode(record), path.steps))
