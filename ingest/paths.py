"""Paths into a JSON answer: `a.b`, `$.a.b`, `a[0]`, `$.a[*]`, `a.*`, `["a:b"]`, `header.NAME`, `last.FIELD`, `^.a`,
`parent.FIELD`.

A path is parsed once, at load, into steps. Evaluation never raises: what is not there is ABSENT.
"""

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

_STEP = re.compile(
    r"""\.?(?:
        (?P<name>[^.\[\]"'\s*^]+)              # a
      | (?P<star>\*)                           # a.*
      | \[(?P<index>\d+)\]                     # [0]
      | \[(?P<all>\*)\]                        # [*]
      | \["(?P<quoted>(?:[^"\\]|\\.)*)"\]      # ["a:b"]
    )""",
    re.VERBOSE,
)
_ABOVE = re.compile(r"(?:\^\.)+")


class _Absent(Enum):
    ABSENT = "absent"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent.ABSENT


class Every(Enum):
    """Fans out: over the items of a list, or over the values of an object."""

    ITEM = "[*]"
    VALUE = ".*"


Step = str | int | Every


class Root(Enum):
    BODY = "body"  # the decoded answer, or the record
    HEADER = "header"  # header.NAME
    COOKIE = "cookie"  # cookie.NAME
    LAST = "last"  # last.FIELD: the last record of the page
    OUTER = "outer"  # ^.a: the object around the list of records, ^.^.a the one around that
    NAME = "name"  # ^~: the name under which a record stands
    PARENT = "parent"  # parent.FIELD: of the record whose children are listed


class JsonPath(NamedTuple):
    text: str
    root: Root
    steps: tuple[Step, ...]
    up: int = 0  # of OUTER: how many objects above

    def __str__(self) -> str:
        return self.text

    @property
    def plain(self) -> tuple[str, ...] | None:
        """The names, where the path is nothing but names; else None."""
        return (
            tuple(s for s in self.steps if isinstance(s, str)) if all(isinstance(s, str) for s in self.steps) else None
        )


def parse(text: str, *, roots: Sequence[Root] = (Root.BODY,)) -> JsonPath:
    """Raises ValueError with what is wrong. `roots`: which prefixes mean something here; others are plain names."""
    rest, root, up = text.strip(), Root.BODY, 0
    if rest == "$" or rest.startswith(("$.", "$[")):
        rest = rest[1:]
    elif Root.HEADER in roots and rest.startswith("header."):
        return JsonPath(text, Root.HEADER, (rest[len("header.") :],))
    elif Root.COOKIE in roots and rest.startswith("cookie."):
        return JsonPath(text, Root.COOKIE, (rest[len("cookie.") :],))
    elif Root.LAST in roots and rest.startswith("last."):
        rest, root = rest[len("last.") :], Root.LAST
    elif Root.PARENT in roots and rest.startswith("parent."):
        rest, root = rest[len("parent.") :], Root.PARENT
    elif Root.OUTER in roots and (above := _ABOVE.match(rest)):
        rest, root, up = rest[above.end() :], Root.OUTER, above.end() // len("^.")
    elif Root.NAME in roots and rest == "^~":
        return JsonPath(text, Root.NAME, ())
    if (not rest and root is not Root.BODY) or not text.strip():
        raise ValueError("an empty path")
    steps: list[Step] = []
    at = 0
    while at < len(rest):
        match = _STEP.match(rest, at)
        if match is None or match.end() == at:
            raise ValueError(f"cannot read the path {text!r} at {rest[at:]!r}")
        steps.append(_step(match))
        at = match.end()
    return JsonPath(text, root, tuple(steps), up)


def _step(match: "re.Match[str]") -> Step:
    if match["name"] is not None:
        return match["name"]
    if match["index"] is not None:
        return int(match["index"])
    if match["quoted"] is not None:
        return re.sub(r"\\(.)", r"\1", match["quoted"])
    return Every.ITEM if match["all"] else Every.VALUE


def find(value: object, steps: Sequence[Step]) -> Iterator[object]:
    """Every value that the steps reach, in document order."""
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    if step is Every.ITEM:
        for item in value if isinstance(value, list) else ():
            yield from find(item, rest)
    elif step is Every.VALUE:
        for item in value.values() if isinstance(value, dict) else ():
            yield from find(item, rest)
    elif isinstance(step, int):
        if isinstance(value, list) and step < len(value):
            yield from find(value[step], rest)
    elif isinstance(value, dict) and step in value:
        yield from find(value[step], rest)


def keys(value: object, step: Step) -> Sequence[str | int]:
    """Names or positions that the step means in an object or a list, positions from the end: so that they can go."""
    if isinstance(value, dict):
        return list(value) if step is Every.VALUE else [step] if isinstance(step, str) and step in value else []
    if isinstance(value, list):
        every = range(len(value) - 1, -1, -1)
        return every if step is Every.ITEM else [step] if isinstance(step, int) and step < len(value) else []
    return []


def first(value: object, steps: Sequence[Step]) -> object:
    """The first value that the steps reach, or ABSENT."""
    return next(find(value, steps), ABSENT)
