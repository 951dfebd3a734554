"""What tells records apart, and two states of one record: ids and versions as they stand in an eventId.

The rules (docs: configuration, "Identity") make the eventId a function of the record alone, so the same record polled
twice has the same one, and a changed record has another.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import msgspec

from ingest.config.records import Version
from ingest.paths import Step, find, keys
from ingest.sources.slices import built

MAX_ID_BYTES = 1000
SHORT_ID = MAX_ID_BYTES // 4  # characters that cannot be more bytes

Hash = Callable[[bytes], str]

_EXACT = msgspec.json.Decoder(float_hook=lambda digits: msgspec.Raw(digits.encode()))


def version_hash(record: bytes) -> str:
    """`~` and 64 bits of BLAKE2b in hex."""
    return "~" + blake2b(record, digest_size=8).hexdigest()


def bounded_id(text: str) -> str:
    """The id itself, or `~~` and 128 bits of BLAKE2b where it is too long for an index."""
    if len(text) <= SHORT_ID or len(raw := text.encode()) <= MAX_ID_BYTES:
        return text
    return "~~" + blake2b(raw, digest_size=16).hexdigest()


def joined(parts: Sequence[str]) -> str:
    """A composite id: its parts with `|` between them, `|` and `\\` inside a part escaped."""
    return "|".join(part.replace("\\", "\\\\").replace("|", "\\|") for part in parts)


def hash_of(version: Version) -> Hash:
    """Of the record's bytes, or of the parts that `version` chooses as canonical JSON: names sorted, nothing between
    the tokens, numbers as the API wrote them."""
    if not (version.hash or version.except_):
        return version_hash

    def chosen(record: bytes) -> str:
        parts = _built(record)
        if parts is None:
            return version_hash(record)
        for path in version.except_:
            _prune(parts, path.steps)
        if version.hash:
            parts = [list(find(parts, path.steps)) for path in version.hash]
        return version_hash(msgspec.json.encode(parts, order="sorted"))

    return chosen


def _built(record: bytes) -> object | None:
    """The record as objects, fractions as they are written. None: an integer of it has thousands of digits."""
    with suppress(ValueError, RecursionError):
        found: object = built(_EXACT, record)
        return found
    return None


def _prune(value: Any, steps: Sequence[Step]) -> None:
    """Takes out what the steps lead to."""
    for key in keys(value, steps[0]):
        if len(steps) > 1:
            _prune(value[key], steps[1:])
        else:
            del value[key]
