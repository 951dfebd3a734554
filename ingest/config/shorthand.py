"""What a user may write shorter, written out: bare words, and what the streams of a source share under `defaults`.

Every value keeps the place where it was written. What is not understood is left as it is, for validation to refuse.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path

from ingest.config.tree import Node

_FRACTION = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
INCREMENTAL_TYPES = frozenset({"timestamp", "integer", "token", "keyset", "feed", "snapshot"})
INHERITED = ("timeout", "retry")  # parts of a source that a stream overrides key by key
SCHEDULE = frozenset({"every", "cron", "timezone", "dst", "jitter", "overlap", "catch_up", "catch_up_window",
                      "max_catch_up", "attempts"})  # fmt: skip


def expand(root: Node) -> Node:
    """The file without shorthands and without `defaults`."""
    root = _at(root, "log", _log)
    root = _at(root, "tasks", lambda tasks: _each(tasks, _timed))
    return _at(root, "sources", lambda sources: _each(sources, _source))


def beside(root: Node, folder: Path) -> Node:
    """Files that the configuration names stand beside it."""

    def stream(node: Node) -> Node:
        return _at(node, "schema", lambda schema: _at(schema, "file", lambda name: _within(folder, name)))

    def source(node: Node) -> Node:
        return _at(node, "streams", lambda streams: _each(streams, stream))

    return _at(root, "sources", lambda sources: _each(sources, source))


def _within(folder: Path, name: Node) -> Node:
    return name.having(str(folder / name.value)) if isinstance(name.value, str) and name.value else name


def _log(log: Node) -> Node:
    return log.having({"url": log}) if isinstance(log.value, str) else log


def _source(source: Node) -> Node:
    source = _verbatim(source)
    keys = source.mapping
    if keys is None or "streams" not in keys:
        return source
    defaults = keys.get("defaults")
    shared = _stream(defaults) if defaults is not None and defaults.mapping is not None else None
    inherited = {key: keys[key] for key in INHERITED if key in keys}

    def complete(stream: Node) -> Node:
        own = _timed(stream)
        own = _stream(own if own.mapping is None or shared is None else _merge(_beside(shared, own), own))
        for key, above in inherited.items():
            own = _at(own, key, partial(_merge, above))
        return own

    rest = {key: node for key, node in keys.items() if key != "defaults" or shared is None}
    return _at(source.having(dict(rest)), "streams", lambda streams: _each(streams, complete))


def _stream(stream: Node) -> Node:
    stream = _at(_verbatim(_timed(stream)), "paginate", _paginate)
    for key, alone in (("records", "path"), ("version", "path"), ("schema", "file")):
        stream = _at(stream, key, partial(_alone, alone))
    stream = _at(stream, "transform", _transform)
    stream = _at(stream, "parent", lambda node: node if node.mapping is not None else node.having({"stream": node}))
    stream = _at(stream, "incremental", _incremental)
    keys = stream.mapping
    if keys is not None and "incremental" in keys and keys["incremental"].value == "none":
        return stream.having({key: node for key, node in keys.items() if key != "incremental"})
    return stream


def _timed(node: Node) -> Node:
    """What stands below `every` stands beside it; the interval itself is called `interval` there."""
    keys = node.mapping
    below = None if keys is None or "every" not in keys else keys["every"].mapping
    if keys is None or below is None:
        return node
    rest = {key: child for key, child in keys.items() if key != "every"}
    lifted = {"every" if key == "interval" else key: child for key, child in below.items()}
    known = lifted.keys() <= SCHEDULE and "every" not in below and not lifted.keys() & rest.keys()
    return node.having(rest | lifted) if known else node


def _beside(shared: Node, own: Node) -> Node:
    """`defaults` for a stream that says when in its own way."""
    above = own.mapping or {}
    other = {"every": ("cron", "timezone", "dst"), "cron": ("every",)}
    hidden = {key for said, keys in other.items() if said in above for key in keys}
    return shared.having({key: node for key, node in (shared.mapping or {}).items() if key not in hidden})


def _alone(key: str, node: Node) -> Node:
    return node if node.mapping is not None else node.having({key: node})


def _transform(node: Node) -> Node:
    if not isinstance(node.value, list):
        return node
    return node.having([_at(step, "add", lambda add: _each(add, _exact)) for step in node.value])


def _exact(node: Node) -> Node:
    """A fraction with the digits that it has in the file."""
    return node.having(Decimal(node.text)) if isinstance(node.value, float) and _FRACTION.fullmatch(node.text) else node


def _paginate(node: Node) -> Node:
    if isinstance(node.value, str):
        return node.having({"type": node})
    return _at(node, "first", _as_text)


def _incremental(node: Node) -> Node:
    if isinstance(node.value, str) and node.value != "none":
        if node.value in INCREMENTAL_TYPES:
            return node.having({"type": node})
        return node.having({"type": node.having("timestamp"), "field": node})
    return _at(node, "since", lambda since: _at(since, "first", _as_sent))


def _verbatim(node: Node) -> Node:
    """Headers, parameters and fields of forms are sent as they are spelt: 1.10 stays 1.10."""
    node = _at(node, "headers", lambda headers: _each(headers, _as_text))
    for key in ("params", "form"):
        node = _at(node, key, _sent)
    node = _at(node, "errors", _rules)
    return _at(node, "auth", lambda auth: _at(auth, "oauth2", lambda oauth2: _at(oauth2, "params", _sent)))


def _rules(node: Node) -> Node:
    def of_headers(rule: Node) -> Node:
        return _at(rule, "when", lambda when: _at(when, "header", lambda header: _each(header, _as_text)))

    return node.having([of_headers(rule) for rule in node.value]) if isinstance(node.value, list) else node


def _sent(params: Node) -> Node:
    return _each(params, _as_sent)


def _as_text(node: Node) -> Node:
    return node.having(node.text) if isinstance(node.value, bool | int | float) else node


def _as_sent(node: Node) -> Node:
    if isinstance(node.value, list):
        return node.having([_as_sent(item) for item in node.value])
    spelt_otherwise = isinstance(node.value, int) and not isinstance(node.value, bool) and str(node.value) != node.text
    return node.having(node.text) if isinstance(node.value, float) or spelt_otherwise else node


def _merge(under: Node, over: Node, key: str = "") -> Node:
    """Mappings deeply; lists and scalars, another `type` and another kind of `auth` replace what is under them."""
    below, above = under.mapping, over.mapping
    if below is None or above is None:
        return over
    if "type" in above and "type" in below and above["type"].value != below["type"].value:
        return over
    if key == "auth" and (ways := set(above) - {"probe"}) and not ways & set(below):
        return over
    merged: Mapping[str, Node] = {
        name: _merge(below[name], node, name) if name in below else node for name, node in above.items()
    }
    return over.having({**below, **merged})


def _at(node: Node, key: str, change: Callable[[Node], Node]) -> Node:
    keys = node.mapping
    return node if keys is None or key not in keys else node.having({**keys, key: change(keys[key])})


def _each(node: Node, change: Callable[[Node], Node]) -> Node:
    keys = node.mapping
    return node if keys is None else node.having({name: change(child) for name, child in keys.items()})
