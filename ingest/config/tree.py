"""YAML text → a tree in which every value knows where it stands.

YAML 1.2, core schema: `yes` and `12:30` are text, a date is text, every key is text. What the tree costs is bounded by
MAX_NODES and MAX_DEPTH, however often the text repeats itself through aliases.
"""

import re
from dataclasses import dataclass, field, replace
from decimal import Decimal
from io import StringIO
from typing import Any, Self

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from ingest.config.problems import START, Position

MAX_NODES = 100_000
MAX_DEPTH = 32
MAX_NUMBER = 300  # characters; what is longer is text

Scalar = str | int | float | Decimal | bool | None
Path = tuple[str, ...]

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?\d+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Unreadable(Exception):
    """The text is no YAML, or more of it than a configuration needs."""

    def __init__(self, at: Position, message: str) -> None:
        super().__init__(message)
        self.at, self.message = at, message


@dataclass(frozen=True, slots=True)
class Node:
    value: "Scalar | list[Node] | dict[str, Node]"
    at: Position
    key_at: Position  # of its key; of itself where it has none
    text: str = ""  # of a scalar, as it is spelt in the file
    block: bool = False  # a mapping or list whose lines begin below its key

    @property
    def place(self) -> Position:
        """Where to point at: the value, or the key above it."""
        return self.key_at if self.block else self.at

    @property
    def mapping(self) -> "dict[str, Node] | None":
        return self.value if isinstance(self.value, dict) else None

    def having(self, value: "Scalar | list[Node] | dict[str, Node]") -> "Node":
        return replace(self, value=value)


@dataclass
class Builder:
    """Turns the nodes of the parser into ours, and keeps the mistakes that do not end the reading."""

    mistakes: list[tuple[Position, Path, str]] = field(default_factory=list)
    left: int = MAX_NODES

    @classmethod
    def read(cls, text: str) -> tuple[Self, Node | None]:
        """None: the text is empty. Raises Unreadable."""
        builder = cls()
        root = _compose(text)
        return builder, None if root is None else builder.node(root, None, ())

    def node(self, raw: Any, key_at: Position | None, path: Path) -> Node:
        at = _position(raw.start_mark)
        self.left -= 1
        if self.left < 0:
            raise Unreadable(at, f"more than {MAX_NODES:,} values, aliases counted as what they stand for")
        if len(path) > MAX_DEPTH:
            raise Unreadable(at, f"more than {MAX_DEPTH} levels deep, or an alias that contains itself")
        key_at = key_at or at
        if raw.id != "scalar" and str(raw.tag) not in (_TAG + "map", _TAG + "seq"):
            self.mistakes.append((at, path, f"tags ({raw.tag}) mean nothing here"))
        if raw.id == "mapping":
            return Node(self._mapping(raw, path), at, key_at, block=not raw.flow_style)
        if raw.id == "sequence":
            items = [self.node(item, None, (*path, str(n))) for n, item in enumerate(raw.value)]
            return Node(items, at, key_at, block=not raw.flow_style)
        value, known = _scalar(str(raw.tag), raw.value)
        if not known:
            self.mistakes.append((at, path, f"tags ({raw.tag}) mean nothing here"))
        if _SURROGATE.search(raw.value):
            self.mistakes.append((at, path, "half a surrogate pair is no character"))
            return Node("", at, key_at)
        return Node(value, at, key_at, raw.value)

    def _mapping(self, raw: Any, path: Path) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for raw_key, raw_value in raw.value:
            at = _position(raw_key.start_mark)
            key = raw_key.value
            if not isinstance(key, str) or _SURROGATE.search(key):
                self.mistakes.append((at, path, "a key must be text"))
            elif key == "<<" and raw_key.tag != _TAG + "str":
                self.mistakes.append(
                    (at, path, "`<<` is not part of YAML 1.2; what streams share stands in `defaults`")
                )
            elif key in found:
                first = found[key].key_at
                self.mistakes.append((at, (*path, key), f"`{key}` is here twice (first in line {first.line})"))
            else:
                found[key] = self.node(raw_value, at, (*path, key))
        return found


def _compose(text: str) -> Any:
    yaml = YAML(typ="rt", pure=True)
    yaml.composer.warn_double_anchors = False
    try:
        return yaml.compose(StringIO(text))
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        what = ", ".join(part for part in (exc.context, exc.problem) if part)
        hint = "; indent with spaces" if "'\\t'" in what else ""
        raise Unreadable(START if mark is None else _position(mark), f"no YAML: {what}{hint}") from exc
    except ReaderError as exc:
        before = text[: exc.position] if isinstance(exc.position, int) else ""
        at = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise Unreadable(at, "no YAML: a character that is not allowed in it") from exc
    except RecursionError as exc:
        raise Unreadable(START, f"more than {MAX_DEPTH} levels deep") from exc
    except YAMLError as exc:
        raise Unreadable(START, f"no YAML: {exc}") from exc


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _scalar(tag: str, text: str) -> tuple[Scalar, bool]:
    """The value of a scalar by the core schema of YAML 1.2, and whether its tag is one that is known here."""
    kind = tag.removeprefix(_TAG)
    if kind == "null":
        return None, True
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true", True
    if kind in ("int", "float") and len(text) <= MAX_NUMBER:
        if _INT.fullmatch(text):
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text), True
        if _FLOAT.fullmatch(text):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan")), True
    return text, kind in ("str", "int", "float", "bool", "timestamp", "value", "merge")
