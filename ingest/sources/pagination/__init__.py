"""Which page comes next, and why there is none. Pure: no request is made here.

A listing ends on an explicit signal: the absence of a token, an empty page or a declared total; never on a short page
unless the stream says so. Tokens are opaque text.
"""

from collections.abc import Sequence

from ingest.config import model
from ingest.paths import JsonPath
from ingest.sources.pagination.counted import Counted
from ingest.sources.pagination.counting import is_counted
from ingest.sources.pagination.keyset import Keyset
from ingest.sources.pagination.named import CursorToken, NextLink, ObjectToken
from ingest.sources.pagination.overlap import Overlapping
from ingest.sources.pagination.received import Received
from ingest.sources.pagination.signs import unread_pages
from ingest.sources.pagination.token import Paginator, Stop, Token
from ingest.sources.placement import Put

__all__ = [
    "Keyset",
    "Overlapping",
    "Paginator",
    "Received",
    "Stop",
    "Token",
    "is_counted",
    "paginator",
    "unread_pages",
]


class SinglePage:
    def first(self) -> Token:
        return Token()

    def puts(self, token: Token) -> Sequence[Put]:
        return ()

    def after(self, token: Token, received: Received) -> Token | Stop:
        return Stop("single page")

    def nothing(self, token: Token, n: int) -> Stop:
        return Stop("no content")

    def behind(self, token: Token) -> Stop:
        return Stop("the page was left out")


def paginator(config: model.AnyPaginate, base_url: str, ids: Sequence[JsonPath]) -> Paginator:
    """`ids`: what identifies a record."""
    if isinstance(config, model.SinglePage):
        return SinglePage()
    if isinstance(config, (model.LinkHeader, model.NextUrl)):
        return NextLink(config, base_url)
    if isinstance(config, model.CursorToken):
        return CursorToken(config)
    if isinstance(config, model.ObjectToken):
        return ObjectToken(config)
    if isinstance(config, model.Offset) and config.overlap:
        return Overlapping(config, ids)
    return Keyset(config) if isinstance(config, model.Keyset) else Counted(config)
