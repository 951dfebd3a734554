"""From one answer: where its records are, what identifies them, how it may go on, and which fields are times."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from ingest.discovery import Proposal
from ingest.sources import times
from ingest.sources.links import links

Record = Mapping[str, Any]

IDS = ("id", "uuid", "guid", "_id", "key", "number", "slug", "code", "name")
CHANGED = ("updated_at", "updatedAt", "updated", "modified_at", "modifiedAt", "modified", "last_modified",
           "lastModified", "date_updated", "changed", "systemModstamp")  # fmt: skip
CREATED = ("created_at", "createdAt", "created", "inserted_at", "date", "timestamp", "time")
URLS = ("next", "next_url", "nextUrl", "next_link", "nextLink", "@odata.nextLink", "next_page_url", "nextPageUrl",
        "nextRecordsUrl", "href")  # fmt: skip
TOKENS = ("next_cursor", "nextCursor", "next_page_token", "nextPageToken", "next_token", "nextToken", "end_cursor",
          "endCursor", "cursor", "after", "continuation", "continuationToken", "next_page", "nextPage", "next",
          "offset", "next_batch", "last_seq")  # fmt: skip
MORE = ("has_more", "hasMore", "has_next", "hasNext", "hasNextPage", "has_next_page", "more")
PAGES = ("total_pages", "totalPages", "page_count", "pageCount", "last_page", "lastPage", "pages")
TOTALS = ("total", "total_count", "totalCount", "total_results", "totalResults", "total_items", "totalItems", "count")
AROUND = ("", "meta", "metadata", "_metadata", "links", "_links", "paging", "pagination", "page_info", "pageInfo",
          "info", "response_metadata", "cursor", "cursors")  # fmt: skip
PARAMS = {
    "next_cursor": ("cursor",), "nextCursor": ("cursor",), "next_page_token": ("page_token", "pageToken"),
    "nextPageToken": ("pageToken", "page_token"), "next_token": ("next_token", "token"), "end_cursor": ("after",),
    "nextToken": ("nextToken", "token"), "endCursor": ("after",), "after": ("after",), "next_page": ("page",),
    "nextPage": ("page",), "continuationToken": ("continuationToken",), "offset": ("offset",),
    "next_batch": ("since", "from"), "last_seq": ("since",),
}  # fmt: skip
ENDLESS = ("next_batch", "last_seq")  # feeds, whose last page names where to go on later
AFTER_ID = ("starting_after", "after", "after_id", "last_id", "since_id")
ROWS = ("offset", "skip", "start")


class ListOf(NamedTuple):
    path: str
    records: Sequence[Record]


def lists(answer: Any, path: str = "$", depth: int = 4) -> Iterator[ListOf]:
    """Every list of objects in an answer, the outer ones first."""
    if isinstance(answer, list):
        if answer and all(isinstance(item, Mapping) for item in answer):
            yield ListOf(path, answer)
        return
    if isinstance(answer, Mapping) and depth:
        for name, value in answer.items():
            step = f".{name}" if name.replace("_", "").replace("-", "").isalnum() else f'["{name}"]'
            yield from lists(value, f"{path}{step}", depth - 1)


def propose(found: ListOf, path: str) -> Proposal:
    """What the records alone say. `path`: of the request."""
    proposal = Proposal()
    proposal.add("path", path, "as it was asked")
    count = len(found.records)
    proposal.add("records", found.path, f"a list of {count} objects")
    name = _identity(found.records)
    if name is None:
        proposal.hints.append("no field is unique in every record: without `id` a record is its hash")
    else:
        proposal.add("id", name, f"in all of {count} records, and different in each")
    moments = dict(_times(found.records))
    for known in (*CHANGED, *CREATED):
        if known in moments:
            hint = f"incremental: `{known}` is a time in every record, {moments[known]}"
            proposal.hints.append(f"{hint}; where the API takes one, `since: {{param: …}}` asks for what is newer")
            break
    return proposal


def _identity(records: Sequence[Record]) -> str | None:
    names = [name for name in records[0] if all(_scalar(record.get(name)) for record in records)]
    unique = [name for name in names if len({str(record[name]) for record in records}) == len(records)]
    known = [name for name in IDS if name in unique]
    return next(iter((*known, *(name for name in unique if name.lower().endswith("id")))), None)


def _scalar(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _times(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    parse = times.parser(("rfc3339", "unix"), None)
    for name in (*CHANGED, *CREATED):
        try:
            positions = [parse(str(record[name])) for record in records]
        except (KeyError, ValueError):
            continue
        yield name, _order(positions)


def _order(positions: Sequence[int]) -> str:
    steps = list(pairwise(positions))
    if steps and all(a <= b for a, b in steps):
        return "oldest first (`order: asc`)"
    return "newest first (`type: feed`)" if steps and all(a >= b for a, b in steps) else "in no order"


def paginations(
    answer: Any, headers: Mapping[str, str], url: str, rows: int
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Ways in which the listing may go on, the likeliest first, each with what was seen. `headers`: names in lower
    case."""
    if links(headers.get("link", "")).get("next"):
        yield {"type": "link"}, 'the answer has a Link header with rel="next"'
    params = dict(parse_qsl(urlsplit(url).query))
    for name in headers:
        if name.startswith("x-next") and headers[name]:
            yield {"type": "cursor", "from": f"header.{name}", "param": name.removeprefix("x-next-")}, f"header {name}"
        if name == "next-page" and headers[name].startswith(("http://", "https://", "/")):
            yield {"type": "next_url", "from": "header.Next-Page"}, "the answer has a header Next-Page with a URL"
    if isinstance(answer, Mapping):
        yield from _named(answer, params, rows)


def _named(answer: Mapping[str, Any], params: Mapping[str, str], rows: int) -> Iterator[tuple[Mapping[str, Any], str]]:
    around = [(place, part) for place, part in _parts(answer)]
    more = next((f"$.{place}{name}" for place, part in around for name in MORE if part.get(name) is True), None)
    for place, part in around:
        for name in URLS:
            if isinstance(part.get(name), str) and part[name].startswith(("http://", "https://", "/", "?")):
                yield {"type": "next_url", "from": _path(place, name)}, f"`{place}{name}` is a URL"
        for name in TOKENS:
            if _scalar(part.get(name)) and not str(part[name]).startswith(("http", "/", "?")):
                for param in (*PARAMS.get(name, (name,)), "cursor", "page_token", "after"):
                    way = {"type": "cursor", "from": _path(place, name), "param": param}
                    if name in ENDLESS:
                        way["end"] = "empty"
                    yield {**way, "more": more} if more else way, f"`{place}{name}` is {str(part[name])[:40]!r}"
    if more:
        for param in AFTER_ID:
            yield {"type": "cursor", "from": "last.id", "param": param, "more": more}, f"`{more}` is true, and no token"
    yield from _counted(around, params, rows)


def _counted(
    around: Sequence[tuple[str, Mapping[str, Any]]], params: Mapping[str, str], rows: int
) -> Iterator[tuple[Mapping[str, Any], str]]:
    for place, part in around:
        for name in PAGES:
            if isinstance(part.get(name), int) and part[name] > 1:
                yield {"type": "page", "total_pages": _path(place, name)}, f"`{place}{name}` is {part[name]}"
        for name in TOTALS:
            if isinstance(part.get(name), int) and part[name] > rows:
                why, total = f"`{place}{name}` is {part[name]}, and the page has {rows} rows", _path(place, name)
                for param in ROWS:
                    yield {"type": "offset", "param": param, "total": total}, why
                yield {"type": "page"}, why
    if "page" in params:
        yield {"type": "page", "start": int(params["page"]) if params["page"].isdigit() else 1}, "`page` was asked for"


def _parts(answer: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in AROUND:
        part = answer if not name else answer.get(name)
        if isinstance(part, Mapping):
            yield f"{name}." if name else "", part
            for inner in ("next", "cursors"):
                if name and isinstance(part.get(inner), Mapping):
                    yield f"{name}.{inner}.", part[inner]


def _path(place: str, name: str) -> str:
    return f"$.{place}{name}" if name.isidentifier() else f'${"." + place.rstrip(".") if place else ""}["{name}"]'
