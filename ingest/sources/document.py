"""A record that is changed piece by piece: what is not touched keeps its bytes, so every number keeps its digits.

Objects and lists are taken apart only where a path leads into them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ingest.paths import Step, keys
from ingest.sources.slices import Strict, Tolerant, Undecodable

Part = msgspec.Raw | dict[str, Any] | list[Any]
"""A piece of JSON: as it came, or taken apart."""

_OBJECT, _LIST = b"{"[0], b"["[0]


class Document:
    """An object of JSON."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self._root: dict[str, Any] | None = None
        self._tolerant = False

    @property
    def text(self) -> bytes:
        """The record's own bytes for as long as nothing was changed."""
        return self._record if self._root is None else msgspec.json.encode(self._root)

    @property
    def root(self) -> dict[str, Any]:
        """Taken apart, to be changed."""
        if self._root is None:
            self._root = self._members(self._record)
        return self._root

    def opened(self, part: Part) -> Part:
        """An object or a list taken apart; any other value as it came."""
        if not isinstance(part, msgspec.Raw):
            return part
        first = memoryview(part)[0]
        if first == _OBJECT:
            return self._members(part)
        return self._items(part) if first == _LIST else part

    def each(self, steps: Sequence[Step], act: Callable[[Any, str | int], None]) -> None:
        """Calls `act` with every container that has what the steps lead to, and its name or position there."""
        self._each(self.root, steps, act)

    def _each(self, container: Any, steps: Sequence[Step], act: Callable[[Any, str | int], None]) -> None:
        for key in keys(container, steps[0]):
            if len(steps) == 1:
                act(container, key)
            else:
                container[key] = self.opened(container[key])
                self._each(container[key], steps[1:], act)

    def _members(self, value: bytes | msgspec.Raw) -> dict[str, Any]:
        if not self._tolerant:
            try:
                return dict(Strict().members(value))
            except Undecodable:
                self._tolerant = True  # half a surrogate pair
        return {name: msgspec.Raw(bytes(member)) for name, member in Tolerant().members(value).items()}

    def _items(self, value: msgspec.Raw) -> list[Any]:
        if not self._tolerant:
            return list(Strict().items(value))
        return [msgspec.Raw(bytes(item)) for item in Tolerant().items(value)]
