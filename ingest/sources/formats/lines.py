"""JSON Lines: a value on every line. A line that is none is a bad record, a last one that breaks off a torn body."""

import msgspec

from ingest.sources.answers import Answer, Undecodable
from ingest.sources.slices import Tolerant

_LINES = msgspec.json.Decoder(msgspec.Raw)


def answer(text: bytes) -> Answer:
    """The lines as a list. Raises Undecodable."""
    try:
        values = [bytes(value) for value in _LINES.decode_lines(text)]
        return Answer.of(values, shown=text, strict=True)
    except (msgspec.DecodeError, RecursionError):
        pass  # one of them is bad
    lines = [line.strip(b" \t\r\x1e") for line in text.split(b"\n")]
    if lines[-1] and not is_value(lines[-1]) and not _is_closed(lines[-1]):
        raise Undecodable("the last line breaks off: the body is torn")
    values = [line for line in lines if line]
    if not any(map(is_value, values)):
        raise Undecodable("no line of it is JSON")
    return Answer.of(values, shown=text, strict=False)


def _is_closed(line: bytes) -> bool:
    """Whatever stands in it, it goes to its end: an object, as every record is one."""
    try:
        Tolerant().members(line)
    except (TypeError, Undecodable):
        return False
    return True


def is_value(line: bytes) -> bool:
    try:
        _LINES.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
