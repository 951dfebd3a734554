"""`deletes` and `expect`: how a stream learns what is gone, and what a listing must hold to be believed."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from ingest.config.part import Mistake, Part
from ingest.config.rules import Expression
from ingest.config.values import IdPaths, Interval, Name, Scalar, Whole, shown

if TYPE_CHECKING:
    from ingest.config.model import Source

UNSEEN = (
    "`deletes.sweep` would never conclude anything: behind `listing_cap` nobody sees the records that lack the"
    " incremental field; if every record has it, write `incremental: {…, on_null: fail}`"
)

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%")


def _share(value: object) -> float:
    """`50%` → 0.5."""
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) > 100:
        raise ValueError(f"{shown(value)} is no share; write a percentage: 50%")
    return float(match[1]) / 100


Share = Annotated[float, PlainValidator(_share), WithJsonSchema({"type": "string", "pattern": r"^\d{1,3}(\.\d+)?%$"})]


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as exc:
        raise ValueError(f"`{text[:60]}` is no regular expression: {exc}") from exc
    return text


Regex = Annotated[str, AfterValidator(_regex)]


class SweepPlan(Part):
    """A listing of everything, now and then: what it does not list is gone."""

    every: Interval = 604_800.0
    """From the start of one to the next; a stream whose runs list everything sweeps with each of them."""
    params: Mapping[str, Scalar] = Field({})
    """Query parameters of its requests, over those of the stream."""


class FeedPlan(Part):
    """A stream of the same source whose rows say what is gone here."""

    stream: Name
    """That stream. It is read after each listing, from a cursor of its own."""
    where: Expression | None = None
    """Which of its rows are deletes: a JMESPath expression; absent: all."""
    id: IdPaths = Field(min_length=1)
    """Where a row names what is gone: a path, or several where the id has several parts."""
    match: Regex | None = None
    """A regular expression: its first group in what `id` finds is the id, or all that it matches; where it does not
    match, nothing is gone."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.match is not None and len(self.id) > 1:
            yield "match", "`match` looks at one text; `id` has several paths"


class Deletes(Part):
    """How a stream learns that a record is gone."""

    sweep: SweepPlan | None = None
    """By what a complete listing does not list."""
    soft: Expression | None = None
    """By the record itself: a JMESPath expression that is true of one that is gone."""
    feed: FeedPlan | None = None
    """By another stream, whose rows say what is gone."""

    def mistakes(self) -> Iterable[Mistake]:
        if not self.model_fields_set:
            yield "", "says nothing; write `sweep`, `soft` or `feed`"


class Expect(Part):
    """What a complete listing without a filter must hold; one that does not is incomplete."""

    min_records: Annotated[Whole, Field(ge=0)] | None = None
    """At least so many records; 0: none is fine, even where there were some."""
    max_drop: Share | None = None
    """At most this share fewer than the one before."""


def feeds(source: "Source") -> Iterable[Mistake]:
    """Feeds that a source does not have."""
    for name, stream in source.streams.items():
        feed = stream.deletes.feed if stream.deletes is not None else None
        if feed is None:
            continue
        key = f"streams.{name}.deletes.feed.stream"
        if feed.stream not in source.streams:
            yield key, f"no stream `{feed.stream}` in this source; it has {', '.join(source.streams)}"
        elif feed.stream == name:
            yield key, f"`{name}` is this stream; rows that say of themselves that they are gone are `soft`"
        elif source.streams[feed.stream].parent is not None:
            yield key, f"`{feed.stream}` is listed once for each of its parents; a feed is one listing"
