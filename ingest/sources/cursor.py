"""The saved cursor: one JSON object per stream, readable by people, written by nobody but the poller.

    {v, fingerprint, high_water | mark, listing, updated_at}
    listing, while one is under way: {started, window: [since, until], page: {token…, rows}, n, reached, order_seen, …}

Of a stream that is listed for the records of another there is one such object per parent, and one for its place among
them: {v, fingerprint, parents, round: {started, parents, done, ids, beyond, …}, updated_at}.

The window is frozen for a listing. `fingerprint` covers what shapes the listing: when it changed, the page token means
nothing any more, so the listing restarts; the high-water mark stays.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ingest.config.model import Source, Stream
from ingest.errors import ConfigError
from ingest.sources.pagination import Token


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A report that the API makes for a listing."""

    id: str | None
    created: str  # RFC 3339, by the API's clock
    ordered: str  # the same moment, by ours
    url: str | None = None  # where it is asked for
    values: Mapping[str, str] = {}  # of {job.…}, once it is done


class Report(NamedTuple):
    """A job that is done. `url`: of its file; None: it is where the configuration says."""

    job: Job
    url: str | None = None
    empty: bool = False


class Listing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A listing under way. `window`: both bounds as they are sent."""

    started: str  # RFC 3339
    window: tuple[str | None, str | None]
    page: Token  # of the next request
    n: int = 0  # pages so far
    empty: int = 0  # of them, empty ones in a row up to here
    reached: str | int | None = None
    order_seen: str | int | None = None
    disorder: bool = False
    first_ceiling: str | int | None = None
    ceiling: str | int | None = None
    read_any: bool = False  # a non-empty page came
    end: str | None = None  # where the mark stands when it is complete (RFC 3339); None: where its records say
    follows: bool = False  # another window begins there
    mark: str | None = None  # what its pages named so far as the start of the next run
    rows: int = 0  # records so far
    again: int = 0  # of the last ones: those that come again where it begins again at the last cursor value
    whole: bool = False  # nothing is left out of what is asked for
    sweep: bool = False  # whole, and what it does not list is gone
    aside: bool = False  # a sweep beside the run's own listing: it moves no mark
    round: str | None = None  # when the one began that it is part of
    job: Job | None = None
    doubt: str | None = None  # why nothing may be concluded from what it does not list


class Validators(msgspec.Struct, frozen=True, omit_defaults=True):
    """What tells the state of an answer."""

    request: str  # a mark of it, and of what becomes of the answer
    etag: str | None = None
    last_modified: str | None = None

    @property
    def texts(self) -> tuple[str | None, str | None]:
        return self.etag, self.last_modified


class Round(msgspec.Struct, frozen=True, omit_defaults=True):
    """A round under way: the children of one parent after the other."""

    started: str  # RFC 3339
    parents: "Cursor | None" = None  # that of their listing, before the first page with one that is not done
    done: int = 0  # of that page, from its start
    ids: str = ""  # a hash of theirs
    beyond: tuple[str, ...] = ()  # those done behind them
    ended: bool = False  # all were listed, and are done
    n: int = 0  # parents that are done
    skipped: int = 0  # of them
    rows: int = 0  # records so far
    full: bool = False  # of all parents, not of those that changed
    whole: bool = False  # full, and nothing was left out of a listing so far
    counted: bool = False  # pages or rows were counted, so some may have been skipped
    aside: bool = False  # a sweep beside the other rounds: it moves no mark
    doubt: str | None = None  # why nothing may be concluded from what it does not list


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="v", tag=1):
    fingerprint: str
    updated_at: str
    high_water: str | int | None = None
    mark: str | None = None  # what the API named as the start of the next run
    mark_of: str | None = None  # what it is: a token, or which keys of a row
    listing: Listing | None = None
    rows: int | None = None  # records in the last whole listing
    swept: str | None = None  # when the last sweep began from which deletes were concluded
    validators: Validators | None = None  # of the last answer, where it was all that there is
    parents: "Cursor | None" = None  # where the next listing of the parents begins
    round: Round | None = None

    @property
    def stands(self) -> bool:
        """Whether a next run could go on from it."""
        return self.mark is not None or self.high_water is not None

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def decode(saved: bytes) -> Cursor:
    """Raises ConfigError for what is no cursor of ours."""
    try:
        return msgspec.json.decode(saved, type=Cursor)
    except msgspec.DecodeError as exc:
        raise ConfigError(f"the saved cursor cannot be read ({exc}): `ingest checkpoints reset` starts over") from exc


def unconditional(saved: bytes) -> bytes:
    """The cursor without what would let an API say that there is nothing new."""
    cursor = decode(saved)
    return saved if cursor.validators is None else replace(cursor, validators=None).encode()


def fingerprint(source: Source, stream: Stream, scrub: Callable[[str], str]) -> str:
    """16 hex digits over base_url, path, method, params, header names, body, records, paginate, incremental and what a
    sweep asks for; secrets left out, so that a rotated one restarts nothing."""
    shape: dict[str, Any] = {
        "base_url": source.base_url,
        "path": stream.path,
        "method": stream.method,
        "params": {**source.params, **stream.params},
        "body": [stream.json_, stream.form, repr(stream.graphql)],
        "list_style": stream.list_style,
        "headers": sorted({name.lower() for name in (*source.headers, *stream.headers)}),
        "records": str(stream.records.path),
        "paginate": repr(stream.paginate),
        "incremental": None if stream.incremental is None else repr(stream.incremental),
    }
    if stream.deletes is not None and stream.deletes.sweep is not None:
        shape["sweep"] = stream.deletes.sweep.params
    if stream.job is not None:
        shape["job"] = repr(stream.job.of_the_report())
    text = msgspec.json.encode(shape, order="sorted", enc_hook=str).decode()
    return hashlib.blake2b(scrub(text).encode(), digest_size=8).hexdigest()


def describe(saved: bytes | None) -> str | None:
    """A cursor in a few words: the high-water mark, and how far a listing under way has come."""
    if saved in (None, b"null"):
        return None
    cursor = decode(saved)
    mark = cursor.mark or ("" if cursor.high_water is None else str(cursor.high_water))
    if cursor.round is not None:
        return f"after {cursor.round.n} parents"
    if cursor.listing is None:
        return mark or "end of the listing"
    return f"{mark} after page {cursor.listing.n}".strip()
