"""What every part of the configuration is: a frozen pydantic model that knows no key but its own, and checks itself.

A rule that looks at several keys stands in `mistakes` of the part that has them. It yields the key it is about, so that
the loader can point at it, and as many mistakes as there are.
"""

from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

Mistake = tuple[str, str]
"""The key it is about ("" for the part as a whole), and what is wrong with it."""


class Mistakes(ValueError):
    """What `Part.mistakes` found; pydantic carries it to the loader."""

    def __init__(self, found: Sequence[Mistake]) -> None:
        super().__init__("; ".join(message for _, message in found))
        self.found = found


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, use_attribute_docstrings=True)

    def mistakes(self) -> Iterable[Mistake]:
        """Rules that need more than one key. Runs only when every key is right by itself."""
        return ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if found := list(self.mistakes()):
            raise Mistakes(found)
        return self
