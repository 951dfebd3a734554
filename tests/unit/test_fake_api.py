"""The fake API really does what its faults say, as an ordinary client sees it."""

import hashlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered, served, spawn
from tests.harness.listings import Answer, Style

STYLES: list[Style] = ["link", "next_url", "cursor", "page", "offset"]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        running.serve("events", numbered(10), page_size=4)
        yield running


@pytest_asyncio.fixture
async def client(api: FakeApi) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=api.url, trust_env=False) as running:
        yield running


async def listed(client: httpx.AsyncClient, path: str, style: Style, *, at_most: int = 10) -> list[list[str]]:
    """The ids of each page, read as the style's documentation says."""
    pages: list[list[str]] = []
    url: str | None = path
    while url is not None and len(pages) < at_most:
        response = await client.get(url)
        body = response.json()
        rows = body if style == "link" else body["data"]
        pages.append([row["id"] for row in rows])
        url = following(response, path, style, sum(map(len, pages)))
    return pages


def following(response: httpx.Response, path: str, style: Style, read: int) -> str | None:
    if style == "link":
        found = re.fullmatch('<(.*)>; rel="next"', response.headers.get("link", ""))
        return found and found.group(1)
    body = response.json()
    if style == "next_url":
        return str(body["next"]) if body["next"] else None
    if style == "cursor":
        assert body["has_more"] is (body["next_cursor"] is not None)
        return f"{path}?cursor={body['next_cursor']}" if body["has_more"] else None
    if style == "page":
        return f"{path}?page={body['page'] + 1}" if body["page"] < body["total_pages"] else None
    return f"{path}?offset={read}" if read < body["total"] else None


@pytest.mark.parametrize("style", STYLES)
async def test_every_style_lists_each_record_once(api: FakeApi, client: httpx.AsyncClient, style: Style) -> None:
    api.serve("styled", numbered(10), style=style, page_size=4)
    pages = await listed(client, "/styled", style)
    assert [len(page) for page in pages] == [4, 4, 2]
    assert list(itertools.chain(*pages)) == [row["id"] for row in numbered(10)]


async def test_a_filter_keeps_its_place_over_pages(api: FakeApi, client: httpx.AsyncClient) -> None:
    rows = numbered(10)
    pages = await listed(client, f"/events?since={rows[2]['updated_at']}&until={rows[8]['updated_at']}", "next_url")
    assert list(itertools.chain(*pages)) == [row["id"] for row in rows[2:8]]


async def test_records_can_change_between_runs(api: FakeApi, client: httpx.AsyncClient) -> None:
    listing = api.serve("changing", [{"id": "a"}, {"id": "b"}])
    listing.remove("a")
    listing.add({"id": "c"})
    assert await listed(client, "/changing", "next_url") == [["b", "c"]]


async def test_a_record_goes_out_with_the_bytes_it_was_given(api: FakeApi, client: httpx.AsyncClient) -> None:
    raw = b'{"id":  18446744073709551616, "price":1.10}'
    api.serve("exact", [raw])
    assert raw in (await client.get("/exact")).content


async def test_requests_are_kept_in_order(api: FakeApi, client: httpx.AsyncClient) -> None:
    await client.get("/events?limit=1", headers={"X-Api-Key": "k"})
    await client.post("/nowhere", content=b"body")
    assert [(one.method, one.target) for one in api.requests] == [("GET", "/events?limit=1"), ("POST", "/nowhere")]
    assert api.requests[0].headers["x-api-key"] == "k"
    assert api.requests[1].body == b"body"


async def test_faults_come_in_order_and_end(api: FakeApi, client: httpx.AsyncClient) -> None:
    api.misbehave([faults.rate_limited("7"), faults.ok, faults.status(503)])
    answers = [await client.get("/events") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [429, 200, 503, 200]
    assert answers[0].headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("fault", "error"), [(faults.reset, httpx.ReadError), (faults.truncated, httpx.RemoteProtocolError)]
)
async def test_a_broken_answer_is_an_error_and_the_next_is_whole(
    api: FakeApi, client: httpx.AsyncClient, fault: faults.Fault, error: type[Exception]
) -> None:
    api.misbehave([fault])
    with pytest.raises(error):
        await client.get("/events")
    assert (await client.get("/events")).status_code == 200


async def test_a_truncated_answer_has_delivered_half_of_its_body(api: FakeApi, client: httpx.AsyncClient) -> None:
    whole = len((await client.get("/events")).content)
    api.misbehave([faults.truncated])
    received = 0
    with pytest.raises(httpx.RemoteProtocolError):
        async with client.stream("GET", "/events") as response:
            assert int(response.headers["content-length"]) == whole
            async for chunk in response.aiter_raw():
                received += len(chunk)
    assert received == whole // 2


async def test_a_slow_body_runs_into_the_clients_timeout(api: FakeApi, client: httpx.AsyncClient) -> None:
    api.misbehave([faults.slow(60.0)])
    with pytest.raises(httpx.ReadTimeout):
        await client.get("/events", timeout=0.1)


async def test_bodies_that_are_no_page_come_with_status_200(api: FakeApi, client: httpx.AsyncClient) -> None:
    api.misbehave([faults.html, faults.empty, faults.error_body({"error": "quota"}), faults.records_at("items")])
    html, empty, error, moved = [await client.get("/events") for _ in range(4)]
    assert {one.status_code for one in (html, empty, error, moved)} == {200}
    assert html.text.startswith("<html>")
    assert empty.content == b""
    assert error.json() == {"error": "quota"}
    assert len(moved.json()["items"]) == 4


async def test_no_content_has_no_body_and_keeps_the_connection(api: FakeApi, client: httpx.AsyncClient) -> None:
    api.misbehave([faults.no_content])
    assert (await client.get("/events")).status_code == 204
    assert (await client.get("/events")).status_code == 200


async def test_gzip_is_undone_by_the_client(api: FakeApi, client: httpx.AsyncClient) -> None:
    api.misbehave([faults.gzipped])
    answer = await client.get("/events")
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.json()["data"]) == 4


@pytest.mark.parametrize(
    ("endless", "starts"),
    [(itertools.repeat(faults.token("AAA")), "155555"), (itertools.cycle(map(faults.token, "AB")), "159595")],
    ids=["AAA", "ABAB"],
)
async def test_a_looped_token_never_ends_the_listing(
    api: FakeApi, client: httpx.AsyncClient, endless: Iterator[faults.Fault], starts: str
) -> None:
    api.serve("looped", numbered(10), style="cursor", page_size=4)
    api.misbehave(endless)
    pages = await listed(client, "/looped", "cursor", at_most=6)
    assert [page[0][-1] for page in pages] == list(starts)


async def test_links_lead_to_themselves_or_abroad_when_told(api: FakeApi, client: httpx.AsyncClient) -> None:
    api.misbehave([faults.self_link, faults.link("http://127.0.0.2:1/steal")])
    assert (await client.get("/events?limit=2")).json()["next"] == f"{api.url}/events?limit=2"
    assert (await client.get("/events")).json()["next"] == "http://127.0.0.2:1/steal"


async def test_a_redirect_leads_to_another_path(api: FakeApi, client: httpx.AsyncClient) -> None:
    api.misbehave([faults.redirect("/events?limit=1")])
    answer = await client.get("/events", follow_redirects=True)
    assert [one.status_code for one in (*answer.history, answer)] == [302, 200]
    assert len(answer.json()["data"]) == 1


async def test_a_redirect_leads_to_another_origin(api: FakeApi, client: httpx.AsyncClient) -> None:
    async with FakeApi() as other:
        other.serve("events", numbered(1))
        api.misbehave([faults.redirect(f"{other.url}/events", 307)])
        await client.get("/events", follow_redirects=True)
        assert len(other.requests) == 1


async def test_a_path_can_be_something_else_than_a_list(api: FakeApi, client: httpx.AsyncClient) -> None:
    api.routes["/oauth/token"] = lambda request: Answer(request, body=b'{"access_token":"t"}')
    assert (await client.post("/oauth/token")).json() == {"access_token": "t"}


async def test_a_mistake_in_a_script_does_not_pass_unseen() -> None:
    with pytest.raises(ValueError, match="no link"):
        async with FakeApi() as api, httpx.AsyncClient(trust_env=False) as client:
            api.serve("events", numbered(1), style="cursor")
            api.misbehave([faults.self_link])
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(f"{api.url}/events")


async def test_the_log_holds_what_was_served_and_how(tmp_path: Path) -> None:
    log = tmp_path / "served.jsonl"
    raw = b'{"id":"a","n":1}'
    async with FakeApi(log_path=log) as api, httpx.AsyncClient(trust_env=False) as client:
        api.serve("events", [raw])
        api.misbehave([faults.truncated, lambda answer: replace(answer, status=200)])
        with pytest.raises(httpx.TransportError):
            await client.get(f"{api.url}/events")
        size = len((await client.get(f"{api.url}/events")).content)
    broken, whole = map(json.loads, log.read_text().splitlines())
    assert (broken["complete"], whole["complete"], whole["bytes"]) == (False, True, size)
    assert served(log) == {"a": {hashlib.sha256(raw).hexdigest()}}


async def test_as_a_process_it_serves_counts_and_takes_new_records(tmp_path: Path) -> None:
    process = spawn(tmp_path, records=5, style="cursor", page_size=3)
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert [len(page) for page in await listed(client, process.url, "cursor")] == [3, 2]
            await client.post(process.url.replace("/events", "/_lists/events"), json=numbered(1, first=6))
            assert [len(page) for page in await listed(client, process.url, "cursor")] == [3, 3]
            await client.get(process.url)  # what came before on its connection is in the log by now
        assert len(served(process.log)) == 6
    finally:
        process.close()


def test_faults_by_chance_repeat_with_their_seed() -> None:
    def first(seed: int) -> list[faults.Fault]:
        return list(itertools.islice(faults.by_chance("429:0.3,reset:0.2", seed), 200))

    assert first(1) == first(1) != first(2)
    assert {faults.ok, faults.reset} < set(first(1))
