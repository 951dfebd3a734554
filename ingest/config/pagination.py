"""`paginate`: how a listing goes on, and when it ends.

Every type accepts only the ends that it can see: a page number has no token, a token has no total.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from ingest.config.part import Mistake, Part
from ingest.config.requests import Placed
from ingest.config.values import AnswerPath, Count, FirstToken, Flag, ObjectPath, TokenPath, Whole, plain_path

Natural = Annotated[Whole, Field(ge=0)]


def _fields(fields: Mapping[str, str]) -> Mapping[str, str]:
    for path in fields:
        plain_path(path)
    return fields


class Paginate(Part):
    ENDS: ClassVar[tuple[str, ...]] = ("auto",)

    max_pages: Count = 100_000
    """A listing that reaches this many pages is incomplete."""
    max_empty_pages: Natural = 20
    """Empty pages in a row that a listing may have before it is incomplete."""
    listing_cap: Count | None = None
    """Rows after which the API gives no more of one listing; then it begins again at the last cursor value."""
    end: Literal["auto", "no_token", "empty", "short", "total", "repeat"] = "auto"
    """What ends the listing."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.end not in self.ENDS:
            kind = getattr(self, "type", "none")
            yield "end", f"`end: {self.end}` does not go with `type: {kind}`; write one of {', '.join(self.ENDS)}"


class Turned(Paginate, Placed):
    """The next page is asked for by a value of its own."""

    PLACES = ("param", "header", "body", "in_path")

    in_path: Flag = False
    """Instead: in the path, where `{cursor}` stands in it, else as its last part."""

    def mistakes(self) -> Iterable[Mistake]:
        yield from super().mistakes()
        yield from self.misplaced()


class SinglePage(Paginate):
    """One request is the whole listing."""

    type: Literal["none"] = "none"


class LinkHeader(Paginate):
    """The Link header names the next page (RFC 8288)."""

    ENDS = ("auto", "no_token", "empty")

    type: Literal["link"]
    rel: str = "next"
    """The relation that leads on."""
    rebase: Flag = False
    """Whether only path and query of that URL count, behind base_url's host: for APIs that name an inner one."""


class NextUrl(Paginate):
    """The answer holds the URL of the next page."""

    ENDS = ("auto", "no_token", "empty")

    type: Literal["next_url"]
    from_: AnswerPath = Field(alias="from")
    """Where that URL stands: $.next, header.X-Next."""
    keep_params: tuple[str, ...] = ()
    """Parameters of the first request that the URL gets where it lacks them."""
    rebase: Flag = False
    """Whether only path and query of that URL count, behind base_url's host: for APIs that name an inner one."""


class CursorToken(Turned):
    """The answer holds a token that asks for the next page."""

    ENDS = ("auto", "no_token", "empty", "repeat")

    type: Literal["cursor"]
    from_: TokenPath = Field(alias="from")
    """Where the token stands: $.next, last.id, header.X-Next."""
    param: str | None = None
    """The query parameter that takes it."""
    more: AnswerPath | None = None
    """Whether there is another page, where the API says so: $.has_more."""
    first: FirstToken | None = None
    """The token of the first request; absent: none is sent."""


class PageNumber(Turned):
    """Pages are numbered."""

    ENDS = ("auto", "empty", "short", "total")

    type: Literal["page"]
    param: str | None = "page"
    """The query parameter that takes the number."""
    start: Whole = 1
    """The number of the first page."""
    size_param: str | None = None
    """The query parameter that takes `size`."""
    size: Count | None = None
    """Rows per page."""
    total_pages: AnswerPath | None = None
    """Where the API says how many pages there are."""

    def mistakes(self) -> Iterable[Mistake]:
        yield from super().mistakes()
        yield from _counted(self, "total_pages", self.total_pages is not None)


class Offset(Turned):
    """Pages begin at a row."""

    ENDS = ("auto", "empty", "short", "total")

    type: Literal["offset"]
    param: str | None = "offset"
    """The query parameter that takes the row."""
    size_param: str | None = None
    """The query parameter that takes `size`."""
    size: Count | None = None
    """Rows per page."""
    total: AnswerPath | None = None
    """Where the API says how many rows there are."""
    overlap: Natural = 0
    """Rows of the page before that every page begins with, which shows whether rows were removed meanwhile."""

    def mistakes(self) -> Iterable[Mistake]:
        yield from super().mistakes()
        yield from _counted(self, "total", self.total is not None)
        if self.size is not None and self.overlap >= self.size:
            yield "overlap", "must be less than `size`, or no page would go on"


class Keyset(Paginate):
    """The next page begins behind the last row, told by a few of its fields."""

    ENDS = ("auto", "empty", "short")

    type: Literal["keyset"]
    fields: Annotated[Mapping[str, str], AfterValidator(_fields)] = Field(min_length=1)
    """Field of the last row → the query parameter that takes it."""
    size_param: str | None = None
    """The query parameter that takes `size`."""
    size: Count | None = None
    """Rows per page."""

    def mistakes(self) -> Iterable[Mistake]:
        yield from super().mistakes()
        params = [*self.fields.values(), *filter(None, [self.size_param])]
        for name in {name for name in params if params.count(name) > 1}:
            yield "size_param" if name == self.size_param else "fields", f"`{name}` cannot carry two values"
        yield from _sized(self)


class ObjectToken(Paginate):
    """The answer holds an object, each of whose keys becomes a parameter of the next request."""

    ENDS = ("auto", "no_token", "empty")

    type: Literal["object"]
    from_: ObjectPath = Field(alias="from")
    """Where that object stands: $.continue."""


def _counted(part: PageNumber | Offset, total: str, declared: bool) -> Iterable[Mistake]:
    if part.end == "total" and not declared:
        yield "end", f"`end: total` needs `{total}`: where the API says it"
    yield from _sized(part)
    if part.size_param is not None and part.places == ["param"] and part.size_param == part.param:
        yield "size_param", f"`{part.param}` cannot carry both the place and the size"


def _sized(part: PageNumber | Offset | Keyset) -> Iterable[Mistake]:
    if part.end == "short" and part.size is None:
        yield "end", "`end: short` needs `size`: how many rows a full page has"
    if part.size_param is not None and part.size is None:
        yield "size_param", "`size_param` needs `size`: what to send"


AnyPaginate = Annotated[
    SinglePage | LinkHeader | NextUrl | CursorToken | PageNumber | Offset | Keyset | ObjectToken,
    Field(discriminator="type"),
]
