"""Where the bounds of a listing go in its requests, and where an answer says how the next run begins."""

from typing import NamedTuple

from ingest.config import placeholders as configured
from ingest.config.incremental import Bound
from ingest.config.model import CursorToken, Source, Stream
from ingest.paths import JsonPath
from ingest.sources.placement import Placement


class Bounded(NamedTuple):
    """Where one end of what is asked for goes, None: nowhere by itself; and the text around it."""

    where: Placement | None = None
    text: str | None = None


def bounds(stream: Stream) -> tuple[Bounded, Bounded]:
    """Of the lower and of the upper bound. What starts a `token` stream goes where the token of a page does, unless it
    says otherwise."""
    incremental, paginate = stream.incremental, stream.paginate
    if incremental is None:
        return Bounded(), Bounded()
    since = _bounded(incremental.since)
    if incremental.type == "token" and since.where is None:
        if incremental.param is not None:
            since = Bounded(Placement(param=incremental.param))
        elif isinstance(paginate, CursorToken):
            since = Bounded(Placement.of(paginate))
    return since, _bounded(incremental.until)


def _bounded(part: Bound | None) -> Bounded:
    return Bounded(Placement.of(part), part.value) if part is not None and part.places else Bounded()


def next_start(stream: Stream) -> JsonPath | None:
    """Where an answer says how the next run begins; by default where it says how the next page does."""
    incremental, paginate = stream.incremental, stream.paginate
    if incremental is None or incremental.type != "token":
        return None
    return incremental.from_ or (paginate.from_ if isinstance(paginate, CursorToken) else None)


def placeholders(source: Source, stream: Stream) -> frozenset[str]:
    """Those of the stream's requests, and of the texts around its bounds."""
    incremental = stream.incremental
    around = [] if incremental is None else [bound.value for bound in (incremental.since, incremental.until) if bound]
    found = [*source.placeholders(), *stream.placeholders(), *configured.found([text for text in around if text])]
    return frozenset(name for _, name in found)
