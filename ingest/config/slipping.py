"""Pages that are counted, of a list that changes while it is read: do rows slip by for good, and what to write then.

Where a row moves or vanishes, those behind it move up, and the first of the next page is never seen. What the API lists
in ascending order need not be counted: a request may begin at the last value instead of a page number.
"""

from ingest.config.model import AnyPaginate, Incremental, Offset, PageNumber, Since, Stream

WHAT = (
    "pages are counted: where a row moves or vanishes while they are read, another slips by unseen, and later runs do"
    " not ask for it"
)
OVERLAP = 5  # rows
SIZES = ("per_page", "perPage", "page_size", "pageSize", "limit", "size", "count", "maxResults", "$top")


def may_slip(stream: Stream) -> bool:
    """Whether nobody ever asks again for a row that slips by, where pages are counted and runs ask for what is new."""
    paginate = stream.paginate
    begins_again = paginate.listing_cap is not None and paginate.listing_cap <= (getattr(paginate, "size", 0) or 0)
    sweeps = stream.deletes is not None and stream.deletes.sweep is not None
    return not begins_again and not sweeps


def counts_what_moves(stream: Stream) -> bool:
    """Whether that can be said of the configuration alone: the list is in the order of what changes."""
    counts = isinstance(stream.paginate, PageNumber) or (
        isinstance(stream.paginate, Offset) and not stream.paginate.overlap
    )
    ascending = stream.incremental is not None and stream.incremental.order == "asc"
    return counts and ascending and _asks_for_new(stream) and may_slip(stream)


def remedy(stream: Stream) -> str:
    """What to write instead."""
    incremental, paginate = stream.incremental, stream.paginate
    if isinstance(paginate, Offset):
        overlap = min(OVERLAP, (paginate.size or OVERLAP + 1) - 1) or 1
        return f"add `overlap: {overlap}` to `paginate`: each page then begins with rows of the one before"
    if incremental is None or not _takes_bound(stream):
        return "see `keyset`, `listing_cap`, `overlap`, `deletes.sweep`"
    size_param, size = _size(stream, paginate)
    sized = f"size_param: {size_param or '…'}, size: {size or '…'}"
    if incremental.since is not None and _takes_what_records_hold(incremental, incremental.since):
        fields = f"{{{incremental.field}: {incremental.since.param}}}"
        written = f"write `paginate: {{type: keyset, fields: {fields}, {sized}}}`"
    elif isinstance(paginate, PageNumber) and paginate.size is None:
        written = f"add `{sized}, listing_cap: {size or '…'}` to `paginate`"
    else:
        written = f"add `listing_cap: {size or '…'}` to `paginate`, as many as a page has"
    if incremental.order == "asc":
        return f"{written}: each page then begins at the last value"
    return f"where the API can list by `{incremental.field}`, oldest first, say `order: asc`, and {written}"


def _asks_for_new(stream: Stream) -> bool:
    incremental = stream.incremental
    if incremental is None or not incremental.of_records:
        return False
    return _takes_bound(stream) or incremental.type == "feed"


def _takes_bound(stream: Stream) -> bool:
    """Whether a request says where it begins."""
    names = {name for _, name in stream.placeholders()}
    since = None if stream.incremental is None else stream.incremental.since
    return since is not None or not names.isdisjoint({"cursor", "window.start"})


def _takes_what_records_hold(incremental: Incremental, since: Since) -> bool:
    """Whether a parameter takes the field of a record as it stands there."""
    plain = since.param is not None and since.value is None and since.is_ == "inclusive"
    return plain and (incremental.type == "integer" or (incremental.format == "rfc3339" and not incremental.parse))


def _size(stream: Stream, paginate: AnyPaginate) -> tuple[str | None, object]:
    """The parameter that says how many rows a page has, and the number, as far as they are known."""
    size = getattr(paginate, "size", None)
    if size is not None:
        return getattr(paginate, "size_param", None), size
    return next(((name, stream.params[name]) for name in SIZES if name in stream.params), (None, None))
