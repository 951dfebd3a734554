"""Where a value goes in a request: a query parameter, a header, a place in the body, or the path."""

from typing import NamedTuple

import msgspec

from ingest.config.requests import Placed
from ingest.paths import Step

Value = str | int | msgspec.Raw
"""Text, or a number; Raw: a number, or any other JSON, in the digits of whoever wrote it."""


class Placement(NamedTuple):
    """One of the four is set."""

    param: str | None = None
    header: str | None = None  # in lower case
    body: tuple[Step, ...] = ()
    in_path: bool = False

    @classmethod
    def of(cls, part: Placed) -> "Placement":
        """Where the configuration puts it."""
        [place] = part.places[:1]
        if place == "header":
            return cls(header=str(part.header).lower())
        if place == "body" and part.body is not None:
            return cls(body=part.body.steps)
        return cls(param=part.param) if place == "param" else cls(in_path=True)


class Put(NamedTuple):
    """A value on its way to its place, where it replaces whatever is there."""

    where: Placement
    value: Value


def as_text(value: Value) -> str:
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else str(value)
