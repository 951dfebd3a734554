"""Whether what an API names as its next page counts pages or rows: then rows that move slip from one to another."""

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from ingest.config.model import AnyPaginate, Offset, PageNumber
from ingest.sources.pagination.token import Token

DIGITS = 9  # a longer number is an id or a time


def is_counted(paginate: AnyPaginate, page: Token) -> bool:
    """Whether rows that move may slip by. `page`: of the listing, as it was asked for last."""
    if isinstance(paginate, Offset):
        return not paginate.overlap
    return isinstance(paginate, PageNumber) or page.counted


def counts(before: Mapping[str, str], after: Mapping[str, str], rows: int) -> bool:
    """Whether a value goes up by one, or by the `rows` of the page. One that was not there before began at 0 or 1."""
    return any(_steps(before.get(name), value, rows) for name, value in after.items())


def parts(url: str) -> Mapping[str, str]:
    """What may count in a URL: its parameters, and the pieces of its path."""
    split = urlsplit(url)
    pieces = {f"/{n}": piece for n, piece in enumerate(split.path.split("/"))}
    return {**pieces, **dict(parse_qsl(split.query, keep_blank_values=True))}


def _steps(before: str | None, after: str, rows: int) -> bool:
    if not _is_count(after) or not (before is None or _is_count(before)):
        return False
    step = int(after) - int(before or 0)
    return step == 1 or step == rows > 0 or (before is None and step in (2, rows + 1))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS
