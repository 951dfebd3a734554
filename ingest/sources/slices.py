"""Cuts JSON into its parts without touching a byte of them.

Two readers give the same slices: msgspec, fast and strict, and behind it a tolerant scanner for pages where one record
holds what JSON forbids (NaN, a raw control character) or what msgspec refuses (a lone surrogate).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
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
        except RecursionError as exc:
            raise Undecodable("nested too deeply") from exc

    def items(self, value: Slice) -> Sequence[Slice]:
        try:
            return _ARRAY.decode(value)
        except msgspec.ValidationError as exc:
            raise TypeError from exc
        except msgspec.DecodeError as exc:
            raise Undecodable(str(exc)) from exc
        except RecursionError as exc:
            raise Undecodable("nested too deeply") from exc


_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\[\]{}\":]+")
_NESTING = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)  # a quote alone: a string without an end

_ESCAPE = re.compile(
    rb"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class Tolerant:
    """Knows only strings, brackets and commas. What stands between them is for someone else to judge."""

    def members(self, value: Slice) -> dict[str, Slice]:
        return {name: part[at:].strip(b" \t\r\n") for name, part, at in self.pieces(value)}

    def pieces(self, value: Slice) -> Iterator[tuple[str, bytes, int]]:
        """Every member of an object, those of one name too: its name, its text, and where in that its value begins."""
        body = bytes(value)
        for start, end in self._parts(body, b"{", b"}"):
            part = body[start:end]
            name = _STRING.match(part)
            colon = _SPACE.match(part, name.end()).end() if name else 0  # type: ignore[union-attr]
            if name is None or part[colon : colon + 1] != b":":
                raise Undecodable(f"no member of an object at byte {start}")
            yield _text(name[0]), part, colon + 1

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
            elif match[0] == b'"':
                break
        raise Undecodable("the body ends inside a value")


def _skip_space(body: bytes, at: int) -> int:
    return _SPACE.match(body, at).end()  # type: ignore[union-attr]


def _text(quoted: bytes) -> str:
    try:
        return str(_PLAIN.decode(quoted))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return quoted[1:-1].decode("utf-8", "replace")


def without_halves(value: bytes) -> bytes:
    """A copy in which each half of a surrogate pair is the text of its escape: for readers that take none."""
    return _ESCAPE.sub(lambda match: match[0] if match["half"] is None else b"\\" + match[0], value)


def built(decoder: "msgspec.json.Decoder[Any]", value: bytes) -> Any:
    """What the decoder makes of it, halves of surrogate pairs as the text of their escapes. Raises ValueError."""
    try:
        return decoder.decode(value)
    except msgspec.DecodeError:
        return decoder.decode(without_halves(value))
