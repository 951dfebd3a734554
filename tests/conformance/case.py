"""One behaviour of an API: what it does, what a user of any tool would configure for it, and what must come of it.

A case plays on a real server. `play` sets the server up and yields once for each run of the tool; what it does after a
`yield` looks at the requests of that run, and changes the API before the next one. Nothing in a case knows which tool
is being run, but for `keys` and `above`, which only this project's configuration has.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Json, Listing, Request, Style

ENOUGH = 60  # requests of one case; a tool that makes more goes on for ever
TOKEN = "s3cret-token-of-the-case"
REFRESH_TOKEN = "refresh-token-of-the-login"

Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Kill:
    """Kill the tool when it makes its `at`-th request of this run."""

    at: int


@dataclass(frozen=True)
class Change:
    """From this run on the configuration is another: keys of Ask, or this project's keys of a source."""

    ask: Keys = field(default_factory=dict)
    above: Keys = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """Another verb of this project instead of a run."""

    argv: Sequence[str]


Run = Iterator[Kill | Change | Command | None]
Play = Callable[["Stage"], Run]


@dataclass(frozen=True)
class Since:
    """The field that grows, and the parameter that asks for what is new."""

    field: str = "updated_at"
    param: str = "since"
    kind: str = "timestamp"  # or integer; text: a time that is naive; token: what the API gave at the end of a run
    first: str | None = None
    format: str = ""
    """How the parameter is written; empty: RFC 3339, with or without parts of a second."""
    formats: Sequence[str] = ()
    """How records write it, where that differs."""
    lookback: int = 0  # seconds
    lag: int = 0  # seconds; where a tool has none, it reads that much again
    ascending: bool = False
    descending: bool = False
    timezone: str | None = None
    exclusive: bool = False
    """The API reads the lower bound as: later than."""
    until: str = ""
    """The parameter of the upper bound; it is asked a day at a time."""
    until_is: str = "exclusive"


@dataclass(frozen=True)
class Ask:
    """What the API's documentation says, in words that every tool has a translation for."""

    paging: Keys
    records: str = "data"
    """The member that holds the list; empty: the answer is the list."""
    path: str = "/events"
    method: str = "GET"
    params: Mapping[str, str] = field(default_factory=dict)
    since: Since | None = None
    auth: Mapping[str, str] = field(default_factory=dict)
    """One of: `bearer` (with `probe`, a path that must answer); `header` or `query` with `value`; `token_path` with
    `grant`, `client_id`, `value` and `refresh_token`; `login_path` with `send` and `value`; `sign`."""
    keep: tuple[str, str] | None = None
    """Only records whose field has this value are wanted."""
    read_timeout: float | None = None  # seconds
    fields: Sequence[str] = ("updated_at", "n")
    """Of the records, beside the id."""
    numeric: bool = False
    """Ids are numbers."""
    deletes: str = ""
    """Who says what is gone: `sweep`, the listing that no longer has it; `soft`, the record's member `gone`; `feed`, a
    list of ids at /deleted."""
    rate: int | None = None  # requests a second
    errors: Sequence[Keys] = ()
    """What answers mean that are not what they seem: `status`, or `member` of the body, and `do`."""
    format: str = "json"
    packed: bool = False
    """With gzip, without a word of it."""
    conditional: bool = False
    """Answers name their state (ETag), and the API says 304 where it has not changed."""
    job: bool = False
    """What is asked for is a report: the answer names it (`id`), `path`/ID says how far it is (`status`: DONE, FAILED),
    and then where its file is (`url`)."""
    parent: Keys = field(default_factory=dict)
    """The stream whose records are asked for one by one: `path`, `paging`; the path of this one has `{parent.id}`."""


@dataclass(frozen=True)
class Expect:
    rows: Sequence[str] | None = None
    """Ids of the rows that must be there in the end; None: it does not matter which."""
    ends: Sequence[bool | None] = ()
    """Whether each run must end as a success, None: it may; empty: all must."""
    once: bool = False
    """No row leaves this project twice; what other tools read again, a destination may merge."""
    never_twice: bool = False
    """No row leaves any tool twice."""
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Id → field → the JSON that must have arrived."""
    said: str = ""
    """What this project says of it, as a regular expression over what the command prints."""
    told: str = ""
    """What any tool may say instead of bringing rows that are missing from `full`."""
    full: Sequence[str] = ()
    """The rows of a tool that sees by itself that there is more."""
    dead_letters: int = 0
    deleted: Sequence[str] = ()
    """Ids of the rows that are said to be gone."""
    gone: Sequence[str] = ()
    """Ids of the rows that are gone, of which another tool may say so."""


@dataclass(frozen=True)
class Case:
    ids: str
    does: str
    must: str
    play: Play
    ask: Ask
    expect: Expect
    keys: Keys = field(default_factory=dict)
    above: Keys = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False
    """The API speaks TLS, under a certificate that the tool is told to trust."""
    stored: bool = False
    """What counts is what the store has, not what the log has."""
    peers: bool = True
    """Whether it means anything for other tools."""


class Stage:
    """The API, another host beside it, and what the run under way has asked."""

    def __init__(self, api: FakeApi, other: FakeApi) -> None:
        self.api, self.other = api, other
        self.asked: list[Request] = []
        """Of the last run."""
        self.times: list[float] = []
        """When each of them came, seconds of the monotonic clock."""
        self.waited = 0.0
        """Seconds: what the tool says it slept in the last run, or the longest pause between two requests."""
        self.complaints: list[str] = []
        api.budget = ENOUGH
        api.arrived = self._arrived
        self.on_request: Callable[[int], None] = lambda number: None

    def must(self, true: bool, complaint: str) -> None:
        """Of the run before: what it should not have asked, or should have."""
        if not true:
            self.complaints.append(complaint)

    def begin(self) -> None:
        self.asked, self.times = [], []

    def end(self, slept: float) -> None:
        pauses = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
        self.waited = max([slept, *pauses])

    def _arrived(self, request: Request) -> None:
        self.asked.append(request)
        self.times.append(time.monotonic())
        self.on_request(len(self.asked))

    def serve(self, rows: Sequence[Json | bytes], style: Style = "cursor", size: int = 2) -> Listing:
        """Serve `rows` at /events."""
        return self.api.serve("events", rows, style=style, page_size=size)

    @property
    def leaked(self) -> list[str]:
        """Requests at the other host that carry the token, wherever it stands."""
        return [r.target for r in self.other.requests if TOKEN in f"{r.target} {list(r.headers.values())} {r.body!r}"]

    @property
    def endless(self) -> bool:
        return len(self.api.requests) > ENOUGH


def json_answer(request: Request, body: Any, **headers: str) -> Answer:
    """Names of headers with underscores."""
    named = tuple((name.replace("_", "-").title(), value) for name, value in headers.items())
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(request, headers=(("Content-Type", "application/json"), *named), body=content)


def answered(stage: Stage, body: Any, *, path: str = "/events") -> None:
    """The same answer to every request."""
    stage.api.routes[path] = lambda request: json_answer(request, body)


# ---- words for cases

PAGING: Mapping[str, Keys] = {
    "link": {"style": "link"},
    "next_url": {"style": "next_url", "at": "next"},
    "cursor": {"style": "cursor", "at": "next_cursor", "param": "cursor", "more": "has_more"},
    "page": {"style": "page", "param": "page", "start": 1, "size_param": "limit", "size": 2},
    "offset": {"style": "offset", "param": "offset", "size_param": "limit", "size": 2},
    "none": {"style": "none"},
}
CURSOR = Ask(PAGING["cursor"])
LINK = Ask(PAGING["link"], records="")
NEXT_URL = Ask(PAGING["next_url"])
PAGE = Ask(PAGING["page"])
OFFSET = Ask(PAGING["offset"])
SINGLE = Ask(PAGING["none"])


def row(n: int, at: int | str | None = None, **more: object) -> dict[str, object]:
    """`r{n}`, last changed at second `at` of 2024 (n when absent)."""
    when = at if isinstance(at, str) else f"2024-01-01T00:00:{n if at is None else at:02}Z"
    return {"id": f"r{n}", "updated_at": when, "n": n, **more}


def rows(count: int, first: int = 1) -> list[dict[str, object]]:
    return [row(n) for n in range(first, first + count)]


def ids(*numbers: int) -> list[str]:
    return [f"r{n}" for n in numbers]


def up_to(count: int) -> list[str]:
    return ids(*range(1, count + 1))
