"""From the bytes of a record to what the log needs beside them: id, version, key, time, position.

A page is read column by column; what that cannot read for certain is read record by record, with the same result.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat, zip_longest
from typing import NamedTuple

from ingest.config.model import Incremental, Stream
from ingest.errors import BadRecord
from ingest.paths import JsonPath, Root
from ingest.sources import Refused, SourceRecord, times
from ingest.sources.answers import Place
from ingest.sources.around import NO_HEADERS, Headers, Keeper, OuterReader
from ingest.sources.decoding import Decoder
from ingest.sources.fields import Column, Field, FieldReader, Nested
from ingest.sources.identity import SHORT_ID, bounded_id, hash_of, joined, version_hash
from ingest.sources.slices import Undecodable


class Read(NamedTuple):
    """What a page holds."""

    records: list[SourceRecord]
    refused: list[Refused]
    skipped: int  # records that the configuration leaves out
    changed: int = 0  # records that `decode` mended


class RecordReader:
    """Reads the records of one stream. Made once; holds no state of a listing."""

    def __init__(self, stream: Stream) -> None:
        incremental = stream.incremental
        self._decoder = Decoder(stream.decode)
        self._keeper = Keeper(stream.records.keep) if stream.records.keep else None
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
        return self._keeper is not None or self._outer is not None

    def read_all(
        self, records: Sequence[bytes], *, clean: bool, places: Sequence[Place] = (), headers: Headers = NO_HEADERS
    ) -> Read:
        """`clean`: the answer is known to be strict JSON in UTF-8. `places` of the records and `headers` of the answer
        are wanted where the reader looks around. Raises SourceChanged where `decode` says `fail`."""
        written = self._keeper.into(records, places, headers) if self._keeper else records
        fit, at, wrong, changed = self._decoder.page(written, clean=clean)
        refused = [Refused(records[n], error) for n, error in wrong]
        around = [places[n] for n in at] if self._outer else ()
        at_once = self._columns(fit, around)
        if at_once is not None:
            return Read(at_once, refused, 0, changed)
        good: list[SourceRecord] = []
        for n, (record, place) in enumerate(zip_longest(fit, around)):
            one = self.read(record, place)
            if isinstance(one, SourceRecord):
                good.append(one)
            elif one is not None:
                refused.append(Refused(records[at[n]], one))
        return Read(good, refused, len(records) - len(good) - len(refused), changed)

    def read(self, record: bytes, place: Place | None = None) -> SourceRecord | BadRecord | None:
        """One record that is JSON. None: the configuration leaves it out."""
        try:
            return self._read(record, place)
        except BadRecord as exc:
            return exc
        except Undecodable as exc:
            return BadRecord(f"a field is no text: {exc}", stage="validate", code="not_text")
        except TypeError:
            return BadRecord("the record is no object", stage="decode", code="not_object")

    def _read(self, record: bytes, place: Place | None) -> SourceRecord | None:
        fields = self._fields.read(record)
        if self._outer is not None and place is not None:
            fields = (*fields, *self._outer.read(place))
        position = None
        if self._at_position is not None:
            position = self._read_position(fields[self._at_position])
            if position is None and self._on_null == "skip":
                return None
        record_id = self._read_id(fields) if self._ids else self._hash(record)
        key = record_id if self._at_key is None else self._text(fields, self._at_key, "key")
        return SourceRecord(
            record_id,
            self._read_version(record, fields),
            record_id if key is None else key,
            None if self._at_time is None else self._time(fields[self._at_time]),
            position,
            record,
        )

    def _columns(self, records: Sequence[bytes], around: Sequence[Place]) -> list[SourceRecord] | None:
        """The page at once. None: a record of it is refused, left out, or not plain enough."""
        columns = self._fields.columns(records)
        outer = self._outer.columns(around) if self._outer else []
        if columns is None or outer is None:
            return None
        columns += outer
        try:
            positions = self._positions(columns)
            ids = self._all_ids(columns, records)
            versions = self._all_versions(columns, records)
        except BadRecord:
            return None
        keys = ids
        if self._at_key is not None:
            keys = [id if key is None else str(key) for id, key in zip(ids, columns[self._at_key], strict=True)]
        moments = repeat(None) if self._at_time is None else map(self._time_of, columns[self._at_time])
        return list(map(SourceRecord, ids, versions, keys, moments, positions, records))

    def _positions(self, columns: Sequence[Column]) -> Iterable[int | None]:
        if self._at_position is None:
            return repeat(None)
        positions = list(map(self._position_of, columns[self._at_position]))
        if self._on_null == "skip" and None in positions:
            raise BadRecord("one is left out", stage="validate", code="null_cursor")
        return positions

    def _all_ids(self, columns: Sequence[Column], records: Sequence[bytes]) -> list[str]:
        if not self._ids:
            return list(map(self._hash, records))
        if any(None in columns[at] for at in self._ids):
            raise BadRecord("`id` is null or missing", stage="validate", code="no_id")
        parts = [list(map(str, columns[at])) for at in self._ids]
        ids = parts[0] if len(parts) == 1 else list(map(joined, zip(*parts, strict=True)))
        if max(map(len, ids), default=0) > SHORT_ID:
            ids = list(map(bounded_id, ids))
        _without_nul("".join(ids), "id")
        return ids

    def _all_versions(self, columns: Sequence[Column], records: Sequence[bytes]) -> Iterable[str | None]:
        if self._immutable or not self._ids:
            return repeat(None)
        if self._at_version is None:
            if self._hash is not version_hash:
                return list(map(self._hash, records))
            return ["~" + blake2b(record, digest_size=8).hexdigest() for record in records]  # version_hash, inlined
        texts = zip(columns[self._at_version], records, strict=True)
        versions = [self._hash(record) if text is None else str(text) for text, record in texts]
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

    def _read_id(self, fields: Sequence[Field]) -> str:
        parts = []
        for at in self._ids:
            part = self._text(fields, at, "id")
            if part is None:
                raise BadRecord(f"`id` ({self._wanted[at]}) is null or missing", stage="validate", code="no_id")
            parts.append(part)
        return _without_nul(bounded_id(parts[0] if len(parts) == 1 else joined(parts)), "id")

    def _read_version(self, record: bytes, fields: Sequence[Field]) -> str | None:
        if self._immutable or not self._ids:
            return None
        text = None if self._at_version is None else self._text(fields, self._at_version, "version")
        return self._hash(record) if text is None else _without_nul(text, "version")

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
