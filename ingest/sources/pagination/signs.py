"""Signs that there is another page, for streams that read one only. Known names, no guesses about values."""

from collections.abc import Iterator, Mapping

from ingest.sources.answers import Answer, Slice, Undecodable
from ingest.sources.links import links
from ingest.sources.pagination.received import Received

_NEXT = (
    *("next", "next_url", "nextUrl", "next_link", "nextLink", "@odata.nextLink", "next_page", "nextPage"),
    *("next_page_url", "nextPageUrl", "next_page_token", "nextPageToken", "next_cursor", "nextCursor", "next_token"),
    *("nextToken", "cursor", "end_cursor", "continuation", "continue", "has_more", "hasMore", "has_next", "hasNext"),
    *("hasNextPage", "has_next_page", "nextRecordsUrl", "LastEvaluatedKey", "NextToken", "IsTruncated"),
)
_TOTAL = ("total", "total_count", "totalCount", "total_results", "totalResults", "total_items", "totalItems", "count")
_PAGES = ("total_pages", "totalPages", "page_count", "pageCount", "last_page", "pages")
_AROUND = ("meta", "metadata", "_metadata", "links", "_links", "paging", "pagination", "page_info", "pageInfo", "page")
_NOTHING = (b"null", b"false", b'""', b"[]", b"{}", b"0")


def unread_pages(received: Received) -> str | None:
    """What in an answer says that there is more; None: nothing known."""
    if links(received.headers.get("link", "")).get("next"):
        return 'the answer has a Link with rel="next"'
    rows = len(received.records)
    for name in ("x-total-count", "x-total"):
        if _number(received.headers.get(name, "").encode()) > rows:
            return f"its header {name} says {received.headers[name]}, and the page has {rows}"
    if received.headers.get("x-next-page"):
        return "the answer has a header x-next-page"
    return next(_signs(received.body, rows), None)


def _signs(body: Answer, rows: int) -> Iterator[str]:
    for path, members in _around(body):
        for name in _NEXT:
            if name in members and bytes(members[name]) not in _NOTHING:
                yield f"the answer has `{path}{name}`"
        for name in _TOTAL:
            if name in members and _number(bytes(members[name])) > rows:
                yield f"`{path}{name}` is {bytes(members[name]).decode()}, and the page has {rows} rows"
        for name in _PAGES:
            if name in members and _number(bytes(members[name])) > 1:
                yield f"`{path}{name}` is {bytes(members[name]).decode()}"


def _around(body: Answer) -> Iterator[tuple[str, Mapping[str, Slice]]]:
    """The outermost object, and those in it that are for paging."""
    try:
        outer = body.members()
    except TypeError:
        return
    yield "", outer
    for name in _AROUND:
        if name in outer:
            try:
                yield f"{name}.", Answer(bytes(outer[name])).members()
            except (TypeError, Undecodable):
                continue


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 16 else 0
