"""What the language of the configuration has and this version has not: refused by name, never ignored.

A key leaves this table when it enters the model.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_KEYS: Mapping[str, str] = {
    "": "include serve webhooks",
    "consumers.*": "by call current every format on path roll sign template url where",
}
_VALUES: Mapping[str, str] = {
    "consumers.*.kind": "analytics archive notify python",
}

NOT_BUILT = frozenset(f"{place}.{key}".lstrip(".") for place, keys in _KEYS.items() for key in keys.split())
"""Keys, as dotted patterns; `*` stands for a name that the user chose."""

NOT_BUILT_VALUES = {key: frozenset(values.split()) for key, values in _VALUES.items()}
"""Values of keys that are known."""

_NAMED = (("sources",), ("sources", "*", "streams"), ("consumers",), ("topics", "overrides"), ("tasks",))
_FREE = ("headers", "params", "args")  # mappings whose keys belong to an API, or to a task


def pattern(path: tuple[str, ...]) -> str:
    """The path with `*` for every name that the user chose."""
    generic: tuple[str, ...] = ()
    for step in path:
        generic += ("*",) if generic in _NAMED or generic[-1:] in [(free,) for free in _FREE] else (step,)
    return ".".join(generic)


def refuse(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool, str]]:
    """Takes what is not built out of the tree: yields the path, whether the key is meant (else its value), the message.

    Where the kind of a part is not built (`type: keyset`), the part goes as a whole.
    """
    if isinstance(tree, list):
        for n, item in enumerate(tree):
            yield from refuse(item, (*path, str(n)))
    if not isinstance(tree, dict):
        return
    for key, value in list(tree.items()):
        here = (*path, key)
        if pattern(here) in NOT_BUILT:
            yield here, True, f"`{key}` is not supported by this version"
            del tree[key]
            continue
        if isinstance(value, dict) and (kind := _kind(value, here)) is not None:
            name, word = kind
            yield (*here, name), False, f"`{name}: {word}` is not supported by this version"
            del tree[key]
            continue
        yield from refuse(value, here)


def _kind(part: Mapping[str, object], path: tuple[str, ...]) -> tuple[str, str] | None:
    for name in ("type", "kind"):
        word = part.get(name)
        if isinstance(word, str) and word in NOT_BUILT_VALUES.get(pattern((*path, name)), ()):
            return name, word
    return None
