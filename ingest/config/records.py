"""What becomes of the bytes of an answer on their way to a record."""

from typing import Literal

from ingest.config.part import Part


class Decode(Part):
    """What becomes of a record that JSON forbids, or that its readers disagree on."""

    nan: Literal["as_null", "as_text", "fail"] = "as_null"
    """NaN and Infinity, which are no JSON: null in their place, their text, or the run fails."""
    invalid_utf8: Literal["replace", "dead_letter", "fail"] = "replace"
    """Bytes that are not UTF-8: U+FFFD in their place, the record is a dead letter, or the run fails."""
    duplicate_keys: Literal["dead_letter", "keep", "fail"] = "dead_letter"
    """A name that stands twice in one object: the record is a dead letter, it stays as it is, or the run fails."""
