"""What is remembered between runs: cursors with their history, what was `seen`, leases with a fence, sealed tokens,
how fast a source may be asked.

Ports only; `postgres.py` and `sqlite.py` are the adapters. A fence is a number that grows with every new holder of a
lease. Whoever writes under a lease names its fence, and the database refuses the write when a newer one exists: a
holder that was frozen past its lease can do no harm when it wakes up.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from ingest.errors import Superseded


class StreamId(NamedTuple):
    source: str
    stream: str

    def __str__(self) -> str:
        return f"{self.source}/{self.stream}"


class Lease(msgspec.Struct, frozen=True):
    """A named lease as its holder knows it. `clean`: the holder before released it, it did not just stop renewing."""

    name: str
    holder: str
    fence: int
    clean: bool


class Leases(Protocol):
    async def acquire(self, name: str, holder: str, ttl: float) -> Lease | None:
        """Take the lease for `ttl` seconds with a new fence, or None while someone else holds it.

        All times are the database's. A holder does not acquire again, it renews. On SQLite a holder whose process has
        ended is succeeded at once. Raises StoreUnavailable."""

    async def renew(self, lease: Lease, ttl: float) -> None:
        """Push the end of the lease to now + `ttl` seconds. Raises Superseded when it expired or has a newer holder."""

    async def release(self, lease: Lease) -> None:
        """Give it back at once, so that the next holder need not wait. Not an error when it was lost meanwhile."""

    async def holder(self, name: str) -> str | None:
        """Who holds it now (host:pid:id), or None."""


class Claim(msgspec.Struct, frozen=True):
    """A stream's lease and the cursor as it stood when the lease was taken: one transaction."""

    stream: StreamId
    lease: Lease
    cursor: bytes | None  # JSON; None: never run
    seen: int  # how many ids are remembered
    seen_in: str | None = None  # the log and topic that they speak of


class Seen(NamedTuple):
    """An id whose record was published: the version published last, and where it stands in the stream's order
    (microseconds, or the integer itself; None where the stream has no order: then it is never forgotten by `below`)."""

    id: str
    version: str
    position: int | None
    key: str | None = None  # where it is not the id, and a delete would have to name it
    dead: bool = False  # what was published last is its delete


class Missing(NamedTuple):
    """A record that a sweep did not list."""

    id: str
    key: str | None  # None: the id


NO_PARTITIONS: Mapping[str, bytes | None] = {}


class Save(msgspec.Struct, frozen=True):
    """What one page changes. Everything in it is saved in one transaction, or nothing.

    A stream that is listed in parts has a cursor for each partition beside its own."""

    cursor: bytes
    seen: Sequence[Seen] = ()
    seen_in: str | None = None  # the log and topic that `seen` speaks of; None: as before
    forget_seen: bool = False  # drop every id seen before, first: it was published somewhere else
    forget_below: int | None = None  # drop seen ids of the partition whose position is smaller
    seen_limit: int | None = None  # keep at most so many: those with the highest positions, or with none
    history: str | None = None  # a note for the history: the listing finished, or a person changed the cursor
    sweep: int | None = None  # the sweep that lists the page, a number that grows from one to the next
    listed: Sequence[str] = ()  # ids on the page beside those in `seen`, for a sweep
    missed: bool = False  # the sweep is over: note which ids it missed
    partition: str = ""  # that the page belongs to
    partitions: Mapping[str, bytes | None] = NO_PARTITIONS  # what moves with it; None: is forgotten
    partitions_limit: int | None = None  # keep at most so many, those saved last; not those of RESERVED


class Checkpoint(NamedTuple):
    """A saved cursor, for people. Times are RFC 3339 in UTC."""

    stream: StreamId
    cursor: bytes
    fence: int
    updated_at: str
    holder: str | None
    partitions: int = 0  # that have a cursor of their own


class HistoryEntry(NamedTuple):
    stream: StreamId
    cursor: bytes
    fence: int
    note: str
    saved_at: str


DEAD = "\0"  # no version begins with it
RESERVED = "#feed"  # a partition that is no part of a listing
HISTORY_LIMIT = 100  # rows per stream, the newest
FORGOTTEN = "forgotten: this cursor, and everything seen"  # the note of `forget`; its entry has the cursor as it was


class Checkpoints(Protocol):
    async def claim(self, stream: StreamId, holder: str, ttl: float) -> Claim | None:
        """Take the stream's lease and load its cursor, in one transaction. None while someone else holds it."""

    async def save(self, claim: Claim, save: Save) -> None:
        """Save under the claim's fence. Raises Superseded, and saves nothing, when the stream has a newer holder;
        a lease that only expired is still good. Raises StoreUnavailable: then it may have been saved or not."""

    async def seen(self, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
        """The version published last, for those of the ids that are remembered; that of a delete behind DEAD."""

    async def keys(self, stream: StreamId, ids: Sequence[str]) -> Mapping[str, str]:
        """The keys of those of the ids that are remembered with one that is not the id itself."""

    async def missing(
        self, stream: StreamId, sweep: int, after: str, limit: int, *, twice: bool = False
    ) -> Sequence[Missing]:
        """Remembered ids that the sweep did not list and that are not dead, at most `limit` of those behind
        `after` ("": all) in the database's order. `twice`: only those that an earlier sweep noted as missed."""

    async def cursors(self, stream: StreamId, partitions: Sequence[str]) -> Mapping[str, bytes]:
        """The cursors of those of the partitions that have one."""

    async def keep(self, claim: Claim, event_id: str, payload: bytes, headers: bytes) -> str:
        """Keep a record that no topic can hold, and return the reference under which it is kept. May be repeated."""

    async def list(self) -> Sequence[Checkpoint]:
        """The cursor of every stream, sorted by stream; those of partitions are only counted."""

    async def history(self, stream: StreamId) -> Sequence[HistoryEntry]:
        """Newest first, at most HISTORY_LIMIT."""

    async def forget(self, claim: Claim, note: str = FORGOTTEN) -> None:
        """Forget the cursors and everything `seen`, as if the stream had never run; the history keeps a row."""


class Sealed(NamedTuple):
    """A secret as it is saved: whoever saved it can open it, the database cannot."""

    version: int  # grows with every save
    content: bytes


class Tokens(Protocol):
    """Secrets that their issuer replaces when they are used. The one saved last is the only one that still works, so it
    is saved before it is used, and never by one who did not know the one before it."""

    async def load(self, name: str) -> Sealed | None:
        """Raises StoreUnavailable."""

    async def replace(self, name: str, version: int, content: bytes) -> bool:
        """Save it as the successor of `version` (0: there was none). False: another was saved meanwhile, and it stays.

        Raises StoreUnavailable: then it may have been saved or not."""


class Hold(NamedTuple):
    """An API asked to be left alone for so many `seconds` from now."""

    seconds: float
    reason: str


class Demand(NamedTuple):
    """Which slots somebody wants, one every `interval` seconds. Past ones are given that are at most `credit` seconds
    old. Who is alone gets all up to `ahead` seconds from now, at least one; who shares the source gets `few`."""

    interval: float
    credit: float
    ahead: float
    few: int


class Slots(NamedTuple):
    """So many moments at which a request may go, and nobody else's: the first at `first`, then one every interval.
    Times are the database's, in seconds since 1970; it was `now` when it answered."""

    now: float
    first: float
    number: int
    shared: bool  # someone else takes slots of this source too
    hold: Hold | None


SHARED_FOR = 10.0  # seconds that somebody who took slots counts as one who will want more


class Rates(Protocol):
    """How fast a source may be asked, by all who poll it together. All times are the database's, and a clock that was
    set back delays nobody. Raises StoreUnavailable; slots that were taken meanwhile are lost, and nobody's."""

    async def take(self, source: str, holder: str, demand: Demand) -> Slots:
        """The next slots that nobody has taken."""

    async def clock(self) -> float:
        """What time it is, in seconds since 1970: exact to a millisecond."""

    async def hold(self, source: str, hold: Hold) -> None:
        """Tell the others what the API asked for. The end of a hold is never brought forward. May be repeated."""

    async def held(self, source: str) -> Hold | None:
        """What is left of the hold with the latest end."""


def superseded(lease: Lease, what: str, newest: tuple[str, int] | None) -> Superseded:
    """The refusal of a write under `lease`. `what` was not done; `newest`: holder and fence in the database."""
    if newest is None:
        return Superseded(f"{lease.name}: {what}: the database does not know our lease (fence {lease.fence})")
    holder, fence = newest
    if (holder, fence) == (lease.holder, lease.fence):
        return Superseded(f"{lease.name}: {what}: our lease (fence {fence}) has ended, nobody has taken it yet")
    if fence <= lease.fence:  # asynchronous replication: a failover lost the transaction that gave us the lease
        return Superseded(
            f"{lease.name}: {what}: the database forgot that it gave us the fence {lease.fence},"
            f" and gave {fence} to {holder}"
        )
    return Superseded(f"{lease.name}: {what}: our fence {lease.fence} is superseded by fence {fence} of {holder}")


def noted(version: str | None, dead: bool) -> str:
    """What `Checkpoints.seen` says of a record that was published last with this version."""
    return DEAD + (version or "") if dead else version or ""


def stream_lease(stream: StreamId) -> str:
    """The name of the one lease that fences a stream's cursor."""
    return f"stream:{stream}"
