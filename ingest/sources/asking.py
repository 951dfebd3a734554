"""What a listing asks next: its place, its bounds and what stands for its parent, as one request. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from ingest.config.model import NextUrl, Stream
from ingest.errors import SourceChanged
from ingest.sources.bounds import bounds
from ingest.sources.conditional import Conditional
from ingest.sources.cursor import Listing, Report, Validators
from ingest.sources.filling import Values, filled
from ingest.sources.opening import State
from ingest.sources.pagination import Paginator
from ingest.sources.parameters import as_sent as text_of
from ingest.sources.parent import NO_PARENT, Parent
from ingest.sources.placement import Placement, Put
from ingest.sources.request import Request
from ingest.sources.template import Template


class Asking:
    """The rules of one stream. `conditional`: None where everything is asked for."""

    def __init__(self, stream: Stream, pages: Paginator, template: Template, conditional: Conditional | None) -> None:
        self._paginate, self._has_reports = stream.paginate, stream.job is not None
        self._keep = stream.paginate.keep_params if isinstance(stream.paginate, NextUrl) else ()
        self._paginator, self._template, self._conditional = pages, template, conditional
        self._bounds_at = bounds(stream)
        self._sweep_puts = _sweep_puts(stream)

    def request(self, listing: Listing, parent: Parent = NO_PARENT, report: Report | None = None) -> Request:
        """What to ask. Raises SourceChanged when the listing has gone on for too long."""
        if listing.n >= self._paginate.max_pages:
            raise SourceChanged(
                f"incomplete: paginate.max_pages ({listing.n}) reached, and the API says that there is more"
            )
        if listing.empty > self._paginate.max_empty_pages:
            raise SourceChanged(
                f"incomplete: {listing.empty} empty pages in a row, more than paginate.max_empty_pages, and no end"
            )
        values, puts = self.asked_for(listing, parent)
        url = listing.page.url
        if self._has_reports:  # all of that made the report
            puts, url = [], url or (None if report is None else report.url)
        puts += self._paginator.puts(listing.page)
        return self._template.request(values, puts, url, self._keep)

    def asked_for(self, listing: Listing, parent: Parent = NO_PARENT) -> tuple[Values, list[Put]]:
        """What fills the placeholders of a request, and what it carries to ask for this listing."""
        since, until = listing.window
        values = {"window.start": since, "window.end": until, "cursor": since, **parent.values}
        if listing.job is not None:
            values |= {"job.id": listing.job.id, **listing.job.values}
        swept = self._sweep_puts if listing.aside else ()
        return values, [*self._bounds_put(listing, values), *swept]

    def _bounds_put(self, listing: Listing, values: Values) -> Iterator[Put]:
        for (where, pattern), text in zip(self._bounds_at, listing.window, strict=True):
            sent = text if pattern is None or text is None else filled(pattern, values)
            if where is not None and sent is not None:
                yield Put(where, sent)

    def for_what_is_new(self, request: Request, state: State) -> Request:
        """The same, for an answer only where there is another than the one before."""
        return request if self._conditional is None else self._conditional.asking(request, state.validators)

    def told(self, request: Request, headers: Mapping[str, str]) -> Validators | None:
        """What the answer says of its state, where the next request for it says so too."""
        return None if self._conditional is None else self._conditional.told(request, headers)


def _sweep_puts(stream: Stream) -> Sequence[Put]:
    params = stream.deletes.sweep.params if stream.deletes and stream.deletes.sweep else {}
    return [Put(Placement(param=name), text_of(value)) for name, value in params.items()]
