"""What becomes of the bytes of an answer on their way to a record."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from ingest.config.part import Mistake, Part
from ingest.config.rules import Expression
from ingest.config.values import (
    Constant,
    FieldPath,
    ListPath,
    MemberPath,
    NewName,
    OuterPath,
    Paths,
    SchemaFile,
    VersionPath,
)


class Records(Part):
    """Where the records stand in an answer."""

    path: ListPath
    """The list: $.data, or $ where the answer is the list; $.pages.* for the values of an object."""
    absent: Literal["fail", "empty"] = "fail"
    """What an answer means that has no list there, or null: the run fails, or there are no records."""
    keep: Mapping[str, OuterPath] = Field({})
    """What is written into every record from around it, by name: ^.NAME, ^~, header.NAME, parent.FIELD."""


class Version(Part):
    """What tells two states of a record apart, beside its id."""

    path: VersionPath = None
    """The API's own word for it, or none: records never change."""
    hash: Paths = ()
    """The parts that count: their hash is the version."""
    except_: Paths = Field((), alias="except")
    """The parts that do not count: the hash of all the others is the version."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.path is not None and (self.hash or self.except_):
            yield "hash" if self.hash else "except", "a version is either a path or a hash"
        for n, path in enumerate(self.except_):
            if not path.steps:
                yield f"except.{n}", "is the whole record: nothing would be left"


class Transform(Part):
    """One step: exactly one of them."""

    drop: Paths = ()
    """Takes fields out."""
    rename: Mapping[MemberPath, NewName] = Field({})
    """Gives fields another name, in the object where they stand."""
    cast: Mapping[FieldPath, Literal["text", "integer", "decimal", "boolean"]] = Field({})
    """Writes values as another type; no digit is lost."""
    add: Mapping[MemberPath, Constant] = Field({})
    """Writes values of our own; the objects on the way are made."""
    filter: Expression | None = None
    """Keeps the records for which the expression (JMESPath) is true."""
    explode: ListPath | None = None
    """Makes a record of each item of a list."""

    def mistakes(self) -> Iterable[Mistake]:
        if len(self.model_fields_set) != 1:
            yield "", f"name exactly one of {', '.join(type(self).model_fields)}"
        for n, path in enumerate(self.drop):
            if not path.steps:
                yield f"drop.{n}", "is the whole record; write a `filter`"
        for path in self.add:
            if not all(isinstance(step, str) for step in path.steps):
                yield "add", f"`{path}` is no single place in objects; write a.b"


class Decode(Part):
    """What becomes of a record that JSON forbids, or that its readers disagree on."""

    nan: Literal["as_null", "as_text", "fail"] = "as_null"
    """NaN and Infinity, which are no JSON: null in their place, their text, or the run fails."""
    invalid_utf8: Literal["replace", "dead_letter", "fail"] = "replace"
    """Bytes that are not UTF-8: U+FFFD in their place, the record is a dead letter, or the run fails."""
    duplicate_keys: Literal["dead_letter", "keep", "fail"] = "dead_letter"
    """A name that stands twice in one object: the record is a dead letter, it stays as it is, or the run fails."""


class RecordSchema(Part):
    """What every published record must be."""

    file: SchemaFile
    """A JSON Schema, beside the configuration."""
    on_violation: Literal["dlq", "warn", "fail"] = "dlq"
    """What becomes of a record that is not: a dead letter, published with a warning, or the run fails."""


def exploded_twice(steps: Sequence[Transform]) -> Iterable[Mistake]:
    """The position of a part is part of its id, and there is room for one."""
    for n in [n for n, step in enumerate(steps) if step.explode is not None][1:]:
        yield f"transform.{n}.explode", "a record is taken apart once; write one path: $.orders[*].lines"
