"""How durations, sizes and rates are written in the file: the reverse of what `values.py` reads."""

from typing import Annotated, Any, get_args, get_origin

from pydantic import PlainValidator
from pydantic.fields import FieldInfo

from ingest.config.values import BYTES, SECONDS, duration, lookback, rate, size

_UNITS = ("d", "h", "m", "s", "ms")


def spelled(field: FieldInfo, value: Any) -> Any:
    """The value of a key as its text in the file, where that is not the value itself."""
    kinds = [validator.func for validator in _metadata(field) if isinstance(validator, PlainValidator)]
    if isinstance(value, float) and (duration in kinds or lookback in kinds):
        return seconds(value)
    if size in kinds:
        return amount(value)
    return per_time(value) if rate in kinds else value


def seconds(value: float) -> str:
    """5400.0 → 1h30m"""
    left, parts = round(value * 1000), ""
    for unit in _UNITS:
        count, left = divmod(left, round(SECONDS[unit] * 1000))
        parts += f"{count}{unit}" if count else ""
    return parts or "0"


def amount(value: int) -> str:
    """64000000 → 64MB"""
    unit, length = max((one for one in BYTES.items() if value % one[1] == 0), key=lambda one: one[1])
    return f"{value // length}{unit}"


def per_time(value: float) -> str:
    """1.3333333333333333 → 80/m"""
    for unit in ("s", "m", "h", "d"):
        count = value * SECONDS[unit]
        if abs(count - round(count)) < 1e-9 * max(count, 1.0) and round(count):
            return f"{round(count)}/{unit}"
    return f"{value:g}/s"


def _metadata(field: FieldInfo) -> list[Any]:
    """Of its type, also where it may be absent."""
    inner = [one for one in get_args(field.annotation) if get_origin(one) is Annotated]
    return [*field.metadata, *(entry for one in inner for entry in one.__metadata__)]
