"""`parent`: a stream that is listed once for each record of another stream of its source."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ingest.config.deletes import UNSEEN
from ingest.config.part import Mistake, Part
from ingest.config.values import Count, Flag, Name, Whole

if TYPE_CHECKING:
    from ingest.config.model import Source, Stream

Refusal = Annotated[Whole, Field(ge=400, le=599)]


class ParentStream(Part):
    """Each record of that stream fills `{parent.FIELD}` in the requests of one listing."""

    stream: Name
    """The stream of this source whose records are the parents."""
    changed_only: Flag = False
    """Whether a run lists only parents that changed, as `incremental` of their stream tells them; else all of them."""
    skip_on: tuple[Refusal, ...] = ()
    """Answers to the first request of a parent that mean there is nothing: it is skipped, and counted."""
    state: Literal["per_parent"] = "per_parent"
    """Every parent has a cursor of its own."""
    state_limit: Count = 10_000
    """At most so many of these cursors are kept, those saved last; a parent without one is listed from the start."""


def kinship(source: "Source") -> Iterable[Mistake]:
    """What is wrong between the streams of a source."""
    fills = any(name.startswith("parent.") for _, name in source.placeholders())
    for name, stream in source.streams.items():
        if stream.parent is not None:
            for key, message in _mistaken(name, stream, source, fills=fills):
                yield f"streams.{name}.parent{key}", message


def _mistaken(name: str, stream: "Stream", source: "Source", *, fills: bool) -> Iterator[Mistake]:
    parent = stream.parent
    assert parent is not None
    above = source.streams.get(parent.stream)
    if above is None:
        yield ".stream", f"no stream `{parent.stream}` in this source; it has {', '.join(source.streams)}"
        return
    if _is_its_own(name, source.streams):
        yield ".stream", f"`{name}` would be listed for its own records"
        return
    if not above.id:
        yield ".stream", f"`{parent.stream}` has no `id`, which its children's ids begin with"
    if parent.changed_only and (above.incremental is None or above.incremental.type == "snapshot"):
        yield ".changed_only", f"nothing tells which of `{parent.stream}` changed: it has no `incremental`"
    if not fills and not any(one.startswith("parent.") for _, one in stream.placeholders()):
        yield "", "every parent would be asked for the same: write {parent.FIELD} into `path` or `params`"
    if stream.deletes is not None and stream.deletes.sweep is not None:
        for other in sorted(_ancestors(name, source.streams) & source.streams.keys()):
            if source.streams[other].hides_rows:
                yield "", f"in `{other}`: {UNSEEN}"
    tried_again = (stream.retry or source.retry).statuses
    for n, status in enumerate(parent.skip_on):
        if status in tried_again:
            yield f".skip_on.{n}", f"{status} is tried again until it fails; take it out of `retry.statuses`"


def _is_its_own(name: str, streams: Mapping[str, "Stream"]) -> bool:
    return name in _ancestors(name, streams)


def _ancestors(name: str, streams: Mapping[str, "Stream"]) -> set[str]:
    above: set[str] = set()
    while (stream := streams.get(name)) is not None and stream.parent is not None and stream.parent.stream not in above:
        name = stream.parent.stream
        above.add(name)
    return above
