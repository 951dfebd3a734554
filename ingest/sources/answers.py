"""Takes an answer apart without touching a byte of its records.

Two readers give the same slices: msgspec, fast and strict, and behind it a tolerant scanner for pages where one record
holds what JSON forbids (NaN, a raw control character) or what msgspec refuses (a lone surrogate): that record is then
refused alone, its neighbours stay. A body that even the scanner cannot follow raises Undecodable.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from ingest.paths import Every, Step

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder(msgspec.Raw)
_PLAIN = msgspec.json.Decoder()

Slice = bytes | msgspec.Raw


class Undecodable(Exception):
    """The body is no JSON; says where."""


class Reader(Protocol):
    """Both raise TypeError when the value is of another kind, Undecodable when it is broken."""

    def members(self, value: Slice) -> dict[str, Slice]: ...
    def items(self, value: Slice) -> Sequence[Slice]: ...


class Strict:
    def members(self, value: Slice) -> dict[str, Slice]:
        try:
            return _OBJECT.decode(value)  # type: ignore[return-value]
        except msgspec.ValidationError as exc:
            raise TypeError from exc
        except msgspec.DecodeError as exc:
            raise Undecodable(str(exc)) from exc

    def items(self, value: Slice) -> Sequence[Slice]:
        try:
            return _ARRAY.decode(value)
        except msgspec.ValidationError as exc:
            raise TypeError from exc
        except msgspec.DecodeError as exc:
            raise Undecodable(str(exc)) from exc


_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\[\]{}\":]+")
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class Tolerant:
    """Knows only strings, brackets and commas. What stands between them is for someone else to judge."""

    def members(self, value: Slice) -> dict[str, Slice]:
        found: dict[str, Slice] = {}
        for start, end in self._parts(bytes(value), b"{", b"}"):
            part = bytes(value)[start:end]
            name = _STRING.match(part)
            colon = _SPACE.match(part, name.end()).end() if name else 0  # type: ignore[union-attr]
            if name is None or part[colon : colon + 1] != b":":
                raise Undecodable(f"no member of an object at byte {start}")
            found[_text(name[0])] = part[colon + 1 :].strip(b" \t\r\n")
        return found

    def items(self, value: Slice) -> Sequence[Slice]:
        body = bytes(value)
        return [body[start:end] for start, end in self._parts(body, b"[", b"]")]

    def _parts(self, body: bytes, opening: bytes, closing: bytes) -> Iterator[tuple[int, int]]:
        at = _skip_space(body, 0)
        if body[at : at + 1] != opening:
            raise TypeError
        at = _skip_space(body, at + 1)
        if body[at : at + 1] == closing:
            self._check_end(body, at)
            return
        while True:
            start = at
            at = self._member_end(body, at)
            yield start, at
            at = _skip_space(body, at)
            mark = body[at : at + 1]
            if mark == closing:
                self._check_end(body, at)
                return
            if mark != b",":
                raise Undecodable(f"neither a comma nor {closing.decode()} at byte {at}")
            at = _skip_space(body, at + 1)

    def _check_end(self, body: bytes, at: int) -> None:
        if at + 1 != len(body):
            raise Undecodable(f"text after the end of the value, at byte {at + 1}")

    def _member_end(self, body: bytes, at: int) -> int:
        """The end of an item, or of `"name": value`."""
        end = self._value_end(body, at)
        after = _skip_space(body, end)
        return self._value_end(body, _skip_space(body, after + 1)) if body[after : after + 1] == b":" else end

    def _value_end(self, body: bytes, at: int) -> int:
        first = body[at : at + 1]
        if first in (b"{", b"["):
            return self._nested_end(body, at)
        match = _STRING.match(body, at) if first == b'"' else _SCALAR.match(body, at)
        if match is None:
            raise Undecodable(f"no value at byte {at}")
        return match.end()

    def _nested_end(self, body: bytes, at: int) -> int:
        depth = 0
        for match in _NESTING.finditer(body, at):
            if match[0] in (b"{", b"["):
                depth += 1
            elif match[0] in (b"}", b"]"):
                depth -= 1
                if depth == 0:
                    return match.end()
        raise Undecodable("the body ends inside a value")


def _skip_space(body: bytes, at: int) -> int:
    return _SPACE.match(body, at).end()  # type: ignore[union-attr]


def _text(quoted: bytes) -> str:
    try:
        return str(_PLAIN.decode(quoted))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return quoted[1:-1].decode("utf-8", "replace")


class Answer:
    """A decoded body. `strict` is false when msgspec refused it as a whole: then every record wants its own check."""

    def __init__(self, body: bytes) -> None:
        self.body = body.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
        self.strict = True
        self._reader: Reader = Strict()
        try:
            self._root = self._open()
        except Undecodable:
            if self.body[:1] not in (b"{", b"["):
                raise
            self.strict = False
            self._reader = Tolerant()
            self._root = self._open()

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

    def first(self, steps: Sequence[Step]) -> Slice | None:
        """The first value that the steps reach, or None."""
        return next(self._find(self.body, steps), None)

    def records(self, steps: Sequence[Step]) -> list[bytes] | None:
        """The records: items of the list that the path names, or what a path that ends in `[*]` or `.*` fans out to.
        None when nothing is there, or what is there is no list."""
        if steps and isinstance(steps[-1], Every):
            found = list(self._find(self.body, steps))
            return [bytes(r) for r in found] if found or self._container(steps) else None
        lists = list(self._find(self.body, steps))
        try:
            return [bytes(r) for part in lists for r in self._items(part)] if lists else None
        except TypeError:
            return None

    def lists(self) -> list[tuple[str, int]]:
        """Lists near the top of the answer and their lengths, for an error that helps: [("$.items", 50)]."""
        found: list[tuple[str, int]] = []
        self._lists(self.body, "$", 3, found)
        return found

    def _container(self, steps: Sequence[Step]) -> bool:
        """Whether the list or object that the last step fans out of exists (it may be empty)."""
        container = self.first(steps[:-1])
        kind = b"[" if steps[-1] is Every.ITEM else b"{"
        return container is not None and bytes(container).lstrip()[:1] == kind

    def _find(self, value: Slice, steps: Sequence[Step]) -> Iterator[Slice]:
        if not steps:
            yield value
            return
        step, rest = steps[0], steps[1:]
        try:
            if step is Every.ITEM:
                for item in self._items(value):
                    yield from self._find(item, rest)
            elif step is Every.VALUE:
                for item in self._members(value).values():
                    yield from self._find(item, rest)
            elif isinstance(step, int):
                items = self._items(value)
                if step < len(items):
                    yield from self._find(items[step], rest)
            else:
                members = self._members(value)
                if step in members:
                    yield from self._find(members[step], rest)
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


def scalar(value: Slice | None) -> str | None:
    """A JSON scalar as text: strings as they are, numbers as their raw digits, true and false; null and absent are None.

    Raises TypeError for an object or a list."""
    if value is None:
        return None
    raw = bytes(value)
    first = raw[:1]
    if first == b'"':
        return raw[1:-1].decode() if b"\\" not in raw else str(_PLAIN.decode(raw))
    if first in (b"{", b"["):
        raise TypeError
    return None if raw == b"null" else raw.decode()
