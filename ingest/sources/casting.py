"""Values that an API writes as another type than they are: `"12.50"` for a number, `"true"` for a boolean.

A cast changes how a value is written and never what it says: no digit of a number is lost or made up.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal

import msgspec

from ingest.sources.answers import scalar

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)  # RFC 8259, 6
_LOOSE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
MAX_EXPONENT = 400  # beyond it a whole number is not written out

Cast = Callable[[bytes], bytes]
"""From the JSON of a value that is not null to the JSON of the other type. Raises ValueError for what cannot be one."""


def text(value: bytes) -> bytes:
    """A number becomes its digits, an object or a list its JSON."""
    return value if value[:1] == b'"' else msgspec.json.encode(value.decode())


def decimal(value: bytes) -> bytes:
    digits = _scalar(value)
    if _NUMBER.fullmatch(digits):
        return digits.encode()
    if not _LOOSE.fullmatch(digits):
        raise ValueError
    return str(Decimal(digits)).encode()


def integer(value: bytes) -> bytes:
    number = Decimal(decimal(value).decode())
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or abs(exponent) > MAX_EXPONENT or number != number.to_integral_value():
        raise ValueError
    return f"{number:.0f}".encode()


def boolean(value: bytes) -> bytes:
    return {"true": b"true", "1": b"true", "false": b"false", "0": b"false"}[_scalar(value).lower()]


def _scalar(value: bytes) -> str:
    found = scalar(value)
    if found is None:
        raise ValueError
    return found.strip()


CASTS: Mapping[str, Cast] = {"text": text, "decimal": decimal, "integer": integer, "boolean": boolean}
