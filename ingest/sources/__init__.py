"""What is polled. Port only; `http.py` is the adapter.

A source gives the pages of one stream after a cursor. It computes the cursor that stands for each page, but never saves
it: only the poller may, and only when every event of the page is acknowledged by the log.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from ingest.errors import BadRecord


class SourceRecord(msgspec.Struct, frozen=True, gc=False):
    """One record as the API sent it, and what was read out of it."""

    id: str
    version: str | None
    key: str
    occurred_at: str | None  # RFC 3339
    position: int | None  # in the stream's order: microseconds since 1970, or the integer itself
    value: bytes
    deleted: bool = False  # it says that the record is gone; then `version` is never None


class Refused(msgspec.Struct, frozen=True):
    """A record that cannot become an event, with its bytes as they came."""

    value: bytes
    error: BadRecord


class Notice(NamedTuple):
    """Something unexpected that a person should know; nothing is lost."""

    kind: str  # a word for the metric: disorder, capped, repaired …
    message: str


class Sweep(msgspec.Struct, frozen=True):
    """A listing of everything, which finds what is gone."""

    number: int  # its start, microseconds since 1970
    ends: bool = False  # with this page, whole: what it did not list is gone
    twice: bool = False  # only what the sweep before it missed too: pages may have skipped rows


NO_PARTITIONS: Mapping[str, bytes | None] = {}


class Page(msgspec.Struct, frozen=True):
    """One page of a listing. `cursor` stands for everything up to and including it."""

    records: Sequence[SourceRecord]
    refused: Sequence[Refused]
    cursor: bytes  # JSON
    remember_from: int | None  # ids at or after this position are worth remembering; None: all ids are
    remember_all: bool
    stop: str | None  # why the listing ended with this page; None: there is more
    skipped: int = 0  # records that the configuration leaves out
    rows: int = 0  # by which the listing has grown; what comes again behind a cap or in an overlap counts once
    notices: Sequence[Notice] = ()
    sweep: Sweep | None = None  # the page is one of it
    whole: bool = False  # one of a listing that leaves nothing out
    listed: Sequence[str] | None = None  # ids of all that the API listed, where they are not those of `records`
    gaps: int = 0  # answers that were left out because `errors` says so
    keyless: bool = False  # its records are deletes without the keys of what they delete
    partition: str = ""  # that it belongs to, where a stream is listed in parts
    partitions: Mapping[str, bytes | None] = NO_PARTITIONS  # cursors that are saved with its own; None: no more
    partitions_limit: int | None = None  # how many are kept
    doubt: str | None = None  # why nothing may be concluded from what its listing has not listed up to here
    counted: bool = False  # what leads on counts pages or rows, so some may be skipped
    bare: bool = False  # a cursor alone: nothing was listed


class Watch(Protocol):
    """What a source tells while it works, for the report, the metrics and the person who waits."""

    def requested(self, seconds: float) -> None:
        """An answer came; the request took `seconds`."""

    def retrying(self, attempt: int, delay: float, reason: str) -> None:
        """Try `attempt` failed for `reason`; the next follows in `delay` seconds."""

    def waiting(self, delay: float, reason: str) -> None:
        """The next request is held back for `delay` seconds, because of what the last answer said."""

    def noticed(self, notice: Notice) -> None:
        """Said with every page on which it is true."""

    def restarted(self, reason: str) -> None:
        """The listing began again at the start of its window, for this reason."""


Saved = Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]]
"""The cursors of those partitions that have one."""


async def nothing_saved(partitions: Sequence[str]) -> Mapping[str, bytes]:
    return {}


class Source(Protocol):
    def pages(
        self, cursor: bytes | None, watch: Watch, saved: Saved = nothing_saved
    ) -> AsyncGenerator[Page, None]:
        """The pages after `cursor` (None: from the beginning), until one says why the listing stopped.

        Raises SourceUnavailable when the API stays away longer than the configured patience, SourceRefused when it
        refuses us, SourceChanged when its answers no longer have the shape we know. What was yielded before stays good.
        """
