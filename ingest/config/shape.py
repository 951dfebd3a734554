"""The shape of the model: which part stands where, and which keys it knows."""

from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from ingest.config.model import Config
from ingest.config.part import Part

DEFAULTS = ("sources", "*", "defaults")  # the one key that the loader takes away before the model sees it


class Found(NamedTuple):
    path: tuple[str, ...]  # as in the file
    owner: type[Part] | None  # the part that holds the last key
    on_key: bool  # the key itself is wrong, not its value
    part: type[Part] | None = None  # the only part that its value may be


def locate(loc: Iterable[str | int]) -> Found:
    """Where pydantic's `loc` leads: without the tags of unions, which are not in the file."""
    path: tuple[str, ...] = ()
    kind: Any = Config
    owner: type[Part] | None = None
    on_key = False
    for step in loc:
        parts = parts_of(kind)
        if step == "[key]":
            on_key = True
        elif len(parts) > 1:
            kind = next((part for part in parts if step in tags(part)), None)
        else:
            path += (str(step),)
            owner = parts[0] if parts else None
            kind = _inside(kind, owner, str(step))
    parts = parts_of(kind)
    return Found(path, owner, on_key, parts[0] if len(parts) == 1 else None)


def parts_of(kind: Any) -> list[type[Part]]:
    """The parts that a value of this type may be."""
    if isinstance(kind, type) and issubclass(kind, Part):
        return [kind]
    if get_origin(kind) in (Union, UnionType, Annotated):
        return [part for option in get_args(kind) for part in parts_of(option)]
    return []


def keys(part: type[Part]) -> dict[str, Any]:
    """Key in the file → its type."""
    return {field.alias or name: field.annotation for name, field in part.model_fields.items()}


def tags(part: type[Part]) -> tuple[str, ...]:
    """What `type` may say for this part."""
    return words(keys(part).get("type"))


def words(kind: Any) -> tuple[str, ...]:
    """The words that a type consists of, if it does."""
    return tuple(str(word) for word in get_args(kind)) if get_origin(kind) is Literal else ()


def every_key(part: type[Part] = Config, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of the model, `*` for names that the user chooses."""
    for key, kind in keys(part).items():
        yield (*path, key)
        below = (*path, key)
        for option in _options(kind):
            for inner in parts_of(_inside(option, None, "*") if _is_mapping(option) else option):
                yield from every_key(inner, (*below, "*") if _is_mapping(option) else below)


def _options(kind: Any) -> Iterable[Any]:
    if get_origin(kind) in (Union, UnionType):
        return get_args(kind)
    return (kind,)


def _inside(kind: Any, owner: type[Part] | None, step: str) -> Any:
    if owner is not None:
        return keys(owner).get(step)
    for option in _options(kind):
        if _is_mapping(option):
            return get_args(option)[1]
        if get_origin(option) is tuple:
            return get_args(option)[0]
    return None


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)
