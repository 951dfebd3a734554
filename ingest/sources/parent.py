"""A record of another stream, as far as the listing of its children needs it."""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from ingest.errors import SourceChanged
from ingest.paths import JsonPath, parse
from ingest.sources import SourceRecord
from ingest.sources.answers import Answer, Undecodable, scalar
from ingest.sources.filling import NO_VALUES, Values
from ingest.sources.identity import joined
from ingest.sources.placement import Value

MARK = "#"  # begins the names of partitions that are no parent's


class Parent(NamedTuple):
    """`partition`: the name under which its cursor is saved."""

    id: str = ""  # what the ids of its children begin with
    partition: str = ""
    values: Values = NO_VALUES  # what fills {parent.FIELD}
    record: bytes | None = None


NO_PARENT = Parent()


class Parents:
    """Reads the records of a stream as parents. `names`: the placeholders that they fill.

    `joined_ids`: their ids consist of several parts already."""

    def __init__(self, names: Collection[str], *, joined_ids: bool) -> None:
        self._paths = {name: parse(name.removeprefix("parent.")) for name in names if name.startswith("parent.")}
        self._joined_ids = joined_ids

    def of(self, record: SourceRecord) -> Parent:
        """Raises SourceChanged where it cannot fill a request."""
        own = record.id if self._joined_ids or record.id.startswith("~~") else joined([record.id])
        answer = Answer(record.value)
        values = {name: _value(answer, path, record.id) for name, path in self._paths.items()}
        return Parent(own, partition(record.id), values, record.value)


def partition(id: str) -> str:
    """One that begins like the others is written so that it cannot be one of them."""
    return MARK + id if id.startswith(MARK) else id


def _value(answer: Answer, path: JsonPath, id: str) -> Value:
    """As it is written in JSON, text as text."""
    found = answer.first(path.steps)
    try:
        text = scalar(found)
    except TypeError:
        raise SourceChanged(f"`{path}` of the parent {id} is an object or a list; a request takes a value") from None
    except (Undecodable, UnicodeDecodeError) as exc:
        raise SourceChanged(f"`{path}` of the parent {id} cannot be read: {exc}") from exc
    if found is None or text is None:
        raise SourceChanged(f"the parent {id} has no `{path}` to fill `{{parent.{path}}}` with")
    return text if bytes(found)[:1] == b'"' else msgspec.Raw(text.encode())
