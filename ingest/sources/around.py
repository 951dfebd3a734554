"""What stands around the records of an answer: the objects that enclose their list, their names in it, the headers.

`^.` in the paths of a stream reads it; `records.keep` writes some of it into every record.
"""

from collections.abc import Container, Mapping, Sequence

import msgspec

from ingest.paths import JsonPath, Root
from ingest.sources.answers import Answer, Place
from ingest.sources.fields import Column, Field, field
from ingest.sources.slices import Tolerant, Undecodable

_VALUE = msgspec.json.Decoder(msgspec.Raw)

Headers = Mapping[str, str]
"""Of an answer, names in lower case."""

NO_HEADERS: Headers = {}


class OuterReader:
    """Reads fields that stand around a record, one per path, in their order; as `FieldReader` does within it."""

    def __init__(self, paths: Sequence[JsonPath]) -> None:
        self._paths = tuple(paths)

    def columns(self, places: Sequence[Place]) -> list[Column] | None:
        """None: one of them is neither text nor a number."""
        columns: list[Column] = [[] for _ in self._paths]
        last: Place | None = None
        row: Sequence[Field] = ()
        for place in places:
            if last is None or place.above is not last.above or place.name != last.name:
                last = place
                try:
                    row = self.read(place)
                except Undecodable:
                    return None
            for column, value in zip(columns, row, strict=True):
                if value is not None and not isinstance(value, str):
                    return None
                column.append(value)
        return columns

    def read(self, place: Place) -> Sequence[Field]:
        """Raises Undecodable for what is no JSON."""
        return tuple([self._field(place, path) for path in self._paths])

    def _field(self, place: Place, path: JsonPath) -> Field:
        raw = outer(place, path, NO_HEADERS)
        try:
            if raw is not None:
                raw.decode()
                _VALUE.decode(raw)
            return field(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise Undecodable(f"`{path}` is no JSON: {exc}") from exc


class Keeper:
    """Writes what `records.keep` names to the end of each record, in the stead of a member of that name."""

    def __init__(self, keep: Mapping[str, JsonPath]) -> None:
        self._keep = keep
        self._names = {name: msgspec.json.encode(name) for name in keep}

    def into(
        self, records: Sequence[bytes], places: Sequence[Place], headers: Headers, parent: bytes | None = None
    ) -> Sequence[bytes]:
        """What is no object stays as it is, and what is not there is not written. `parent`: the parent's record."""
        found: list[bytes] = []
        last: Place | None = None
        kept: dict[str, bytes] = {}
        for record, place in zip(records, places, strict=True):
            if last is None or place.above is not last.above or place.name != last.name:
                last, kept = place, self._kept(place, headers, parent)
            found.append(self._with(record, kept) if kept and record[:1] == b"{" else record)
        return found

    def _kept(self, place: Place, headers: Headers, parent: bytes | None) -> dict[str, bytes]:
        """Name → `"name":value`."""
        values = {name: outer(place, path, headers, parent) for name, path in self._keep.items()}
        return {name: self._names[name] + b":" + value for name, value in values.items() if value is not None}

    def _with(self, record: bytes, kept: Mapping[str, bytes]) -> bytes:
        if b"\\u" in record or any(self._names[name] in record for name in kept):
            try:
                record = without(record, kept)
            except Undecodable:
                return record  # no JSON, as will be found out
        comma = b"," if record[1:-1].strip() else b""
        return b"%b%b%b}" % (record[:-1], comma, b",".join(kept.values()))


def outer(place: Place, path: JsonPath, headers: Headers, parent: bytes | None = None) -> bytes | None:
    """What stands at a path that leads out of the record, byte for byte. None: nothing is there."""
    if path.root is Root.PARENT:
        found = None if parent is None else Answer(parent).first(path.steps)
        return None if found is None else bytes(found)
    if path.root is Root.HEADER:
        text = headers.get(str(path.steps[0]).lower())
        return None if text is None else msgspec.json.encode(text)
    if path.root is Root.NAME:
        return None if place.name is None else msgspec.json.encode(place.name)
    found = Answer(bytes(place.above[path.up - 1])).first(path.steps) if path.up <= len(place.above) else None
    return None if found is None else bytes(found)


def without(record: bytes, names: Container[str]) -> bytes:
    """The object without the members of these names; the others keep their bytes. Raises Undecodable."""
    pieces = list(Tolerant().pieces(record))
    kept = [part for name, part, _ in pieces if name not in names]
    return record if len(kept) == len(pieces) else b"{%b}" % b",".join(kept)
