"""What paging passes from one page to the next, and why there is no next one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ingest.sources.pagination.received import Received
from ingest.sources.placement import Put

NONE: Mapping[str, str] = {}
LEFT_OUT = "the page was left out, and only it names the next one"


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the next request needs: one of the first five, or none of them for a first page."""

    url: str | None = None
    token: str | None = None
    number: int | None = None  # page number, or offset
    keys: tuple[str, ...] = ()  # of the last row, in the order of `keyset.fields`
    params: Mapping[str, str] = NONE  # what `object` found
    json: bool = False  # `token` is JSON as it stands: a number, a list
    rows: int = 0  # received in this listing before this page
    total: int | None = None  # as declared last
    moved: bool = False  # the declared total changed during the listing: it no longer ends it
    counted: bool = False  # what the API named as the next page counts pages or rows
    before: tuple[str, ...] = ()  # marks of the rows of the page before, with `overlap`
    back: bool = False  # we step back, which is no loop
    far: int = 0  # how far we had come when we stepped back
    retreats: int = 0  # how often we did so since we last came further


class Stop(msgspec.Struct, frozen=True):
    """The listing is complete, and this is why."""

    reason: str


class Paginator(Protocol):
    def first(self) -> Token: ...
    def puts(self, token: Token) -> Sequence[Put]:
        """What the request for this page carries besides."""

    def after(self, token: Token, received: Received) -> Token | Stop:
        """The page that follows the one asked with `token`. Raises SourceChanged when the answer contradicts itself."""

    def nothing(self, token: Token, n: int) -> Token | Stop:
        """The API says that there is no content where page `n` of the listing should be (from 0).

        Raises SourceChanged where that contradicts what it said before: rows may be missing."""

    def behind(self, token: Token) -> Token | Stop:
        """The page behind one that is left out; Stop where nothing but the page itself names it."""
