"""`deletes` and `expect`: how a stream learns what is gone, and what a listing must hold to be believed."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema

from ingest.config.part import Mistake, Part
from ingest.config.values import Interval, Scalar, Whole, shown

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%")


def _share(value: object) -> float:
    """`50%` → 0.5."""
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) > 100:
        raise ValueError(f"{shown(value)} is no share; write a percentage: 50%")
    return float(match[1]) / 100


Share = Annotated[float, PlainValidator(_share), WithJsonSchema({"type": "string", "pattern": r"^\d{1,3}(\.\d+)?%$"})]


class SweepPlan(Part):
    """A listing of everything, now and then: what it does not list is gone."""

    every: Interval = 604_800.0
    """From the start of one to the next; a stream whose runs list everything sweeps with each of them."""
    params: Mapping[str, Scalar] = Field({})
    """Query parameters of its requests, over those of the stream."""


class Deletes(Part):
    """How a stream learns that a record is gone."""

    sweep: SweepPlan | None = None
    """By what a complete listing does not list."""

    def mistakes(self) -> Iterable[Mistake]:
        if not self.model_fields_set:
            yield "", "says nothing; write `sweep`"


class Expect(Part):
    """What a complete listing without a filter must hold; one that does not is incomplete."""

    min_records: Annotated[Whole, Field(ge=0)] | None = None
    """At least so many records; 0: none is fine, even where there were some."""
    max_drop: Share | None = None
    """At most this share fewer than the one before."""
