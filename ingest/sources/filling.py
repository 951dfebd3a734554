"""Fills placeholders with values, each encoded for where it stands; what was put in is never expanded again."""

import re
from collections.abc import Callable, Mapping
from urllib.parse import quote

from ingest.config.placeholders import Pattern
from ingest.errors import SourceChanged
from ingest.redaction import shown_whole
from ingest.sources.placement import Value, as_text

Values = Mapping[str, Value | None]
"""The name of a placeholder (parent.id, window.start, cursor) → what it stands for; None or absent: nothing yet."""

NO_VALUES: Values = {}

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def filled(text: str, values: Values, encode: Callable[[str], str] = str) -> str | None:
    """The text with its placeholders filled; None: one of them has no value yet.

    Raises SourceChanged where a parent's record lacks what is asked for: a request without it would list something
    else."""
    if not isinstance(text, Pattern):
        return text
    parts = list(text.parts)
    for n in range(1, len(parts), 2):
        value = value_of(parts[n], values)
        if value is None:
            return None
        parts[n] = encode(as_text(value))
    return "".join(parts)


def value_of(name: str, values: Values) -> Value | None:
    value = values.get(name)
    if value is None and name.startswith("job."):
        raise SourceChanged(f"the answer about the job has no `{name.removeprefix('job.')}` to fill `{{{name}}}` with")
    if value is None and name.startswith("parent."):
        raise SourceChanged(f"the parent's record has no `{name.removeprefix('parent.')}` to fill `{{{name}}}` with")
    return value


def filled_tree(node: object, values: Values) -> object:
    """A copy of what a body holds. A text that is nothing but a placeholder becomes the value itself, so that a number
    stays one; a member without a value yet is left out."""
    if isinstance(node, Pattern):
        if node.parts[0] == node.parts[-1] == "" and len(node.parts) == 3:
            return value_of(node.parts[1], values)
        return filled(node, values)
    if isinstance(node, Mapping):
        return {key: value for key, inner in node.items() if not _missing(inner, value := filled_tree(inner, values))}
    if isinstance(node, list | tuple):
        return [value for inner in node if not _missing(inner, value := filled_tree(inner, values))]
    return node


def _missing(node: object, value: object) -> bool:
    return value is None and isinstance(node, Pattern)


def percent(text: str) -> str:
    """Everything but unreserved characters is percent-encoded (RFC 3986)."""
    return quote(text, safe="")


def path_segment(text: str) -> str:
    """Raises SourceChanged for what would make another path of it."""
    if text in ("", ".", ".."):
        raise SourceChanged(f"{text!r} cannot be a part of a path")
    return percent(text)


def header_value(name: str, text: str) -> str:
    """Raises SourceChanged for what would end the header."""
    if _CONTROL.search(text):
        shown = shown_whole(text, 40)
        raise SourceChanged(f"{shown} cannot be sent as the header `{name}`: it holds a control character")
    return text
