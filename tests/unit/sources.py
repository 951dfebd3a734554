"""A stream of the fake API, configured as a user would, and short words for what tests do with it."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ingest.config.loader import Loaded, parse
from ingest.config.model import Source, Stream
from ingest.config.references import files, resolve
from ingest.redaction import Redactor
from ingest.sources import Notice, Page, SourceRecord
from ingest.sources.auth import State
from ingest.sources.auth.keyring import Reading, open_keyring
from ingest.sources.clock import SYSTEM, Clock
from ingest.sources.family import Family, Listed, Parts
from ingest.sources.gate import Gate
from ingest.sources.transport import open_transport
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request, Style

Keys = Mapping[str, Any]
NONE: Keys = {}
QUICK = {"attempts": 3, "base": "1ms", "cap": "2ms"}
WHERE = "ingest.yaml:7:9"

PAGING: Mapping[Style, Mapping[str, Any]] = {
    "link": {"records": "$", "paginate": "link"},
    "next_url": {"paginate": {"type": "next_url", "from": "$.next"}},
    "cursor": {"paginate": {"type": "cursor", "from": "$.next_cursor", "param": "cursor", "more": "$.has_more"}},
    "page": {"paginate": {"type": "page", "total_pages": "$.total_pages"}},
    "offset": {"paginate": {"type": "offset", "total": "$.total"}},
    "object": {"paginate": {"type": "object", "from": "$.continue"}},
    "keyset": {"paginate": {"type": "keyset", "fields": {"updated_at": "after_time", "id": "after_id"}}},
}


def load(url: str, keys: Keys = NONE, above: Keys = NONE) -> Loaded:
    """The file with one source, `api`, and one stream, `events`; `above` are keys of the source, among them `streams`
    beside it."""
    stream = {"path": "/events", "records": "$.data", "id": "id", **keys}
    source = {"base_url": url, "retry": QUICK, **above, "streams": {**above.get("streams", {}), "events": stream}}
    return parse(json.dumps({"version": 1, "sources": {"api": source}}))


def configured(
    url: str = "http://api.example.com",
    keys: Keys = NONE,
    above: Keys = NONE,
    redactor: Redactor | None = None,
) -> tuple[Source, Stream]:
    """Both with their references resolved."""
    source = resolve(load(url, keys, above).config.sources["api"], redactor or Redactor())
    return source, source.streams["events"]


def reading(url: str, keys: Keys = NONE, above: Keys = NONE) -> Reading:
    """How to read it again when a file has changed that it refers to."""
    part = load(url, keys, above).config.sources["api"]
    return Reading(files(part), lambda secrets: resolve(part, secrets))


@asynccontextmanager
async def opened(
    url: str,
    keys: Keys = NONE,
    above: Keys = NONE,
    *,
    clock: Clock = SYSTEM,
    redactor: Redactor | None = None,
    state: State | None = None,
) -> AsyncIterator[Listed]:
    async with opened_twice(url, keys, above, clock=clock, redactor=redactor, state=state) as (source, _):
        yield source


@asynccontextmanager
async def opened_twice(
    url: str,
    keys: Keys = NONE,
    above: Keys = NONE,
    *,
    clock: Clock = SYSTEM,
    redactor: Redactor | None = None,
    state: State | None = None,
) -> AsyncIterator[tuple[Listed, Listed]]:
    """Two streams of one source that are configured alike."""
    async with opened_family(url, keys, above, clock=clock, redactor=redactor, state=state) as family:
        yield family.stream("events"), family.stream("events")


@asynccontextmanager
async def opened_family(
    url: str,
    keys: Keys = NONE,
    above: Keys = NONE,
    *,
    clock: Clock = SYSTEM,
    redactor: Redactor | None = None,
    state: State | None = None,
) -> AsyncIterator[Family]:
    redactor = redactor or Redactor()
    source, _ = configured(url, keys, above, redactor)
    gate = Gate("api", source.limits, clock=clock)
    async with (
        open_transport(source, redactor, clock, gate=gate) as transport,
        open_keyring("api", source, transport, redactor, state, reading(url, keys, above)) as keyring,
    ):
        yield Family(Parts(source, transport, keyring, redactor, lambda path: WHERE))


@asynccontextmanager
async def both_opened(url: str, keys: Keys, above: Keys) -> AsyncIterator[tuple[Listed, Listed]]:
    """The parents of `events` as a stream of their own, and `events`."""
    async with opened_family(url, keys, above) as family:
        parent = family.source.streams["events"].parent
        assert parent is not None
        yield family.stream(parent.stream), family.stream("events")


class Watching:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.requests = 0
        self.retries: list[tuple[int, float, str]] = []
        self.waits: list[float] = []
        self.reasons: list[str] = []  # of the waits
        self.notices: list[Notice] = []
        self.restarts: list[str] = []

    def requested(self, seconds: float) -> None:
        self.requests += 1

    def retrying(self, attempt: int, delay: float, reason: str) -> None:
        self.retries.append((attempt, delay, reason))

    def waiting(self, delay: float, reason: str) -> None:
        self.waits.append(delay)
        self.reasons.append(reason)

    def noticed(self, notice: Notice) -> None:
        self.notices.append(notice)

    def restarted(self, reason: str) -> None:
        self.restarts.append(reason)


class Timeless:
    """A clock on which sleeping takes no time but moves the hands."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self.wall, self.hands = wall, 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.hands += seconds

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.wall + self.hands, lambda: self.hands, self.sleep)


async def read(
    source: Listed, cursor: bytes | None = None, watch: Watching | None = None, *, pages: int | None = None
) -> list[Page]:
    """The pages of a listing: all of them, or the first so many."""
    found: list[Page] = []
    generator = source.pages(cursor, watch or Watching())
    try:
        async for page in generator:
            found.append(page)
            if len(found) == pages:
                break
    finally:
        await generator.aclose()
    return found


async def read_until_it_fails(source: Listed, cursor: bytes | None = None) -> tuple[list[Page], Exception]:
    """What came before the error, and the error."""
    found: list[Page] = []
    try:
        async for page in source.pages(cursor, Watching()):
            found.append(page)
    except Exception as exc:
        return found, exc
    raise AssertionError("the listing did not fail")


async def list_all(url: str, keys: Keys = NONE, above: Keys = NONE) -> list[Page]:
    async with opened(url, keys, above) as source:
        return await read(source)


async def failure(
    url: str,
    keys: Keys = NONE,
    above: Keys = NONE,
) -> tuple[list[Page], Exception]:
    async with opened(url, keys, above) as source:
        return await read_until_it_fails(source)


def records(pages: Iterable[Page]) -> list[SourceRecord]:
    return [record for page in pages for record in page.records]


def ids(pages: Iterable[Page]) -> list[str]:
    return [record.id for record in records(pages)]


def cursor(page: Page) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(page.cursor)
    return saved


Reply = Callable[[Request], Answer]


def reply(body: bytes | str, status: int = 200, **headers: str) -> Reply:
    """An answer, byte for byte; names of headers with underscores."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    content = body.encode() if isinstance(body, str) else body
    return lambda request: Answer(request, status=status, headers=named, body=content)


def page(*numbers: int, **rest: Any) -> Reply:
    """Rows with these ids, and what stands beside them."""
    return reply(json.dumps({"data": [{"id": number} for number in numbers], **rest}))


def say(api: FakeApi, replies: Sequence[Reply], path: str = "/events") -> None:
    """The next requests for `path` get these answers, the last one again and again."""
    left = list(replies)
    api.routes[path] = lambda request: (left.pop(0) if len(left) > 1 else left[0])(request)


def targets(api: FakeApi) -> list[str]:
    return [request.target for request in api.requests]
