"""Sees when a listing goes in a circle."""

from urllib.parse import urlsplit, urlunsplit

from ingest.errors import SourceChanged
from ingest.sources import Page
from ingest.sources.links import SHOWN
from ingest.sources.request import Request

RESTARTS = 3  # times that a run begins a listing again because `errors` says so
_LOOK = "; does the API know what `paginate` sends?"


class LoopGuard:
    """No request is made twice in a listing, no two pages in a row hold the same ids. Remembers 8 bytes a request."""

    def __init__(self, *, has_ids: bool) -> None:
        self._has_ids = has_ids
        self._requests: set[bytes] = set()
        self._ids: tuple[str, ...] = ()
        self._restarts = 0

    def request(self, request: Request) -> None:
        mark = request.mark()
        if mark in self._requests:
            asked = urlunsplit(("", "", *urlsplit(request.url)[2:]))[:SHOWN]
            raise SourceChanged(
                f"the listing goes in a circle: after {len(self._requests)} requests {asked} is asked for again{_LOOK}"
            )
        self._requests.add(mark)

    def restarted(self, reason: str) -> None:
        """A rule says that the listing begins again. Raises SourceChanged where that has not helped before."""
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise SourceChanged(f"incomplete: the listing was begun again {RESTARTS} times; {reason}")

    def forget(self) -> None:
        """What follows may be like what was."""
        self._requests.clear()
        self._ids = ()

    def page(self, page: Page) -> None:
        """A page that ends the listing may be like the one before it."""
        if page.stop is not None:
            return
        listed = [record.id for record in page.records] if page.listed is None else page.listed
        ids = tuple(listed) if self._has_ids else ()
        if ids and ids == self._ids:
            raise SourceChanged(f"the listing goes in a circle: two pages in a row have the same {len(ids)} ids{_LOOK}")
        self._ids = ids
