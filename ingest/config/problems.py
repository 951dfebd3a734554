"""Mistakes in the file, each with its place: `file:line:column: message`.

All of them are reported at once, in the order of the file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ingest.errors import ConfigError


class Position(NamedTuple):
    """Both count from 1."""

    line: int
    column: int


START = Position(1, 1)


@dataclass(frozen=True, order=True)
class Problem:
    file: str
    line: int
    column: int
    path: str
    """The keys that lead to it, joined by dots: sources.billing.streams.charges.every."""
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class ConfigErrors(ConfigError):
    """Everything that is wrong with one file; its text has a line for each."""

    def __init__(self, errors: Iterable[Problem]) -> None:
        # What stands under `defaults` is seen once per stream and reported once.
        unique = {(e.line, e.column, e.message): e for e in sorted(errors, reverse=True)}
        self.errors = sorted(unique.values())
        super().__init__("\n".join(str(e) for e in self.errors))
