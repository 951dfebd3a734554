"""What pydantic found, in the words of someone who edits a file."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic_core import ErrorDetails

from ingest.config.part import Mistakes
from ingest.config.shape import DEFAULTS, Found, keys, locate
from ingest.config.values import shown

KEYS_SHOWN = 12


class Finding(NamedTuple):
    """A mistake at a path of the file; one that is not in the file is shown where the part around it stands."""

    path: tuple[str, ...]
    on_key: bool
    message: str


def findings(errors: Iterable[ErrorDetails]) -> Iterator[Finding]:
    for error in errors:
        if error["type"] == "too_short" and error["input"]:
            continue  # pydantic counts only the items that are right
        found = locate(error["loc"])
        context = error.get("ctx", {})
        cause = context.get("error")
        if isinstance(cause, Mistakes):
            for key, message in cause.found:
                path = (*found.path, *key.split(".")) if key else found.path
                yield Finding(path, False, _named(path, message))
        elif error["type"] == "extra_forbidden":
            yield Finding(found.path, True, unknown_key(found))
        elif error["type"] in ("union_tag_invalid", "union_tag_not_found", "missing"):
            yield _of_a_part(error["type"], found, context)
        else:
            message = _named(found.path, _message(error, context))
            yield Finding(found.path, found.on_key, message + _keys(error["type"], found))


def _named(path: tuple[str, ...], message: str) -> str:
    """With the key as its subject, where the message has none."""
    key = next((step for step in reversed(path) if not step.isdigit()), "")
    return f"`{key}` {message}" if key and message.startswith(("must ", "holds ", "is ")) else message


def unknown_key(found: Found) -> str:
    key = found.path[-1]
    known = list(keys(found.owner)) if found.owner is not None else []
    if len(found.path) == 3 and found.path[0] == DEFAULTS[0]:
        known.append(DEFAULTS[-1])
        if key == DEFAULTS[-1]:
            return "`defaults` must be a mapping: what the streams of this source share"
    return f"unknown key `{key}`{suggestion(key, known)}"


def suggestion(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f", did you mean `{close[0]}`?"
    return f"; known here: {', '.join(known)}" if known else ""


def _keys(kind: str, found: Found) -> str:
    """What a part could hold, where something else stands in its place."""
    if kind not in ("model_type", "model_attributes_type") or found.part is None:
        return ""
    known = list(keys(found.part))
    return f"; its keys: {', '.join(known)}" if len(known) <= KEYS_SHOWN else ""


def _of_a_part(kind: str, found: Found, context: Mapping[str, Any]) -> Finding:
    if kind == "missing":
        return Finding(found.path, False, f"`{found.path[-1]}` is missing")
    words = [word.strip("' ") for word in context.get("expected_tags", "").split(",")]
    if kind == "union_tag_not_found" or not words:
        return Finding(found.path, False, "`type` is missing, or write the type alone: `paginate: link`")
    return Finding((*found.path, "type"), False, _one_of(str(context.get("tag", "")), words))


def _one_of(word: str, words: list[str]) -> str:
    as_written = {known.lower(): known for known in words}
    close = difflib.get_close_matches(word.lower(), as_written, n=1, cutoff=0.6)
    meant = f", did you mean `{as_written[close[0]]}`?" if close else ""
    if len(words) == 1:
        return f"must be `{words[0]}`"
    return f"`{word[:60]}` is not one of {', '.join(words)}{meant}"


def _message(error: ErrorDetails, context: Mapping[str, Any]) -> str:
    value, kind = error["input"], error["type"]
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        words = [word.strip("' ") for word in str(context["expected"]).replace(" or ", ",").split(",")]
        return (
            _one_of(str(value), words)
            if isinstance(value, str) or len(words) == 1
            else f"must be one of {', '.join(words)}"
        )
    plain = _PLAIN.get(kind)
    return plain(value, context) if plain is not None else error["msg"]


def _text(value: object, _: Mapping[str, Any]) -> str:
    return (
        'must be text; write it in quotes: "…"'
        if isinstance(value, bool | int | float)
        else f"must be text, not {shown(value)}"
    )


def _mapping(value: object, _: Mapping[str, Any]) -> str:
    if value is None:
        return "is empty; it must be a mapping (key: value)"
    return f"must be a mapping (key: value), not {_kind(value)}"


def _list(value: object, _: Mapping[str, Any]) -> str:
    return "must be a list: […]" if value is None else f"must be a list, not {_kind(value)}: write […]"


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "text" if isinstance(value, str) else "one value"


def _name(*_: object) -> str:
    return "a name has lower-case letters, digits, `_` and `-`, and begins with a letter or a digit"


def _whole(value: object, _: Mapping[str, Any]) -> str:
    carries = isinstance(value, str) and "${" in value
    return "a number carries no reference" if carries else f"must be a whole number, not {shown(value)}"


def _flag(value: object, _: Mapping[str, Any]) -> str:
    return f"must be true or false, not {shown(value)}"


_PLAIN: Mapping[str, Callable[[object, Mapping[str, Any]], str]] = {
    "string_type": _text,
    "model_type": _mapping,
    "model_attributes_type": _mapping,
    "mapping_type": _mapping,
    "dict_type": _mapping,
    "list_type": _list,
    "tuple_type": _list,
    "frozen_set_type": _list,
    "int_type": _whole,
    "int_from_float": _whole,
    "bool_type": _flag,
    "string_pattern_mismatch": _name,
    "string_too_long": lambda _, context: f"longer than {context['max_length']} characters",
    "too_short": lambda *_: "must not be empty",
    "greater_than_equal": lambda _, context: f"must be at least {context['ge']}",
    "less_than_equal": lambda _, context: f"must be at most {context['le']}",
}
