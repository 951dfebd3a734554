"""Takes an answer apart: where its records are, and the values that paging looks at.

Read by the strict reader as a whole, else by the tolerant one, so that one bad record is refused alone and its
neighbours stay. A body that even the scanner cannot follow raises Undecodable.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ingest.paths import Every, Step
from ingest.sources.slices import Reader, Slice, Strict, Tolerant, Undecodable

__all__ = ["Answer", "Slice", "Undecodable", "scalar"]

_VALUE = msgspec.json.Decoder(msgspec.Raw)
_PLAIN = msgspec.json.Decoder()


class Answer:
    """A decoded body. `strict` is false when msgspec refused it as a whole."""

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
