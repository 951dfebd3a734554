"""From the bytes of a record to what the log needs beside them: id, version, key, time, position.

A page is read column by column; what that cannot read for certain is read record by record, with the same result.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from operator import add

from ingest.config.model import Incremental, Stream
from ingest.errors import BadRecord
from ingest.paths import JsonPath, Root
from ingest.sources import SourceRecord, times
from ingest.sources.answers import Place
from ingest.sources.around import OuterReader
from ingest.sources.fields import Column, Field, FieldReader, Nested
from ingest.sources.identity import SHORT_ID, bounded_id, hash_of, joined, version_hash
from ingest.sources.slices import Undecodable


class RecordReader:
    """Reads the records of one stream. Made once; holds no state of a listing."""

    def __init__(self, stream: Stream) -> None:
        incremental = stream.incremental
        self._on_null = incremental.on_null if incremental else "emit"
        self._position = _position_parser(incremental)
        self._time = _time_reader(incremental, self._position)
        self._immutable = stream.version.path == "none"
        self._hash = hash_of(stream.version)
        version = stream.version.path if isinstance(stream.version.path, JsonPath) else None
        position = None if incremental is None else incremental.field
        named = [path for path in (*stream.id, version, stream.key, stream.occurred_at, position) if path is not None]
        self._wanted = sorted(dict.fromkeys(named), key=_is_outer)  # what is wanted twice is read once
        self._ids = [self._wanted.index(path) for path in stream.id]
        self._at_version, self._at_key, self._at_time, self._at_position = (
            None if path is None else self._wanted.index(path)
            for path in (version, stream.key, stream.occurred_at, position)
        )
        self._fields = FieldReader([path for path in self._wanted if not _is_outer(path)])
        outer = [path for path in self._wanted if _is_outer(path)]
        self._outer = OuterReader(outer) if outer else None
        self._position_of = lru_cache(times.CACHED)(self._read_position)  # neighbours often share a time
        self._time_of = lru_cache(times.CACHED)(self._time)

    @property
    def looks_around(self) -> bool:
        """Whether the places of the records are wanted."""
        return self._outer is not None

    def read(
        self,
        record: bytes,
        place: Place | None = None,
        value: bytes | None = None,
        suffix: str = "",
        parent: str = "",
    ) -> SourceRecord | BadRecord | None:
        """One record that is JSON; `value` is what is published for it, `parent` the start and `suffix` the end of its
        id. None: the configuration leaves it out."""
        try:
            return self._read(record, place, record if value is None else value, parent, suffix)
        except BadRecord as exc:
            return exc
        except Undecodable as exc:
            return BadRecord(f"a field is no text: {exc}", stage="validate", code="not_text")
        except TypeError:
            return BadRecord("the record is no object", stage="decode", code="not_object")

    def _read(
        self, record: bytes, place: Place | None, value: bytes, parent: str, suffix: str
    ) -> SourceRecord | None:
        fields = self._fields.read(record)
        if self._outer is not None and place is not None:
            fields = (*fields, *self._outer.read(place))
        position = None
        if self._at_position is not None:
            position = self._read_position(fields[self._at_position])
            if position is None and self._on_null == "skip":
                return None
        record_id = self._read_id(value, fields, parent, suffix)
        key = record_id if self._at_key is None else self._text(fields, self._at_key, "key")
        return SourceRecord(
            record_id,
            self._read_version(value, fields),
            record_id if key is None else key,
            None if self._at_time is None else self._time(fields[self._at_time]),
            position,
            value,
        )

    def left_out(
        self,
        record: bytes,
        place: Place | None = None,
        value: bytes | None = None,
        suffix: str = "",
        parent: str = "",
    ) -> SourceRecord | None:
        """What `read` leaves out, as far as a listing must know it. None: nobody can read its id."""
        value = record if value is None else value
        try:
            fields = self._fields.read(record)
            if self._outer is not None and place is not None:
                fields = (*fields, *self._outer.read(place))
            name = self._read_id(value, fields, parent, suffix)
        except (BadRecord, Undecodable):
            return None
        return SourceRecord(name, None, name, None, None, value)

    def columns(
        self,
        records: Sequence[bytes],
        places: Sequence[Place] = (),
        values: Sequence[bytes] | None = None,
        suffixes: Sequence[str] | None = None,
        parent: str = "",
    ) -> list[SourceRecord] | None:
        """What `read` gives for each of them, at once. None: one is refused, left out, or not plain enough."""
        columns = self._fields.columns(records)
        outer = self._outer.columns(places) if self._outer else []
        if columns is None or outer is None:
            return None
        columns += outer
        values = records if values is None else values
        try:
            positions = self._positions(columns)
            ids = self._all_ids(columns, values, parent, suffixes)
            versions = self._all_versions(columns, values)
        except BadRecord:
            return None
        keys = ids
        if self._at_key is not None:
            keys = [id if key is None else str(key) for id, key in zip(ids, columns[self._at_key], strict=True)]
        moments = repeat(None) if self._at_time is None else map(self._time_of, columns[self._at_time])
        return list(map(SourceRecord, ids, versions, keys, moments, positions, values))

    def _positions(self, columns: Sequence[Column]) -> Iterable[int | None]:
        if self._at_position is None:
            return repeat(None)
        positions = list(map(self._position_of, columns[self._at_position]))
        if self._on_null == "skip" and None in positions:
            raise BadRecord("one is left out", stage="validate", code="null_cursor")
        return positions

    def _all_ids(
        self, columns: Sequence[Column], values: Sequence[bytes], parent: str, suffixes: Sequence[str] | None
    ) -> list[str]:
        if any(None in columns[at] for at in self._ids):
            raise BadRecord("`id` is null or missing", stage="validate", code="no_id")
        parts = [list(map(str, columns[at])) for at in self._ids] or [list(map(self._hash, values))]
        ids = parts[0] if len(parts) == 1 and not parent else list(map(joined, zip(*parts, strict=True)))
        if parent:
            ids = [f"{parent}|{id}" for id in ids]
        if suffixes is not None:
            ids = list(map(add, ids, suffixes))
        if max(map(len, ids), default=0) > SHORT_ID:
            ids = list(map(bounded_id, ids))
        _without_nul("".join(ids), "id")
        return ids

    def _all_versions(self, columns: Sequence[Column], values: Sequence[bytes]) -> Iterable[str | None]:
        if self._immutable or not self._ids:
            return repeat(None)
        if self._at_version is None:
            if self._hash is not version_hash:
                return list(map(self._hash, values))
            return ["~" + blake2b(value, digest_size=8).hexdigest() for value in values]  # version_hash, inlined
        texts = zip(columns[self._at_version], values, strict=True)
        versions = [self._hash(value) if text is None else str(text) for text, value in texts]
        _without_nul("".join(versions), "version")
        return versions

    def _text(self, fields: Sequence[Field], at: int, name: str) -> str | None:
        field = fields[at]
        if field.__class__ is str or field is None:
            return field
        if isinstance(field, Nested):
            raise BadRecord(
                f"`{name}` ({self._wanted[at]}) is an object or a list", stage="validate", code=f"bad_{name}"
            )
        return str(field)

    def _read_id(self, value: bytes, fields: Sequence[Field], parent: str, suffix: str) -> str:
        parts = [] if self._ids else [self._hash(value)]
        for at in self._ids:
            part = self._text(fields, at, "id")
            if part is None:
                raise BadRecord(f"`id` ({self._wanted[at]}) is null or missing", stage="validate", code="no_id")
            parts.append(part)
        own = parts[0] if len(parts) == 1 and not parent else joined(parts)
        return _without_nul(bounded_id((f"{parent}|{own}" if parent else own) + suffix), "id")

    def _read_version(self, value: bytes, fields: Sequence[Field]) -> str | None:
        if self._immutable or not self._ids:
            return None
        text = None if self._at_version is None else self._text(fields, self._at_version, "version")
        return self._hash(value) if text is None else _without_nul(text, "version")

    def _read_position(self, field: Field) -> int | None:
        if isinstance(field, Nested):
            raise BadRecord("the incremental field is an object or a list", stage="validate", code="bad_cursor")
        if field is None:
            if self._on_null == "fail":
                raise BadRecord("the incremental field is null or missing", stage="validate", code="null_cursor")
            return None
        try:
            return self._position(field if isinstance(field, str) else str(field))
        except ValueError as exc:
            raise BadRecord(f"cannot read the incremental field: {exc}", stage="validate", code="bad_cursor") from exc


def _without_nul(text: str, name: str) -> str:
    """Postgres keeps no NUL in text, and what the state cannot remember must not be published."""
    if "\0" in text:
        raise BadRecord(f"`{name}` holds a NUL character", stage="validate", code="nul")
    return text


def _is_outer(path: JsonPath) -> bool:
    return path.root is not Root.BODY


def _position_parser(incremental: Incremental | None) -> times.Parse:
    if incremental is None or incremental.type == "integer":
        return times.parse_integer
    formats = dict.fromkeys((*incremental.parse, incremental.format, "rfc3339"))
    return times.parser(tuple(formats), incremental.timezone)


def _time_reader(incremental: Incremental | None, position: times.Parse) -> Callable[[Field], str | None]:
    """RFC 3339, or None where the record has no time that can be read: `ce_time` is optional.

    A time is read as positions are, which costs nothing where both are one field; else as a number."""
    other = times.parser(("rfc3339", "unix"), incremental.timezone if incremental else None)
    parsers = [other] if incremental is None or incremental.type == "integer" else [position, other]

    def read(field: Field) -> str | None:
        if not isinstance(field, str | int):
            return None
        for parse in parsers:
            try:
                return times.in_utc(str(field), parse)
            except ValueError:
                pass
        return None

    return read
