"""Takes an answer apart: where its records are, and the values that paging looks at.

Read by the strict reader as a whole, else by the tolerant one, so that one bad record is refused alone and its
neighbours stay. A body that even the scanner cannot follow raises Undecodable.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import msgspec

from ingest.paths import Every, Step
from ingest.sources.slices import Reader, Slice, Strict, Tolerant, Undecodable

__all__ = ["Answer", "Slice", "Undecodable", "scalar"]

NAMES_SHOWN = 300  # characters

_VALUE = msgspec.json.Decoder(msgspec.Raw)
_PLAIN = msgspec.json.Decoder()


class Place(NamedTuple):
    """Where a record stands."""

    above: tuple[Slice, ...]  # the objects around its list, the nearest first
    name: str | None = None  # where the list is an object


class Answer:
    """A decoded body. `strict` is false when msgspec refused it as a whole."""

    def __init__(self, body: bytes) -> None:
        self.body = body.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
        self.strict = True
        self._reader: Reader = Strict()
        self._root: dict[str, Slice] | Sequence[Slice] | None
        try:
            self._root = self._open()
        except Undecodable:
            if self.body[:1] not in (b"{", b"["):
                raise
            self.strict = False
            self._reader = Tolerant()
            self._root = self._open()

    @classmethod
    def of(cls, items: Sequence[bytes], *, shown: bytes, strict: bool) -> Self:
        """A list of values that were cut already. `shown`: what a message may show of the body."""
        answer = cls.__new__(cls)
        answer.body, answer.strict, answer._root = shown if items else b"[]", strict, items
        answer._reader = Strict() if strict else Tolerant()
        return answer

    def _open(self) -> dict[str, Slice] | Sequence[Slice] | None:
        """The outermost object or list taken apart once: reading it checks the whole body."""
        if self.body[:1] == b"{":
            return self._reader.members(self.body)
        if self.body[:1] == b"[":
            return self._reader.items(self.body)
        try:
            _VALUE.decode(self.body)
        except msgspec.DecodeError as exc:
            raise Undecodable(str(exc)) from exc
        return None

    @property
    def clean(self) -> bool:
        """Strict JSON in UTF-8; else every record wants its own check."""
        return self.strict and _is_utf8(self.body)

    def _members(self, value: Slice) -> dict[str, Slice]:
        if value is not self.body:
            return self._reader.members(value)
        if not isinstance(self._root, dict):
            raise TypeError
        return self._root

    def _items(self, value: Slice) -> Sequence[Slice]:
        if value is not self.body:
            return self._reader.items(value)
        if self._root is None or isinstance(self._root, dict):
            raise TypeError
        return self._root

    def members(self) -> Mapping[str, Slice]:
        """Of the outermost object. Raises TypeError where it is none."""
        return self._members(self.body)

    def first(self, steps: Sequence[Step]) -> Slice | None:
        """The first value that the steps reach, or None."""
        return next((value for value, _ in self._reach(self.body, steps)), None)

    def records(self, steps: Sequence[Step], *, may_be_absent: bool = False) -> list[bytes] | None:
        """The records: items of the list that the path names, or what a path that ends in `[*]` or `.*` fans out to.
        None when nothing is there and something should, or what is there is no list."""
        steps, fan = _container(steps)
        try:
            found = [self._within(part, fan) for part, _ in self._containers(steps, may_be_absent)]
        except TypeError:
            return None
        if not may_be_absent and not (self._all_reach(steps) if found else self._fans_out_to_nothing(steps)):
            return None
        return [bytes(r) for part in found for r in (part.values() if isinstance(part, dict) else part)]

    def places(self, steps: Sequence[Step], *, may_be_absent: bool = False) -> list[Place]:
        """Where each of the records stands."""
        steps, fan = _container(steps)
        found: list[Place] = []
        for part, above in self._containers(steps, may_be_absent):
            within = self._within(part, fan)
            found += [Place(above, name) for name in (within if isinstance(within, dict) else [None] * len(within))]
        return found

    def lists(self) -> list[tuple[str, int]]:
        """Lists near the top of the answer and their lengths, for an error that helps: [("$.items", 50)]."""
        found: list[tuple[str, int]] = []
        self._lists(self.body, "$", 3, found)
        return found

    def _containers(self, steps: Sequence[Step], may_be_absent: bool) -> Iterator[tuple[Slice, tuple[Slice, ...]]]:
        found = self._reach(self.body, steps)
        return ((part, above) for part, above in found if not (may_be_absent and bytes(part) == b"null"))

    def _within(self, part: Slice, fan: Every) -> Sequence[Slice] | dict[str, Slice]:
        return self._members(part) if fan is Every.VALUE else self._items(part)

    def _all_reach(self, steps: Sequence[Step]) -> bool:
        """Whether every object or list that the steps fan out to has what the steps behind that lead to."""
        fans = [n for n, step in enumerate(steps) if isinstance(step, Every)]
        return all(
            any(True for _ in self._reach(part, steps[at + 1 : end]))
            for at, end in pairwise([*fans, len(steps)])
            for part, _ in self._reach(self.body, steps[: at + 1])
            if bytes(part)[:1] in (b"{", b"[")
        )

    def _fans_out_to_nothing(self, steps: Sequence[Step]) -> bool:
        """A list or object on the way is there, and is empty."""
        for n, step in enumerate(steps):
            if isinstance(step, Every):
                brackets = (b"[]", b"{}")[step is Every.VALUE]
                around = [bytes(part) for part, _ in self._reach(self.body, steps[:n])]
                if around and all(part[:1] + part[1:].lstrip(b" \t\r\n") == brackets for part in around):
                    return True
        return False

    def _reach(
        self, value: Slice, steps: Sequence[Step], above: tuple[Slice, ...] = ()
    ) -> Iterator[tuple[Slice, tuple[Slice, ...]]]:
        """Every value that the steps lead to, with the objects around it."""
        if not steps:
            yield value, above
            return
        step, rest = steps[0], steps[1:]
        try:
            if step is Every.ITEM:
                for item in self._items(value):
                    yield from self._reach(item, rest, above)
            elif step is Every.VALUE:
                for item in self._members(value).values():
                    yield from self._reach(item, rest, (value, *above))
            elif isinstance(step, int):
                items = self._items(value)
                if step < len(items):
                    yield from self._reach(items[step], rest, above)
            else:
                members = self._members(value)
                if step in members:
                    yield from self._reach(members[step], rest, (value, *above))
        except TypeError:
            return

    def _lists(self, value: Slice, path: str, depth: int, found: list[tuple[str, int]]) -> None:
        try:
            found.append((path, len(self._items(value))))
        except TypeError:
            if depth:
                try:
                    for name, member in self._members(value).items():
                        self._lists(member, f"{path}.{name}", depth - 1, found)
                except TypeError:
                    return


def _container(steps: Sequence[Step]) -> tuple[Sequence[Step], Every]:
    """The steps to what holds the records, and how they stand in it."""
    if steps and isinstance(steps[-1], Every):
        return steps[:-1], steps[-1]
    return steps, Every.ITEM


def _is_utf8(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def scalar(value: Slice | None) -> str | None:
    """A JSON scalar as text: strings as they are, numbers as their raw digits, true, false; null and absent are None.

    Raises TypeError for an object or a list, UnicodeDecodeError and Undecodable for text that is none."""
    if value is None:
        return None
    raw = bytes(value)
    first = raw[:1]
    if first == b'"':
        return raw[1:-1].decode() if b"\\" not in raw else _unescaped(raw)
    if first in (b"{", b"["):
        raise TypeError
    return None if raw == b"null" else raw.decode()


def _unescaped(raw: bytes) -> str:
    try:
        return str(_PLAIN.decode(raw))
    except msgspec.DecodeError as exc:
        raise Undecodable(str(exc)) from exc


def has(record: bytes) -> str:
    """The names of its members, for an error that helps: "; it has id, name". Empty where it is no object."""
    try:
        names = ", ".join(Answer(record).members())
    except (TypeError, Undecodable):
        return ""
    return f"; it has {names[:NAMES_SHOWN]}" if names else ""
