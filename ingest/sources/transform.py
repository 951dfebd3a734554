"""Changes records between the API and the log: the steps of `transform`, in their order.

What identifies a record is read before, from the record as the API sent it, and after `explode` from each part. A step
changes what it names; every other value keeps its bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from ingest.config.records import Transform as Step
from ingest.errors import BadRecord
from ingest.paths import JsonPath
from ingest.sources.answers import Answer, Place
from ingest.sources.casting import CASTS
from ingest.sources.document import Document
from ingest.sources.expression import predicate
from ingest.sources.slices import Undecodable

NOWHERE = Place(())

Change = Callable[[Document], bool]
"""One step; false: the record is left out. Raises BadRecord."""


class Made(NamedTuple):
    """What became of a record, or of a part of one."""

    source: bytes | None  # where its fields are read; None: nowhere
    place: Place
    suffix: str  # of its id
    value: bytes | BadRecord | None  # what is published; None: it is left out
    unknown: bool = False  # it is a whole, and nobody can say which parts it has


class Transform:
    """The steps of one stream."""

    def __init__(self, steps: Sequence[Step]) -> None:
        at = next((n for n, step in enumerate(steps) if step.explode is not None), len(steps))
        self._whole = [_change(step) for step in steps[:at]]
        self._explode = steps[at].explode if at < len(steps) else None
        self._parts = [_change(step) for step in steps[at + 1 :]]

    def made(self, record: bytes, place: Place = NOWHERE) -> list[Made]:
        """One for each part of it; one that is left out where it has none."""
        if record[:1] != b"{":
            return [Made(record, place, "", record)]  # no object, as will be found out
        document = Document(record)
        wanted = True
        try:
            for change in self._whole:
                wanted = change(document) and wanted
                if not wanted and self._explode is None:
                    break
            if self._explode is None:
                return [Made(record, place, "", document.text if wanted else None)]
            parts = Answer(document.text).records(self._explode.steps, may_be_absent=True)
            if parts is None:
                raise _bad(f"`explode`: `{self._explode}` is no list", "not_a_list")
        except BadRecord as exc:
            value = exc if wanted else None
            return [Made(record, place, "", value) if self._explode is None else Made(None, place, "", value, True)]
        inside = Place((record, *place.above))
        made = [Made(part, inside, f"#{n}", self._part(part) if wanted else None) for n, part in enumerate(parts)]
        return made or [Made(None, place, "", None)]

    def _part(self, part: bytes) -> bytes | BadRecord | None:
        document = Document(part)
        try:
            return document.text if all(change(document) for change in self._parts) else None
        except BadRecord as exc:
            return exc
        except TypeError:
            return BadRecord("the part is no object", stage="transform", code="not_object")


def _change(step: Step) -> Change:
    if step.filter is not None:
        return _filter(step.filter)
    acts = list(_acts(step))

    def change(document: Document) -> bool:
        for act in acts:
            act(document)
        return True

    return change


def _acts(step: Step) -> Iterator[Callable[[Document], None]]:
    for path in step.drop:
        yield _each(path, _drop)
    for path, name in step.rename.items():
        yield _each(path, _renamer(name))
    for path, kind in step.cast.items():
        yield _each(path, _caster(path, kind))
    for path, value in step.add.items():
        yield _adder(path, msgspec.Raw(json_text(value)))


def _each(path: JsonPath, act: Callable[[Any, str | int], None]) -> Callable[[Document], None]:
    return lambda document: document.each(path.steps, act)


def _drop(container: Any, key: str | int) -> None:
    del container[key]


def _renamer(name: str) -> Callable[[Any, str | int], None]:
    """The member keeps its place, and takes that of another one of its new name."""

    def rename(members: Any, old: str | int) -> None:
        kept = [(name if key == old else key, value) for key, value in members.items() if key == old or key != name]
        members.clear()
        members.update(kept)

    return rename


def _caster(path: JsonPath, kind: str) -> Callable[[Any, str | int], None]:
    cast = CASTS[kind]

    def change(container: Any, key: str | int) -> None:
        part = container[key]
        value = bytes(part) if isinstance(part, msgspec.Raw) else msgspec.json.encode(part)
        if value == b"null":
            return
        try:
            container[key] = msgspec.Raw(cast(value))
        except (ValueError, TypeError, KeyError, ArithmeticError, Undecodable):
            shown = value[:40].decode(errors="replace")
            raise _bad(f"cannot cast `{path}` to {kind}: {shown}", "bad_cast") from None

    return change


def _adder(path: JsonPath, value: msgspec.Raw) -> Callable[[Document], None]:
    """Writes the value, and the objects on the way to it."""
    names = [str(step) for step in path.steps]

    def add(document: Document) -> None:
        members = document.root
        for name in names[:-1]:
            part = document.opened(members.get(name, {}))
            if not isinstance(part, dict):
                raise _bad(f"cannot add `{path}`: `{name}` is no object", "bad_add")
            members[name] = part
            members = part
        members[names[-1]] = value

    return add


def _filter(expression: str) -> Change:
    passes = predicate(expression, "filter", "transform")
    return lambda document: passes(document.text)


def json_text(value: str | int | float | Decimal | bool | None) -> bytes:
    return str(value).encode() if isinstance(value, Decimal) else msgspec.json.encode(value)


def _bad(message: str, code: str) -> BadRecord:
    return BadRecord(message, stage="transform", code=code)
