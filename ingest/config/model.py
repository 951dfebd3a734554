"""The configuration as the rest of the program sees it: typed, frozen, every default filled in.

Names are the keys of the file. Durations are seconds, sizes bytes. Strings may still hold `${env:…}` and `${file:…}`:
`references.resolve` replaces them in the part that is used, when it is used. What is not here is not built, and the loader
refuses it by name.
"""

import re
from collections.abc import Mapping
from datetime import tzinfo
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from ingest.paths import JsonPath, Root, parse

DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB)")
BYTES = {"B": 1, "KB": 1000, "MB": 1000_000, "GB": 1000_000_000}


def duration(value: object) -> object:
    """`500ms`, `5m`, `1h30m` → seconds. Zero needs no unit."""
    if value == 0:
        return 0.0
    if isinstance(value, str) and value.strip() == "0":
        return 0.0
    if isinstance(value, str) and DURATION.sub("", value.strip()) == "" and value.strip():
        return sum(float(n) * SECONDS[unit] for n, unit in DURATION.findall(value))
    raise ValueError(f"{value!r} is no duration; write a number with a unit: 500ms, 30s, 5m, 12h, 7d")


def size(value: object) -> object:
    """`64MB` → bytes; KB = 1000 bytes."""
    match = SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no size; write a number with a unit: 500KB, 64MB")
    return int(float(match[1]) * BYTES[match[2]])


def _path(*roots: Root) -> Any:
    def read(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError("write a path: id, a.b, $.data")
        return parse(value, roots=roots)

    return BeforeValidator(read)


def _many(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _zone(value: object) -> object:
    try:
        return ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError) as exc:
        raise ValueError(f"unknown timezone {value!r}; write one of the IANA names: UTC, Europe/Berlin") from exc


Duration = Annotated[float, BeforeValidator(duration), Field(json_schema_extra={"type": "string", "examples": ["500ms", "5m", "7d"]})]
Size = Annotated[int, BeforeValidator(size), Field(json_schema_extra={"type": "string", "examples": ["64MB"]})]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64)]
TextPath = Field(json_schema_extra={"type": "string"})
RecordPath = Annotated[JsonPath, _path(), TextPath]
AnswerPath = Annotated[JsonPath, _path(Root.HEADER), TextPath]
TokenPath = Annotated[JsonPath, _path(Root.HEADER, Root.LAST), TextPath]
Zone = Annotated[tzinfo, BeforeValidator(_zone), TextPath]
Scalar = str | int | float | bool
Params = Mapping[str, Scalar | list[Scalar]]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


# ---------------------------------------------------------------- a source


class Basic(Part):
    user: str
    password: str


class ApiKey(Part):
    place: Literal["header", "query", "cookie"] = Field("header", alias="in")
    name: str
    value: str


class Auth(Part):
    """At most one of them."""

    bearer: str | None = None
    basic: Basic | None = None
    api_key: ApiKey | None = None

    @model_validator(mode="after")
    def _one(self) -> "Auth":
        if sum(x is not None for x in (self.bearer, self.basic, self.api_key)) != 1:
            raise ValueError("name exactly one of bearer, basic, api_key")
        return self


class Timeout(Part):
    connect: Duration = 10.0
    read: Duration = 60.0
    total: Duration = 300.0


class Retry(Part):
    attempts: int = Field(8, ge=1)
    base: Duration = 0.5
    cap: Duration = 60.0
    budget: Duration = 1200.0
    max_wait: Duration = 3600.0
    statuses: frozenset[int] = frozenset({408, 425, 429, 500, 502, 503, 504})
    wait_headers: tuple[str, ...] = ("Retry-After", "X-RateLimit-Reset", "RateLimit-Reset")


class Limits(Part):
    max_body: Size = 64_000_000


class Paginate(Part):
    max_pages: int = Field(100_000, ge=1)
    max_empty_pages: int = Field(20, ge=0)
    end: Literal["auto", "no_token", "empty", "short", "total", "repeat"] = "auto"


class SinglePage(Paginate):
    type: Literal["none"] = "none"


class LinkHeader(Paginate):
    type: Literal["link"]
    rel: str = "next"


class NextUrl(Paginate):
    type: Literal["next_url"]
    from_: AnswerPath = Field(alias="from")


class CursorToken(Paginate):
    type: Literal["cursor"]
    from_: TokenPath = Field(alias="from")
    param: str
    more: AnswerPath | None = None
    first: str | None = None


class PageNumber(Paginate):
    type: Literal["page"]
    param: str = "page"
    start: int = 1
    size_param: str | None = None
    size: int | None = Field(None, ge=1)
    total_pages: AnswerPath | None = None


class Offset(Paginate):
    type: Literal["offset"]
    param: str = "offset"
    size_param: str | None = None
    size: int | None = Field(None, ge=1)
    total: AnswerPath | None = None


AnyPaginate = Annotated[SinglePage | LinkHeader | NextUrl | CursorToken | PageNumber | Offset, Field(discriminator="type")]


class Since(Part):
    """Where the lower bound goes, and what it is on the first run ("unfiltered": none)."""

    param: str
    first: str | int | None = None


class Incremental(Part):
    type: Literal["timestamp", "integer", "feed"]
    field: RecordPath
    since: Since | None = None
    format: str = "rfc3339"
    parse: tuple[str, ...] = ()
    timezone: Zone | None = None
    lag: Duration = 0.0
    lookback: Duration | int = 0.0  # seconds; for integers a whole number
    order: Literal["asc", "desc", "none"] = "none"
    on_null: Literal["emit", "skip", "fail"] = "emit"
    on_future: Literal["clamp", "fail"] = "clamp"


class Stream(Part):
    path: str
    params: Params = {}
    headers: Mapping[str, str] = {}
    auth: Auth | None = None  # instead of the source's
    timeout: Timeout | None = None
    retry: Retry | None = None
    records: RecordPath
    id: Annotated[tuple[RecordPath, ...], BeforeValidator(_many)] = ()
    version: RecordPath | Literal["none"] | None = None  # None: hash of the record
    seen_limit: int = Field(100_000, ge=0)
    key: RecordPath | None = None
    occurred_at: RecordPath | None = None
    topic: str = "{source}.{stream}"
    paginate: AnyPaginate = SinglePage()
    incremental: Incremental | None = None
    every: Duration | None = None


class Source(Part):
    base_url: str
    headers: Mapping[str, str] = {}
    params: Params = {}
    auth: Auth | None = None
    limits: Limits = Limits()
    timeout: Timeout = Timeout()
    retry: Retry = Retry()
    streams: Mapping[Name, Stream] = Field(min_length=1)


# ---------------------------------------------------------------- the rest


class BatchLimits(Part):
    records: int = Field(5000, ge=1)
    bytes: Size = 8_000_000
    wait: Duration = 0.5


class StoreConsumer(Part):
    kind: Literal["store"]
    topics: tuple[str, ...] = Field(min_length=1)
    batch: BatchLimits = BatchLimits()


class TopicOverride(Part):
    partitions: int | None = Field(None, ge=1)
    replication: int | None = Field(None, ge=1)
    min_insync: int | None = Field(None, ge=1)
    retention: Duration | None = None
    max_message: Size | None = None


class Topics(Part):
    create: bool = True
    partitions: int = Field(12, ge=1)
    replication: int = Field(3, ge=1)
    min_insync: int = Field(2, ge=1)
    retention: Duration = 604_800.0
    max_message: Size = 1_000_000
    durability: Literal["production", "relaxed"] = "production"
    overrides: Mapping[str, TopicOverride] = {}


class Ops(Part):
    listen: str = "127.0.0.1:9090"


class Config(Part):
    version: Literal[1]
    log: str | None = None
    store: str | None = None
    state: str | None = None
    topics: Topics = Topics()
    sources: Mapping[Name, Source] = {}
    consumers: Mapping[Name, StoreConsumer] = {}
    ops: Ops | None = None
