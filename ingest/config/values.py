"""What one value of the file may be: durations, sizes, paths into answers, time zones, URLs, names of topics.

Each type reads the text of the file and says in plain words what it wants instead. Only text carries references; text
that holds one is looked at again when the reference is resolved.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, Strict, StringConstraints, WithJsonSchema

from ingest.config import placeholders
from ingest.config.record_schema import validator
from ingest.config.urls import database_address, log_address
from ingest.paths import Every, JsonPath, Root, parse

DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d|w)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LONGEST = 36_525 * SECONDS["d"]
SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(B|KB|MB|GB)")
RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*/\s*(s|m|h|d)")
BYTES = {"B": 1, "KB": 1000, "MB": 1000_000, "GB": 1000_000_000}
TOPIC_LENGTH = 180  # Kafka allows 249; `.dlq.` and the name of a consumer must still fit

HOST = re.compile(r"(?P<wild>\*\.)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\W_](?:[\w-]*\.)*[\w-]*)(?::(?P<port>\d{1,5}))?")
_OCTET = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = re.compile(rf"({_OCTET}\.){{3}}{_OCTET}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")
_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


def duration(value: object) -> float:
    """`500ms`, `5m`, `1h30m` → seconds. Zero needs no unit."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    text = value.strip() if isinstance(value, str) else ""
    if text and DURATION.sub("", text) == "":
        seconds = sum(float(n) * SECONDS[unit] for n, unit in DURATION.findall(text))
        if seconds > LONGEST:
            raise ValueError(f"{shown(value)} is more than 100 years: no database has a time for that")
        return seconds
    raise ValueError(f"{shown(value)} is no duration; write a number with a unit: 500ms, 30s, 5m, 12h, 7d")


def size(value: object) -> int:
    """`64MB` → bytes; KB = 1000 bytes."""
    match = SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{shown(value)} is no size; write a number with a unit: 500KB, 64MB")
    return int(float(match[1]) * BYTES[match[2]])


def rate(value: object) -> float:
    """`100/s`, `80/m`, `5000/h` → requests a second."""
    match = RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{shown(value)} is no rate; write so many a second, minute, hour or day: 100/s, 80/m, 5000/h")
    return float(match[1]) / SECONDS[match[2]]


def lookback(value: object) -> float | int:
    """A duration, or a whole number for an incremental field that is one."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("must not be negative")
        return value
    return duration(value)


def shown(value: object) -> str:
    if isinstance(value, Mapping | list | tuple):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    return "an empty value" if value in (None, "") else f"`{str(value)[:60]}`"


def _positive(value: float) -> float:
    if value < 0.001:
        raise ValueError("must be at least 1ms")
    return value


def _interval(value: float) -> float:
    if value < 0.01:
        raise ValueError("must be at least 10ms")
    return value


def _filled(value: int) -> int:
    if value < 1:
        raise ValueError("must be at least 1B")
    return value


def _reader(*roots: Root, several: bool = True) -> PlainValidator:
    """`several`: whether the path may reach more than one value."""

    def read(value: object) -> JsonPath:
        if isinstance(value, JsonPath):
            return value
        if not isinstance(value, str):
            raise ValueError("write a path: id, a.b, $.data")
        if "${" in value:
            raise ValueError("a path holds no reference")
        path = parse(value, roots=roots)
        if not several and any(isinstance(step, Every) for step in path.steps):
            raise ValueError(f"`{value}` reaches several values; one is needed here")
        return path

    return PlainValidator(read)


def _leads_out(path: JsonPath) -> JsonPath:
    if path.root is Root.BODY:
        raise ValueError(
            "write ^.NAME for what encloses the list, ^~ for the record's name in it, header.NAME or parent.FIELD"
        )
    return path


def _field(path: JsonPath) -> JsonPath:
    if not path.steps:
        raise ValueError("write a field of the record: a.b, lines[*].amount")
    return path


def _member(path: JsonPath) -> JsonPath:
    if not isinstance(_field(path).steps[-1], str):
        raise ValueError(f"`{path}` does not end with a name")
    return path


def _schema_file(text: str) -> str:
    """Its place is known by now: the loader puts the folder of the configuration in front."""
    if "${" in text:
        raise ValueError("a file that is read at load holds no reference")
    validator(Path(text))
    return text


def _constant(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a number that JSON has")
    if isinstance(value, Mapping | list):
        raise ValueError("must be text, a number, true, false or null")
    return value


def plain_path(value: object) -> JsonPath:
    """To one place: names and positions, nothing that fans out. Raises ValueError."""
    if isinstance(value, JsonPath):
        return value
    if not isinstance(value, str) or "${" in value:
        raise ValueError("write a path: a.b or $.a.b")
    path = parse(value)
    if not path.steps or any(isinstance(step, Every) for step in path.steps):
        raise ValueError(f"`{value}` is no single place; write a.b or $.a.b")
    return path


def _many(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


def _version(value: object) -> JsonPath | Literal["none"] | None:
    if value is None or isinstance(value, JsonPath):
        return value
    if value == "none":
        return "none"
    if not isinstance(value, str) or "${" in value:
        raise ValueError("write a path (updated_at), or `none` for records that never change")
    return parse(value, roots=(Root.OUTER, Root.NAME))


def _zone(value: object) -> tzinfo:
    if isinstance(value, tzinfo):
        return value
    try:
        return ZoneInfo(str(value))
    except (
        KeyError,
        ValueError,
        OSError,
    ) as exc:  # ZoneInfoNotFoundError is a KeyError; a directory's name, an OSError
        raise ValueError(f"unknown time zone {shown(value)}{_zone_meant(str(value))}") from exc


def _zone_meant(text: str) -> str:
    known = {name.lower(): name for name in available_timezones()}
    places = {name.rpartition("/")[2].lower(): name for name in sorted(available_timezones(), reverse=True)}
    close = [
        found for names in (known, places) for found in difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.8)
    ]
    meant = close and (known.get(close[0]) or places[close[0]])
    return f", did you mean `{meant}`?" if meant else "; write an IANA name: UTC, Europe/Berlin"


def unless_reference(check: Callable[[str], object]) -> AfterValidator:
    """Text that holds a reference is checked when the reference is resolved."""

    def checked(text: str) -> str:
        if "${" not in text:
            check(text)
        return text

    return AfterValidator(checked)


def _absolute_url(text: str, example: str, users: str) -> None:
    """Absolute, http or https, without a user. Raises ValueError, which shows nothing of the URL."""
    try:
        parts = urlsplit(text)
        absolute = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        absolute = False
    if not absolute or re.search(r"\s", text) or _CONTROL.search(text):
        raise ValueError(f"must be an absolute http or https URL: {example}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"holds a user name or password; they belong in {users}")


def base_url(text: str) -> str:
    """Absolute, nothing behind the path. Raises ValueError, which shows nothing of the URL."""
    _absolute_url(text, "https://api.example.com/v1", "`auth`")
    if "?" in text:
        raise ValueError("holds a query; its parameters belong in `params`")
    if "#" in text:
        raise ValueError("holds a fragment (#…), which is never sent")
    return text


def token_url(text: str) -> str:
    """Absolute; a query may be part of it. Raises ValueError, which shows nothing of the URL."""
    _absolute_url(text, "https://login.example.com/oauth2/token", "`username` and `password`")
    return text


def host(text: str) -> str:
    """HOST, HOST:PORT, or one of them behind `*.`. Raises ValueError."""
    match = HOST.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text[:60]}` is no host; write HOST, HOST:PORT or *.example.com")
    name = match["host"]
    if re.fullmatch(r"(0x[0-9a-f]*|[0-9]+)", name.rpartition(".")[2], re.IGNORECASE) and not _IPV4.fullmatch(name):
        raise ValueError(f"`{text}` would be read as an IP address; write it as 192.0.2.1")
    if match["wild"] and (_IPV4.fullmatch(name) or name.startswith("[") or "." not in name):
        raise ValueError(f"`{text}` is too wide; a wildcard stands before a domain: *.example.com")
    if match["port"] and not 0 < int(match["port"]) < 65536:
        raise ValueError(f"`{text}` has no port between 1 and 65535")
    return text


def _request_path(text: str) -> str:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise ValueError("is a whole URL; write what follows base_url: /charges")
    if "#" in text:
        raise ValueError("holds a fragment (#…), which is never sent")
    if re.search(r"\s", re.sub(r"\$\{[^}]*\}", "", text)) or _CONTROL.search(text):
        raise ValueError("holds white space; write it as %20")
    return placeholders.check(text)


def token(text: str) -> str:
    """The name of a header or a cookie."""
    if not _TOKEN.fullmatch(text):
        raise ValueError(f"`{text}` is no name of a header: letters, digits and -")
    return text


def one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("holds a line break or another control character")
    return text


def _by_reference(text: str) -> str:
    if "${" not in text:
        raise ValueError("secrets only by reference: write ${env:NAME} or ${file:/run/secrets/name}")
    return text


def _param(value: object) -> object:
    for item in value if isinstance(value, list) else [value]:
        if item is None or isinstance(item, Mapping | list):
            raise ValueError("must be text, a number, true or false, or a list of them")
        if isinstance(item, str):
            placeholders.check(item)
    return value


def topic(text: str) -> str:
    filled = text.replace("{source}", "s").replace("{stream}", "s")
    if "${" in text:
        raise ValueError("a topic holds no reference: everyone who reads it must know its name")
    if "{" in filled or "}" in filled:
        raise ValueError("a topic knows the placeholders {source} and {stream} only")
    if not _TOPIC.fullmatch(filled) or filled in (".", ".."):
        raise ValueError(f"`{text}` is no name of a topic: letters, digits, `.`, `_` and `-`")
    if ".dlq." in text:
        raise ValueError("`.dlq.` in a topic is kept for dead letters")
    return text


def _topic_pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise ValueError(f"`{text}` matches no topic; write a topic or a glob: billing.charges, billing.*")
    return text


def time_format(text: str) -> str:
    """`rfc3339`, `unix`, `unix_ms` or a pattern of strptime. Raises ValueError."""
    if text in ("rfc3339", "unix", "unix_ms"):
        return text
    if "%" not in text:
        raise ValueError(f'`{text}` is no time format; write rfc3339, unix, unix_ms or a pattern such as "%Y-%m-%d"')
    try:
        datetime.strptime(datetime(2024, 1, 2, 3, 4, 5, 6, UTC).strftime(text), text)
    except (ValueError, IndexError, re.error) as exc:
        raise ValueError(f"strptime does not know the pattern `{text}`: {exc}") from exc
    return text


def _listen(text: str) -> str:
    match = _LISTEN.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ValueError(f"`{text}` is no address to listen on; write HOST:PORT: 0.0.0.0:9090")
    return text


def _text(pattern: str = "", **more: object) -> WithJsonSchema:
    return WithJsonSchema({"type": "string"} | ({"pattern": pattern} if pattern else {}) | more)


DURATION_PATTERN = r"^(0|(\d+(\.\d+)?(ms|s|m|h|d|w))+)$"
RATE_PATTERN = r"^\d+(\.\d+)?\s*/\s*(s|m|h|d)$"
SIZE_PATTERN = r"^\d+(\.\d+)?\s*(B|KB|MB|GB)$"
_DURATION_SCHEMA = {
    "anyOf": [{"type": "string", "pattern": DURATION_PATTERN, "examples": ["500ms", "5m", "7d"]}, {"const": 0}]
}
_SCALARS: list[dict[str, Any]] = [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]

Duration = Annotated[float, PlainValidator(duration), WithJsonSchema(_DURATION_SCHEMA)]
Wait = Annotated[Duration, AfterValidator(_positive)]
Interval = Annotated[Duration, AfterValidator(_interval)]
Lookback = Annotated[
    float | int,
    PlainValidator(lookback),
    WithJsonSchema({"anyOf": [*_DURATION_SCHEMA["anyOf"][:1], {"type": "integer", "minimum": 0}]}),
]
Size = Annotated[int, PlainValidator(size), AfterValidator(_filled), _text(SIZE_PATTERN, examples=["64MB"])]
Rate = Annotated[float, PlainValidator(rate), _text(RATE_PATTERN, examples=["100/s", "80/m", "5000/h"])]
Whole = Annotated[int, Strict()]
Count = Annotated[int, Strict(), Field(ge=1)]
Flag = Annotated[bool, Strict()]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64)]

ObjectPath = Annotated[JsonPath, _reader(several=False), _text()]
RecordPath = Annotated[JsonPath, _reader(Root.OUTER, Root.NAME), _text()]
"""Of a field: `a.b` in the record, `^.a` around it."""
ListPath = Annotated[JsonPath, _reader(), _text()]
OuterPath = Annotated[
    JsonPath,
    _reader(Root.OUTER, Root.NAME, Root.HEADER, Root.PARENT, several=False),
    AfterValidator(_leads_out),
    _text(),
]
AnswerPath = Annotated[JsonPath, _reader(Root.HEADER, several=False), _text()]
SessionPath = Annotated[JsonPath, _reader(Root.HEADER, Root.COOKIE, several=False), _text()]
TokenPath = Annotated[JsonPath, _reader(Root.HEADER, Root.LAST, several=False), _text()]
IdPaths = Annotated[
    tuple[RecordPath, ...],
    BeforeValidator(_many),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Paths = Annotated[
    tuple[ListPath, ...],
    BeforeValidator(_many),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
FieldPath = Annotated[JsonPath, _reader(), AfterValidator(_field), _text()]
MemberPath = Annotated[JsonPath, _reader(), AfterValidator(_member), _text()]
NewName = Annotated[str, StringConstraints(min_length=1)]
SchemaFile = Annotated[str, AfterValidator(_schema_file), _text(examples=["charge.schema.json"])]
Constant = Annotated[
    str | int | float | Decimal | bool | None,
    PlainValidator(_constant),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]
VersionPath = Annotated[
    JsonPath | Literal["none"] | None,
    PlainValidator(_version),
    WithJsonSchema({"type": ["string", "null"], "examples": ["updated_at", "none"]}),
]
Zone = Annotated[tzinfo, PlainValidator(_zone), _text(examples=["UTC", "Europe/Berlin"])]
TimeFormat = Annotated[str, AfterValidator(time_format)]

BaseUrl = Annotated[str, unless_reference(base_url)]
TokenUrl = Annotated[str, unless_reference(token_url)]
Host = Annotated[str, unless_reference(host), _text(examples=["files.example.com", "*.example.com"])]
RequestPath = Annotated[str, AfterValidator(_request_path)]
HeaderName = Annotated[str, AfterValidator(token)]
SCALAR_SCHEMA = WithJsonSchema({"type": ["string", "number", "boolean"]})  # the loader takes them as they are spelt
HeaderValue = Annotated[str, AfterValidator(one_line), AfterValidator(placeholders.check), SCALAR_SCHEMA]
FirstToken = Annotated[str, SCALAR_SCHEMA]
FirstBound = Annotated[str | int, WithJsonSchema({"type": ["string", "number"]})]
TokenText = Annotated[str, unless_reference(token)]
Secret = Annotated[str, AfterValidator(_by_reference), _text(r"\$\{(env|file):", examples=["${env:API_TOKEN}"])]
Scalar = str | int | float | bool
Param = Annotated[
    Scalar | list[Scalar],
    PlainValidator(_param),
    WithJsonSchema({"anyOf": [*_SCALARS, {"type": "array", "items": {"anyOf": _SCALARS}}]}),
]
Params = Mapping[str, Param]
Topic = Annotated[str, AfterValidator(topic)]
TopicPattern = Annotated[str, AfterValidator(_topic_pattern)]
LogUrl = Annotated[str, unless_reference(log_address)]
DatabaseUrl = Annotated[str, unless_reference(database_address)]
Listen = Annotated[str, unless_reference(_listen)]
