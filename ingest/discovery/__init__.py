"""What a stream could look like, read from an API's own answers or from its OpenAPI description. Pure.

A proposal is a guess with its evidence; whoever makes one lists a few pages with it before a person sees it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Proposal:
    """Keys of a stream, and why: key → what was seen."""

    keys: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)
    """What is worth a look, and nobody can know from outside."""

    def add(self, key: str, value: Any, why: str) -> None:
        self.keys[key], self.why[key] = value, why


@dataclass(frozen=True)
class Described:
    """A source as an API describes it: what its streams share, and a proposal for each."""

    source: Mapping[str, Any]
    why: Mapping[str, str]
    streams: Mapping[str, Proposal]
