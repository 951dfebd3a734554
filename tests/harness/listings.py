"""What the fake API lists, and how each paging style says where the next page is. Pure: requests in, answers out.

| style | request | answer |
| --- | --- | --- |
| link | `?limit=&token=` | a bare array; `Link: <absolute URL>; rel="next"` |
| next_url | `?limit=&token=` | `{"data": […], "next": "absolute URL" or null}` |
| cursor | `?limit=&cursor=` | `{"data": […], "next_cursor": "…" or null, "has_more": bool}` |
| page | `?limit=&page=` (from 1) | `{"data": […], "page": n, "total_pages": n, "total": rows}` |
| offset | `?limit=&offset=` (from 0) | `{"data": […], "offset": n, "total": rows}` |
| object | `?limit=&token=&epoch=` | `{"data": […], "continue": {"token": "…", "epoch": 7}}`, without it at the end |
| keyset | `?limit=&after_time=&after_id=` | `{"data": […]}`: what comes behind, by `updated_at` and `id` |

Each is asked in the query, in headers, in a body (JSON, a form, or the variables of a GraphQL query), or in the path,
where the token is the last part: `/{name}/{token}`.

All take `since` (inclusive) and `until` (exclusive), compared with the record's `updated_at` as text. A record is sent
with the bytes it was given.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

Style = Literal["link", "next_url", "cursor", "page", "offset", "object", "keyset"]
TOKENS: tuple[Style, ...] = ("link", "next_url", "cursor", "object")
"""Styles that hand out tokens."""
Json = Mapping[str, Any]
TOKEN_PARAM: dict[Style, str] = {
    "link": "token",
    "next_url": "token",
    "cursor": "cursor",
    "page": "page",
    "offset": "offset",
    "object": "token",
    "keyset": "after_id",
}


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    """Path and query, as they were sent."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""
    reused: bool = False
    """It came on a connection that had one before."""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"null")

    @property
    def origin(self) -> str:
        return f"http://{self.headers['host']}"


@dataclass(frozen=True)
class Record:
    id: str
    updated_at: str
    raw: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()


def record(source: Json | bytes) -> Record:
    """From an object, or from its JSON text, whose bytes are kept."""
    raw = source if isinstance(source, bytes) else json.dumps(source, separators=(",", ":")).encode()
    parsed = json.loads(raw) if isinstance(source, bytes) else source
    return Record(str(parsed.get("id", "")), str(parsed.get("updated_at", "")), raw)


@dataclass(frozen=True)
class Answer:
    """One response before it is rendered; faults change it (tests/harness/faults.py)."""

    request: Request
    style: Style = "next_url"
    records: tuple[Record, ...] = ()
    start: int = 0
    limit: int = 1
    total: int = 0
    token: str | None = None
    """Of the next page."""
    link: str | None = None
    """URL of the next page, in place of the one made from `token`."""
    records_at: str = "data"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """In place of the records."""
    gzip: bool = False
    pause: float = 0.0
    """Seconds between the two halves of the body."""
    drip: float = 0.0
    """Seconds between two bytes of the body."""
    cut: float = 1.0
    """The share of the body after which the connection is closed; 0: it is reset before anything is sent."""

    def next_link(self) -> str | None:
        if self.link is not None:
            return self.link
        if self.token is None:
            return None
        query = {**self.request.query, TOKEN_PARAM[self.style]: self.token}
        return f"{self.request.origin}{self.request.path}?{urlencode(query)}"

    def rendered(self) -> tuple[tuple[tuple[str, str], ...], bytes]:
        """Headers and body."""
        if self.body is not None:
            return self.headers, self.body
        if self.link is not None and self.style not in ("link", "next_url"):
            raise ValueError(f"the style {self.style} has no link to replace")
        headers = (("content-type", "application/json"), *self.headers)
        rows = b"[" + b",".join(row.raw for row in self.records) + b"]"
        if self.style == "link":
            link = self.next_link()
            return (headers if link is None else (*headers, ("link", f'<{link}>; rel="next"'))), rows
        rest = json.dumps(self._envelope()).encode()[1:]
        comma = b"" if rest == b"}" else b","
        return headers, b'{"%s":%s%s%s' % (self.records_at.encode(), rows, comma, rest)

    def _envelope(self) -> Json:
        if self.style == "cursor":
            return {"next_cursor": self.token, "has_more": self.token is not None}
        if self.style == "page":
            pages = -(-self.total // self.limit)
            return {"page": self.start // self.limit + 1, "total_pages": pages, "total": self.total}
        if self.style == "object":
            return {} if self.token is None else {"continue": {"token": self.token, "epoch": 7}}
        if self.style == "keyset":
            return {}
        if self.style == "offset":
            return {"offset": self.start, "total": self.total}
        return {"next": self.next_link()}


@dataclass
class Listing:
    """A named list of records; tests change it between runs."""

    records: list[Record]
    style: Style
    page_size: int
    """Rows of a page when the request says nothing, and the most that one page has."""
    cap: int | None = None
    """Rows that one listing has at most, whatever there is."""
    reads: Callable[[Request], Mapping[str, Any]] = lambda request: request.query
    """Where its parameters are."""
    _places: dict[str, int] = field(default_factory=dict)
    """What the tokens that a fault put into answers stand for."""

    def add(self, *records: Json | bytes) -> None:
        self.records.extend(record(one) for one in records)

    def replace(self, records: Iterable[Json | bytes]) -> None:
        self.records = [record(one) for one in records]

    def remove(self, id: str) -> None:
        self.records = [one for one in self.records if one.id != id]

    def answer(self, request: Request) -> Answer:
        query = {name: str(value) for name, value in self.reads(request).items()}
        wanted = query.get("limit", "")
        limit = min(int(wanted), self.page_size) if wanted.isdigit() and int(wanted) > 0 else self.page_size
        start = self._start(query, limit)
        if start is None:
            return Answer(request, status=400, body=b'{"error":"unknown token"}')
        since, until = query.get("since"), query.get("until")
        rows = [
            one
            for one in self.records
            if (since is None or one.updated_at >= since) and (until is None or one.updated_at < until)
        ]
        rows = rows[: self.cap]
        if self.style == "keyset" and "after_id" in query:
            behind = (query["after_time"], query["after_id"])
            rows = [one for one in rows if (one.updated_at, one.id) > behind]
        end = start + limit
        token = f"t{end}" if end < len(rows) and self.style in TOKENS else None
        return Answer(request, self.style, tuple(rows[start:end]), start, limit, len(rows), token)

    def remember(self, told: Answer, meant: Answer) -> None:
        """A token that a fault invented leads to where the true one would have led the first time it was sent."""
        if told.token not in (None, meant.token):
            self._places.setdefault(told.token or "", meant.start + meant.limit)

    def _start(self, query: Mapping[str, str], limit: int) -> int | None:
        text = query.get(TOKEN_PARAM[self.style])
        if text is None or self.style == "keyset":
            return 0
        if self.style == "object" and query.get("epoch") != "7":
            return None
        if text in self._places:
            return self._places[text]
        digits = text.removeprefix("t") if self.style in TOKENS else text
        if not digits.isdigit() or (self.style == "page" and int(digits) < 1):
            return None
        return (int(digits) - 1) * limit if self.style == "page" else int(digits)
