"""What becomes of the bytes of an answer on their way to a record."""

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from ingest.config.part import Mistake, Part
from ingest.config.values import ListPath, OuterPath, Paths, VersionPath


class Records(Part):
    """Where the records stand in an answer."""

    path: ListPath
    """The list: $.data, or $ where the answer is the list; $.pages.* for the values of an object."""
    absent: Literal["fail", "empty"] = "fail"
    """What an answer means that has no list there, or null: the run fails, or there are no records."""
    keep: Mapping[str, OuterPath] = Field({})
    """What is written into every record from around it, by name: ^.NAME, ^~, header.NAME."""


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


class Decode(Part):
    """What becomes of a record that JSON forbids, or that its readers disagree on."""

    nan: Literal["as_null", "as_text", "fail"] = "as_null"
    """NaN and Infinity, which are no JSON: null in their place, their text, or the run fails."""
    invalid_utf8: Literal["replace", "dead_letter", "fail"] = "replace"
    """Bytes that are not UTF-8: U+FFFD in their place, the record is a dead letter, or the run fails."""
    duplicate_keys: Literal["dead_letter", "keep", "fail"] = "dead_letter"
    """A name that stands twice in one object: the record is a dead letter, it stays as it is, or the run fails."""
