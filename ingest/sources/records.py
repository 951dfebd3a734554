"""From the bytes of a record to what the log needs beside them: id, version, key, time, position.

The rules of identity (docs: configuration, "Identity"): the eventId is a function of the record alone, so the same record
polled twice has the same one, and a changed record has another.
"""

import hashlib
from collections.abc import Callable, Sequence

from ingest.config.model import Incremental, Stream
from ingest.errors import BadRecord
from ingest.paths import JsonPath
from ingest.sources import Refused, SourceRecord, times
from ingest.sources.answers import Slice, Undecodable, scalar
from ingest.sources.fields import FieldReader

MAX_ID_BYTES = 1000


def version_hash(record: bytes) -> str:
    """`~` and 64 bits of BLAKE2b in hex."""
    return "~" + hashlib.blake2b(record, digest_size=8).hexdigest()


def bounded_id(text: str) -> str:
    """The id itself, or `~~` and 128 bits of BLAKE2b where it is too long for an index."""
    if len(text) <= MAX_ID_BYTES // 4 or len(raw := text.encode()) <= MAX_ID_BYTES:
        return text
    return "~~" + hashlib.blake2b(raw, digest_size=16).hexdigest()


def joined(parts: Sequence[str]) -> str:
    """A composite id: its parts with `|` between them, `|` and `\\` inside a part escaped."""
    return "|".join(part.replace("\\", "\\\\").replace("|", "\\|") for part in parts)


class RecordReader:
    """Reads the records of one stream. Made once; holds no state of a listing."""

    def __init__(self, stream: Stream) -> None:
        self._ids = stream.id
        self._version = stream.version
        incremental = stream.incremental
        self._on_null = incremental.on_null if incremental else "emit"
        self._position = _position_parser(incremental)
        self._time = times.parser(("rfc3339", "unix"), incremental.timezone if incremental else None)
        self._wanted: list[JsonPath] = list(stream.id)
        self._at_version = self._want(stream.version if isinstance(stream.version, JsonPath) else None)
        self._at_key = self._want(stream.key)
        self._at_time = self._want(stream.occurred_at)
        self._at_position = self._want(incremental.field if incremental else None)
        self._fields = FieldReader(self._wanted)

    def read(self, record: bytes, *, check: bool) -> SourceRecord | Refused | None:
        """None: the configuration leaves the record out. `check`: the page was not clean, so look at the record itself."""
        try:
            if check:
                _check(record)
            return self._read(record)
        except BadRecord as exc:
            return Refused(record, exc)
        except Undecodable as exc:
            return Refused(record, BadRecord(f"the record is no JSON: {exc}", stage="decode", code="not_json"))
        except UnicodeDecodeError as exc:
            return Refused(record, BadRecord(f"the record is no UTF-8: {exc.reason}", stage="decode", code="not_utf8"))
        except TypeError:
            return Refused(record, BadRecord("the record is no object", stage="decode", code="not_object"))

    def _read(self, record: bytes) -> SourceRecord | None:
        fields = self._fields.read(record)
        position = self._read_position(fields[self._at_position]) if self._at_position is not None else None
        if position is None and self._at_position is not None and self._on_null == "skip":
            return None
        record_id = self._read_id(fields) if self._ids else version_hash(record)
        key = self._text(fields, self._at_key, "key")
        return SourceRecord(
            id=record_id,
            version=self._read_version(record, fields),
            key=record_id if key is None else key,
            occurred_at=self._read_time(fields),
            position=position,
            value=record,
        )

    def _want(self, path: JsonPath | None) -> int | None:
        if path is None:
            return None
        self._wanted.append(path)
        return len(self._wanted) - 1

    def _text(self, fields: Sequence[Slice | None], at: int | None, name: str) -> str | None:
        if at is None:
            return None
        try:
            return scalar(fields[at])
        except TypeError:
            raise BadRecord(
                f"`{name}` ({self._wanted[at]}) is an object or a list", stage="validate", code=f"bad_{name}"
            ) from None

    def _read_id(self, fields: Sequence[Slice | None]) -> str:
        parts = []
        for at in range(len(self._ids)):
            part = self._text(fields, at, "id")
            if part is None:
                raise BadRecord(f"`id` ({self._ids[at]}) is null or missing", stage="validate", code="no_id")
            parts.append(part)
        return bounded_id(parts[0] if len(parts) == 1 else joined(parts))

    def _read_version(self, record: bytes, fields: Sequence[Slice | None]) -> str | None:
        if self._version == "none" or not self._ids:
            return None
        text = self._text(fields, self._at_version, "version")
        return version_hash(record) if text is None else text

    def _read_time(self, fields: Sequence[Slice | None]) -> str | None:
        """RFC 3339, or None where the record has no time that can be read: `ce_time` is optional."""
        if self._at_time is None:
            return None
        try:
            text = scalar(fields[self._at_time])
            return None if text is None else times.rfc3339(self._time(text))
        except (TypeError, ValueError, OverflowError, OSError):
            return None

    def _read_position(self, value: Slice | None) -> int | None:
        try:
            text = scalar(value)
        except TypeError:
            raise BadRecord("the incremental field is an object or a list", stage="validate", code="bad_cursor") from None
        if text is None:
            if self._on_null == "fail":
                raise BadRecord("the incremental field is null or missing", stage="validate", code="null_cursor")
            return None
        try:
            return self._position(text)
        except (ValueError, OverflowError) as exc:
            raise BadRecord(f"cannot read the incremental field: {exc}", stage="validate", code="bad_cursor") from exc


def _check(record: bytes) -> None:
    """Strict JSON in UTF-8, or one of the exceptions that `read` turns into a refusal."""
    record.decode()
    FieldReader(()).read(record)


def _position_parser(incremental: Incremental | None) -> Callable[[str], int]:
    if incremental is None or incremental.type == "integer":
        return int
    formats = dict.fromkeys((*incremental.parse, incremental.format, "rfc3339"))
    return times.parser(tuple(formats), incremental.timezone)
