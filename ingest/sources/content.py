"""The body that a request is sent with: JSON, a form, or a GraphQL query with its variables."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ingest.config import placeholders
from ingest.config.model import Stream
from ingest.paths import Step
from ingest.sources.auth import encoded
from ingest.sources.filling import Values, filled_tree
from ingest.sources.parameters import filled_params, listed, texts
from ingest.sources.placement import Put, Value, as_text

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class Content:
    """The bodies of one stream. `kind`: its content type; None: it has none."""

    def __init__(self, stream: Stream) -> None:
        self._form = None if stream.form is None else texts(stream.form)
        self._style = stream.list_style
        self._tree: Any = stream.json_
        if stream.graphql is not None:
            self._tree = {"query": stream.graphql.query, "variables": stream.graphql.variables}
        placed = any(part.places == ["body"] for _, part in stream.placed())
        self.kind = FORM if self._form is not None else JSON if placed or self._tree is not None else None
        self._same = None if any(placeholders.found(self._form or self._tree)) else self._encoded({}, ())

    def body(self, values: Values, puts: Sequence[Put]) -> bytes | None:
        if self.kind is None:
            return None
        puts = [put for put in puts if put.where.body]
        return self._encoded(values, puts) if puts or self._same is None else self._same

    def _encoded(self, values: Values, puts: Sequence[Put]) -> bytes | None:
        if self._form is not None:
            fields = filled_params(self._form, values)
            fields |= {str(put.where.body[0]): as_text(put.value) for put in puts}
            return encoded(list(listed(fields, self._style).items())).encode()
        if self.kind is None:
            return None
        tree = filled_tree(self._tree, values)
        for put in puts:
            tree = _having(tree, put.where.body, put.value)
        return None if tree is None else msgspec.json.encode(tree)


def _having(node: object, steps: Sequence[Step], value: Value) -> object:
    """The node with the value where the steps lead; what is missing on the way, or is something else, is made."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        items = list(node) if isinstance(node, list) else []
        items += [None] * (step + 1 - len(items))
        items[step] = _having(items[step], rest, value)
        return items
    members = dict(node) if isinstance(node, Mapping) else {}
    members[str(step)] = _having(members.get(str(step)), rest, value)
    return members
