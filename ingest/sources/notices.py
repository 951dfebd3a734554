"""What is unexpected about an answer, and loses nothing."""

from collections.abc import Iterator, Sequence

from ingest.config.model import AnyPaginate, Offset, PageNumber, Stream
from ingest.config.slipping import WHAT, remedy
from ingest.sources import Notice, SourceRecord
from ingest.sources.cursor import Listing
from ingest.sources.pagination import Received, unread_pages

SEVERAL = 4  # records, of which half having the id of another means something
DISORDER = Notice(
    "disorder", "a record came before its turn, in spite of `order: asc`: the mark moves at the end of the listing"
)
EXPIRED = Notice("expired", "the cursor is older than `expires_after`: everything is read again")
FOREIGN = Notice(
    "foreign", "the saved cursor is of another `incremental`, and says nothing to this one: everything is read again"
)


def slipping(stream: Stream) -> Notice:
    return Notice("slipping", f"{WHAT}; {remedy(stream)}")


def since_ignored(count: int, since: str) -> Notice:
    why = f"{count} of the first page's records lie before the lower bound that was sent ({since})"
    return Notice("since_ignored", f"{why}: does the API know `since`? Every run reads them, and publishes them again")


def repeated_ids(stream: Stream, records: Sequence[SourceRecord]) -> Notice | None:
    """Of the first page. An API's own versions may have one id many times; hashes of records should not."""
    count = len({record.id for record in records}) if stream.id and stream.version.path is None else len(records)
    if len(records) < SEVERAL or count * 2 > len(records):
        return None
    names = ", ".join(map(str, stream.id))
    what = f"the {len(records)} records of the first page have {count} ids"
    return Notice("repeated_ids", f"{what}: does `id` ({names}) tell records apart? Else each is a version of another")


def mended(count: int) -> Notice:
    held = "held NaN or bytes that are not UTF-8, and were mended: see `decode`"
    return Notice("repaired", f"{count} of a page's records {held}")


def nonconforming(warnings: Sequence[str]) -> Notice:
    return Notice("schema", f"{len(warnings)} of a page's records are not what `schema` says; the first, {warnings[0]}")


def of_page(paginate: AnyPaginate, listing: Listing, received: Received | None, stop: str | None) -> Iterator[Notice]:
    """`listing`: as it stood when the page was asked for. None was received: no content. `stop`: why it ended."""
    if received is None:
        if listing.n:
            yield Notice("no_content", "the listing ended with an answer without content, where more was asked for")
        return
    rows, before = len(received.records), listing.page.rows
    if stop is not None and not listing.n and _looks_for_more(paginate) and (sign := unread_pages(received)):
        wrong = "set `paginate`" if paginate.type == "none" else f"`paginate` found {stop}"
        yield Notice("looks_paginated", f"one page was read, but {sign}: there may be more; {wrong}")
    if listing.page.moved and isinstance(paginate, PageNumber | Offset) and not listing.page.before:
        yield Notice("total_moved", "the declared total changed while it was listed: rows may have been skipped")
    size = getattr(paginate, "size", None)
    if size is not None and paginate.end == "short" and not listing.n and 0 < rows < size:
        yield Notice("capped", f"the first page has {rows} rows although {size} were asked for")
    again = stop is not None and paginate.type == "keyset"  # the last row of the page before, and nothing behind it
    if size is not None and listing.n == 1 and rows and before < size and not again:
        yield Notice("capped", f"the API gives {before} rows a page although {size} were asked for")


def doubted(listing: Listing, *, ended: bool) -> Iterator[Notice]:
    """`listing`: behind the page; `ended`: with it."""
    if ended and listing.sweep and listing.doubt is not None:
        yield Notice(
            "sweep_in_doubt", f"no delete is concluded from this sweep, and the next run sweeps: {listing.doubt}"
        )


def _looks_for_more(paginate: AnyPaginate) -> bool:
    """Whether a first page is the only one where nothing leads on, so that another sign of more is to be believed."""
    if paginate.type == "cursor":
        return paginate.more is None
    return paginate.type in ("none", "link", "next_url", "object")
