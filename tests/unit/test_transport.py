"""What an API may do to a request, and what we make of it: try again, wait, give up or refuse, and always say why."""

import asyncio
import gzip
import itertools
import json
import socket
import struct
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

import httpx
import pytest
import pytest_asyncio

from checkpoints import StreamId
from ingest.errors import RateLimited, SourceChanged, SourceRefused, SourceUnavailable
from ingest.redaction import Redactor
from ingest.report import Outcome, Report, exit_code
from ingest.sources.auth.keyring import keyring
from ingest.sources.exchange import Exchange
from ingest.sources.hosts import Hosts
from ingest.sources.http import HttpSource
from ingest.sources.transport import Transport
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.listings import Answer
from tests.unit.sources import (
    PAGING,
    WHERE,
    Timeless,
    Watching,
    configured,
    failure,
    ids,
    list_all,
    opened,
    read,
    read_until_it_fails,
    reply,
    say,
    targets,
)

NEXT_URL = PAGING["next_url"]
ROWS = [row["id"] for row in numbered(6)]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        running.serve("events", numbered(6), page_size=2)
        yield running


def deaf(answer: Answer) -> Answer:
    """The header, and nothing after it for longer than a test lasts."""
    return replace(answer, pause=600.0)


# ---- what is tried again

PASSING = {
    "truncated": faults.truncated,
    "html": faults.html,
    "half of the JSON": lambda answer: replace(answer, body=answer.rendered()[1][:-20], records=()),
    "no gzip": lambda answer: replace(answer, headers=(("content-encoding", "gzip"),)),
    "half of the deflate": lambda answer: replace(
        answer, body=zlib.compress(answer.rendered()[1])[:-9], headers=(("content-encoding", "deflate"),)
    ),
    "packed without end": lambda answer: replace(answer, headers=(("content-encoding", "gzip,gzip,gzip,gzip"),)),
    "half of the gzip": lambda answer: replace(
        answer, body=gzip.compress(answer.rendered()[1])[:-9], headers=(("content-encoding", "gzip"),)
    ),
    **{str(code): faults.status(code) for code in (408, 425, 429, 500, 502, 503, 504)},
}


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("page", [0, 1, 2])
async def test_a_failure_that_passes_is_tried_again_and_nothing_is_lost(api: FakeApi, name: str, page: int) -> None:
    api.misbehave([*[faults.ok] * page, PASSING[name], PASSING[name]])
    watch = Watching()
    async with opened(api.url, NEXT_URL) as source:
        assert ids(await read(source, watch=watch)) == ROWS
    assert [attempt for attempt, _, _ in watch.retries] == [1, 2]
    assert len(api.requests) == 5


@pytest.mark.parametrize("name", PASSING)
async def test_a_failure_that_stays_makes_the_source_unavailable(api: FakeApi, name: str) -> None:
    api.misbehave([faults.ok, *[PASSING[name]] * 9])
    pages, error = await failure(api.url, NEXT_URL)
    assert isinstance(error, SourceUnavailable)
    assert "attempt 3 of 3" in str(error)
    assert f"GET {api.url}/events?token=t2" in str(error)
    assert (ids(pages), len(api.requests)) == (ROWS[:2], 4)


async def test_a_connection_that_is_reset_is_tried_again(api: FakeApi) -> None:
    api.misbehave([faults.reset, faults.reset])
    watch = Watching()
    async with opened(api.url, NEXT_URL) as source:
        assert ids(await read(source, watch=watch)) == ROWS
    assert [attempt for attempt, _, _ in watch.retries] == [1, 2]


async def test_an_api_that_resets_every_connection_is_unavailable(api: FakeApi) -> None:
    api.misbehave(itertools.repeat(faults.reset))
    _, error = await failure(api.url, NEXT_URL)
    assert isinstance(error, SourceUnavailable)
    assert len(api.requests) == 3


async def test_an_empty_answer_later_than_the_first_is_tried_again(api: FakeApi) -> None:
    api.misbehave([faults.ok, faults.empty])
    assert ids(await list_all(api.url, NEXT_URL)) == ROWS


async def test_the_error_tells_what_came_back(api: FakeApi) -> None:
    api.misbehave(itertools.repeat(faults.html))
    _, error = await failure(api.url, NEXT_URL)
    assert "200 (application/json, 39 bytes): '<html><body>Please log in</body></html>'" in str(error)


async def test_an_api_that_does_not_answer_at_all_is_unavailable(api: FakeApi) -> None:
    async with FakeApi() as gone:
        url = gone.url
    _, error = await failure(url)
    assert isinstance(error, SourceUnavailable)
    assert "ConnectError" in str(error)
    assert str(error).endswith("is it up, and is that its address?")


@pytest.mark.parametrize(
    ("timeout", "said"),
    [({"read": "50ms"}, "ReadTimeout"), ({"read": "60s", "total": "50ms"}, "timeout.total (0.05 s)")],
)
async def test_a_body_that_never_comes_is_given_up_and_tried_again(
    api: FakeApi, timeout: dict[str, str], said: str
) -> None:
    api.misbehave([deaf])
    watch = Watching()
    async with opened(api.url, NEXT_URL, {"timeout": timeout}) as source:
        assert ids(await read(source, watch=watch)) == ROWS
    assert said in watch.retries[0][2]


@asynccontextmanager
async def server(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """A server that speaks bytes."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"
    finally:
        running.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await running.wait_closed()


@pytest.mark.parametrize("begin", [b"content-length: 1000000\r\n\r\n", b"x-drip: "])
async def test_an_answer_that_drips_is_bounded_by_the_total_and_not_by_each_piece(begin: bytes) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + begin)
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.005)

    async with server(drip) as url:
        above = {"timeout": {"read": "60s", "total": "100ms"}, "retry": {"attempts": 2, "base": "1ms", "cap": "1ms"}}
        _, error = await failure(url, {}, above)
    assert isinstance(error, SourceUnavailable)
    assert "timeout.total (0.1 s)" in str(error)


@pytest.mark.parametrize("piece", [b"x-more: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
async def test_headers_without_an_end_are_not_kept(piece: bytes) -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nx-first: ")
        while True:
            writer.write(piece)
            await writer.drain()

    tracemalloc.start()
    try:
        async with server(pour) as url:
            _, error = await failure(url)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(error, SourceUnavailable)
    assert peak < 5_000_000


async def test_a_kept_connection_that_was_closed_meanwhile_is_no_failure() -> None:
    asked = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Closes, with a reset, on the second request of a connection: nothing told the client before."""
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        more = b"true" if asked < 3 else b"false"
        body = b'{"data":[{"id":%d}],"next":"t%d","more":%s}' % (asked, asked, more)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    keys = {"paginate": {"type": "cursor", "from": "$.next", "param": "c", "more": "$.more"}}
    watch = Watching()
    async with server(once) as url, opened(url, keys) as source:
        assert ids(await read(source, watch=watch)) == ["1", "2", "3"]
    assert not watch.retries


async def test_the_budget_bounds_one_request_with_all_its_own_waits(api: FakeApi) -> None:
    time_ = Timeless()
    api.misbehave(itertools.repeat(faults.status(503)))
    above = {"retry": {"attempts": 1000, "base": "8s", "cap": "8s", "budget": "60s"}}
    async with opened(api.url, NEXT_URL, above, clock=time_.clock) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceUnavailable)
    assert sum(time_.slept) <= 60.0
    assert 5 <= len(api.requests) < 1000


# ---- what the server asks for


def moment(seconds: float) -> str:
    return formatdate(1_700_000_000 + seconds, usegmt=True)


@pytest.mark.parametrize(
    ("header", "floor"),
    [
        ("7", 7.0),
        ("1.5", 1.5),
        ("50, 53", 53.0),
        (moment(90), 90.0),
        (moment(-90), 0.0),
        ("1700000040", 40.0),
        ("1700000040500", 40.5),
        ("soon", 0.0),
    ],
)
async def test_a_wait_is_never_shorter_than_what_the_server_asks_for(api: FakeApi, header: str, floor: float) -> None:
    time_ = Timeless()
    api.misbehave([faults.rate_limited(header)])
    async with opened(api.url, NEXT_URL, clock=time_.clock) as source:
        assert ids(await read(source)) == ROWS
    [slept] = time_.slept
    assert floor <= slept <= floor + 0.002


async def test_the_wait_holds_for_every_status_that_is_tried_again(api: FakeApi) -> None:
    time_ = Timeless()
    api.misbehave([faults.status(503, retry_after="9"), faults.status(500, retry_after="4")])
    async with opened(api.url, NEXT_URL, clock=time_.clock) as source:
        await read(source)
    assert [int(slept) for slept in time_.slept] == [9, 4]


async def test_the_longest_of_the_configured_headers_counts(api: FakeApi) -> None:
    time_ = Timeless()
    api.misbehave([faults.status(429, retry_after="3", x_ratelimit_reset="1700000030", x_ignored="99")])
    async with opened(api.url, NEXT_URL, clock=time_.clock) as source:
        await read(source)
    assert int(time_.slept[0]) == 30


async def test_waits_that_the_server_asks_for_do_not_use_up_the_budget(api: FakeApi) -> None:
    time_ = Timeless()
    api.misbehave([faults.rate_limited("1800")] * 3)
    above = {"retry": {"attempts": 8, "base": "1ms", "cap": "1ms", "budget": "10s"}}
    async with opened(api.url, NEXT_URL, above, clock=time_.clock) as source:
        assert ids(await read(source)) == ROWS
    assert sum(time_.slept) > 5400


async def test_a_longer_wait_than_max_wait_ends_the_stream_with_the_time_to_come_back(api: FakeApi) -> None:
    time_ = Timeless()
    api.misbehave([faults.ok, faults.rate_limited("3601")])
    async with opened(api.url, NEXT_URL, clock=time_.clock) as source:
        pages, error = await read_until_it_fails(source)
    assert isinstance(error, RateLimited)
    assert error.retry_after == 3601
    assert datetime.fromtimestamp(1_700_000_000 + 3601, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") in str(error)
    assert "max_wait" in str(error)
    assert (ids(pages), time_.slept, len(api.requests)) == (ROWS[:2], [], 2)


async def test_a_wait_beyond_all_time_is_too_long_and_no_crash(api: FakeApi) -> None:
    api.misbehave([faults.rate_limited("9" * 30)])
    _, error = await failure(api.url, NEXT_URL)
    assert isinstance(error, RateLimited)


async def test_a_good_answer_that_asks_to_wait_holds_back_the_next_request(api: FakeApi) -> None:
    time_ = Timeless()
    api.misbehave([lambda answer: replace(answer, headers=(("retry-after", "20"),))])
    watch = Watching()
    async with opened(api.url, NEXT_URL, clock=time_.clock) as source:
        assert ids(await read(source, watch=watch)) == ROWS
    assert (time_.slept, watch.waits, watch.retries) == ([20.0], [20.0], [])


@pytest.mark.parametrize(("remaining", "slept"), [("0", [25.0]), ("17", []), (None, [])])
async def test_the_reset_header_of_a_good_answer_counts_when_nothing_remains(
    api: FakeApi, remaining: str | None, slept: list[float]
) -> None:
    time_ = Timeless()
    headers = [("x-ratelimit-reset", "25")] + ([] if remaining is None else [("x-ratelimit-remaining", remaining)])
    api.misbehave([lambda answer: replace(answer, headers=tuple(headers))])
    async with opened(api.url, NEXT_URL, clock=time_.clock) as source:
        await read(source)
    assert time_.slept == slept


async def test_a_good_answer_that_asks_for_too_long_a_wait_keeps_its_page(api: FakeApi) -> None:
    api.misbehave([lambda answer: replace(answer, headers=(("retry-after", "7200"),))])
    pages, error = await failure(api.url, NEXT_URL)
    assert isinstance(error, RateLimited)
    assert (ids(pages), len(api.requests)) == (ROWS[:2], 1)


def test_an_api_that_is_away_for_a_while_makes_exit_code_3() -> None:
    report = Report(StreamId("api", "events"))
    report.end(Outcome.UNAVAILABLE, "rate limited")
    assert exit_code([report]) == 3


# ---- what is refused


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "check `auth`"), (403, "check `auth`"), (404, "`path`"), (418, "as ordered"), (304, "")]
)
async def test_a_refusal_is_not_tried_again_and_says_where_to_look(api: FakeApi, status: int, hint: str) -> None:
    api.misbehave([faults.status(status)])
    pages, error = await failure(api.url, NEXT_URL)
    assert isinstance(error, SourceRefused)
    assert error.status == status
    assert hint in str(error)
    assert str(error).startswith(f"{WHERE}: GET {api.url}/events: {status} ")
    assert (pages, len(api.requests)) == ([], 1)


async def test_an_error_that_is_no_json_is_shown_as_it_is(api: FakeApi) -> None:
    api.misbehave([faults.status(403, b"\xff<h1>no</h1>" + b"x" * 1000)])
    _, error = await failure(api.url, NEXT_URL)
    assert "<h1>no</h1>" in str(error)
    assert len(str(error)) < 500


async def test_the_statuses_that_are_tried_again_can_be_configured(api: FakeApi) -> None:
    api.misbehave([faults.status(404)])
    above = {"retry": {"base": "1ms", "cap": "1ms", "attempts": 3, "statuses": [404]}}
    assert ids(await list_all(api.url, NEXT_URL, above)) == ROWS
    api.misbehave([faults.status(503)])
    _, error = await failure(api.url, NEXT_URL, above)
    assert isinstance(error, SourceRefused)


# ---- where requests go


@pytest_asyncio.fixture
async def canary() -> AsyncIterator[FakeApi]:
    """Another host, which must not hear of us."""
    async with FakeApi() as other:
        other.serve("events", numbered(6))
        yield other
        assert other.requests == []


@pytest.mark.parametrize(
    "form", ["{url}/events", "//{host}/events", "http:\\\\{host}/events", "http://x@{host}/events"]
)
@pytest.mark.parametrize("style", ["next_url", "link"])
async def test_a_link_to_another_host_fails_the_stream_unrequested(
    api: FakeApi, canary: FakeApi, form: str, style: str
) -> None:
    link = form.format(url=canary.url, host=canary.url.removeprefix("http://"))
    listing = api.serve("events", numbered(6), style=style, page_size=2)  # type: ignore[arg-type]
    assert listing
    api.misbehave([faults.link(link)])
    pages, error = await failure(api.url, PAGING[style])  # type: ignore[index]
    assert isinstance(error, SourceChanged)
    assert (ids(pages), len(api.requests)) == (ROWS[:2], 1)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_host_fails_the_stream_unrequested(
    api: FakeApi, canary: FakeApi, code: int
) -> None:
    api.misbehave([faults.redirect(f"{canary.url}/events", code)])
    _, error = await failure(api.url, NEXT_URL)
    assert isinstance(error, SourceChanged)
    assert canary.url in str(error)


async def test_a_host_of_the_same_name_on_another_port_is_another_host(api: FakeApi, canary: FakeApi) -> None:
    api.misbehave([faults.link(canary.url.replace("127.0.0.1", "localhost") + "/events")])
    _, error = await failure(api.url.replace("127.0.0.1", "localhost"), NEXT_URL)
    assert isinstance(error, SourceChanged)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_on_the_same_host_is_followed(api: FakeApi, code: int) -> None:
    say(api, [reply("", code, location="/moved?a=1")])
    say(api, [reply('{"data":[{"id":1}]}')], "/moved")
    assert ids(await list_all(api.url)) == ["1"]
    assert [(request.method, request.target) for request in api.requests] == [("GET", "/events"), ("GET", "/moved?a=1")]


@pytest.mark.parametrize(("hops", "followed"), [(3, True), (4, False)])
async def test_three_redirects_are_followed_and_no_more(api: FakeApi, hops: int, followed: bool) -> None:
    say(api, [*(reply("", 302, location=f"/events?hop={n}") for n in range(hops)), reply('{"data":[{"id":1}]}')])
    if followed:
        assert ids(await list_all(api.url)) == ["1"]
    else:
        _, error = await failure(api.url)
        assert isinstance(error, SourceChanged)
        assert "more than 3 redirects" in str(error)
    assert len(api.requests) == 4


async def test_a_redirect_to_nowhere_fails_the_stream(api: FakeApi) -> None:
    say(api, [reply("", 302)])
    _, error = await failure(api.url)
    assert isinstance(error, SourceChanged)
    assert "nowhere" in str(error)


@pytest.mark.parametrize("where", ["/\x7fbad", "/" + "x" * 70_000])
async def test_a_link_that_cannot_be_asked_fails_the_stream(api: FakeApi, where: str) -> None:
    say(api, [reply(json.dumps({"data": [{"id": 1}], "next": where}))])
    _, error = await failure(api.url, NEXT_URL)
    assert isinstance(error, SourceChanged)
    assert len(str(error)) < 1000


def on_https(answers: list[httpx.Response], asked: list[httpx.URL]) -> tuple[httpx.AsyncClient, HttpSource]:
    """The same source on an https origin, over a transport that needs no certificate."""

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return answers.pop(0)

    source, stream = configured("https://api.example.com", NEXT_URL)
    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    redactor = Redactor()
    transport = Transport(Exchange(lambda *_: client, Hosts(source.base_url), redactor), redactor)
    return client, HttpSource(source, stream, transport, keyring("api", source, transport, redactor), redactor, WHERE)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(302, headers={"location": "http://api.example.com/events"}),
        httpx.Response(200, json={"data": [{"id": 1}], "next": "http://api.example.com/events?2"}),
        httpx.Response(302, headers={"location": "https://api.example.com:444/events"}),
    ],
)
async def test_https_is_never_left(answer: httpx.Response) -> None:
    asked: list[httpx.URL] = []
    client, source = on_https([answer], asked)
    async with client:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceChanged)
    assert len(asked) == 1


async def test_an_origin_is_the_same_in_any_spelling() -> None:
    asked: list[httpx.URL] = []
    first = httpx.Response(200, json={"data": [{"id": 1}], "next": "HTTPS://API.Example.com:443/events?2"})
    client, source = on_https([first, httpx.Response(200, json={"data": []})], asked)
    async with client:
        assert ids(await read(source)) == ["1"]
    assert len(asked) == 2


# ---- bodies


def raw(body: bytes, *headers: tuple[str, str]) -> faults.Fault:
    return lambda answer: replace(answer, body=body, records=(), headers=headers)


PAGE = json.dumps({"data": [{"id": 1, "text": "x" * 900}]}).encode()


@pytest.mark.parametrize("fault", [raw(PAGE), raw(gzip.compress(PAGE), ("content-encoding", "gzip"))])
@pytest.mark.parametrize(("limit", "fits"), [(len(PAGE), True), (len(PAGE) - 1, False)])
async def test_a_body_may_be_as_large_as_configured_and_no_larger(
    api: FakeApi, fault: faults.Fault, limit: int, fits: bool
) -> None:
    api.misbehave([fault])
    above = {"limits": {"max_body": f"{limit}B"}}
    if fits:
        assert ids(await list_all(api.url, {}, above)) == ["1"]
        return
    _, error = await failure(api.url, {}, above)
    assert isinstance(error, SourceChanged)
    assert "limits.max_body" in str(error)
    assert len(api.requests) == 1


async def test_a_body_without_a_declared_length_is_bounded_too() -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + b" " * 0x1000 + b"\r\n")
            await writer.drain()

    async with server(pour) as url:
        _, error = await failure(url, {}, {"limits": {"max_body": "100KB"}})
    assert isinstance(error, SourceChanged)


HUGE = b"[" + b" " * 100_000_000


@pytest.mark.parametrize(
    ("bomb", "encoding"),
    [
        (gzip.compress(HUGE), "gzip"),
        (gzip.compress(gzip.compress(HUGE)), "gzip, gzip"),
        (gzip.compress(zlib.compress(HUGE)), "deflate,x-gzip"),
    ],
)
async def test_a_small_body_that_unpacks_to_a_huge_one_is_stopped_while_it_unpacks(
    api: FakeApi, bomb: bytes, encoding: str
) -> None:
    api.misbehave([raw(bomb, ("content-encoding", encoding))])
    tracemalloc.start()
    try:
        _, error = await failure(api.url, {}, {"limits": {"max_body": "1MB"}})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(error, SourceChanged)
    assert "limits.max_body" in str(error)
    assert peak < 10_000_000


MEMBERS = gzip.compress(PAGE[:500]) + gzip.compress(PAGE[500:])


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        *((MEMBERS, name) for name in ("gzip", "x-gzip", "GZIP")),
        (MEMBERS + bytes(500), "gzip"),
        (zlib.compress(PAGE), "deflate"),
        (zlib.compress(PAGE)[2:-4], "deflate"),  # as some servers send it
        (gzip.compress(zlib.compress(PAGE)), "deflate, identity, gzip"),
        (PAGE, "utf-8"),
    ],
)
async def test_a_body_is_read_however_it_was_packed(api: FakeApi, packed: bytes, encoding: str) -> None:
    api.misbehave([raw(packed, ("content-encoding", encoding))])
    assert ids(await list_all(api.url)) == ["1"]


async def test_a_request_says_what_it_takes_and_who_it_is(api: FakeApi) -> None:
    await list_all(api.url, {**NEXT_URL, "headers": {"Accept": "application/vnd.api+json", "X-A": "ä"}})
    headers = api.requests[0].headers
    assert headers["accept"] == "application/vnd.api+json"
    assert headers["accept-encoding"] == "gzip"
    assert headers["user-agent"].startswith("ingest/")
    assert headers["x-a"].encode("latin-1").decode() == "ä"


async def test_headers_of_the_stream_stand_over_those_of_the_source(api: FakeApi) -> None:
    await list_all(api.url, {**NEXT_URL, "headers": {"x-a": "2"}}, {"headers": {"X-A": "1", "X-B": "1"}})
    assert (api.requests[0].headers["x-a"], api.requests[0].headers["x-b"]) == ("2", "1")


@pytest.mark.parametrize(
    ("base", "path", "target"),
    [("", "/events", "/events"), ("/v1/", "/events", "/v1/events"), ("/v1", "events?a=b%2Fc", "/v1/events?a=b%2Fc")],
)
async def test_base_url_and_path_are_joined_with_one_slash(api: FakeApi, base: str, path: str, target: str) -> None:
    say(api, [reply('{"data":[]}')], target.partition("?")[0])
    await list_all(api.url + base, {"path": path})
    assert targets(api) == [target]


async def test_every_answered_request_is_told(api: FakeApi) -> None:
    watch = Watching()
    api.misbehave([faults.status(503)])
    async with opened(api.url, NEXT_URL) as source:
        await read(source, watch=watch)
    assert watch.requests == 4


async def test_a_cancelled_wait_ends_at_once(api: FakeApi) -> None:
    api.misbehave(itertools.repeat(faults.rate_limited("3000")))
    async with opened(api.url, NEXT_URL) as source:
        task = asyncio.create_task(read(source))
        deadline = time.monotonic() + 30
        while not api.requests:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
