"""What one stream of a source is told holds for all of them; who waits says until when, and why."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from checkpoints import Demand, Hold, Rates, Slots
from checkpoints.sqlite_rates import SqliteRates
from ingest.config.model import Limits, Retry, Timeout
from ingest.errors import RateLimited, SourceChanged, SourceRefused, SourceUnavailable, StoreUnavailable
from ingest.redaction import Redactor
from ingest.sources.auth.static import credentials
from ingest.sources.clock import SYSTEM, Clock
from ingest.sources.gate import PATIENCE, Gate
from ingest.sources.request import Request
from ingest.sources.share import Alone
from ingest.sources.transport import Limits as RequestLimits
from ingest.sources.transport import Transport, open_transport
from ingest.sqlite import open_database
from migrations.runner import migrate
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer
from tests.harness.listings import Request as Asked
from tests.unit.sources import Timeless, Watching, configured, reply, say

QUICK: Mapping[str, Any] = {"attempts": 3, "base": "1ms", "cap": "2ms"}
OK = reply("[]")


def limits(**keys: Any) -> Limits:
    return Limits.model_validate(keys)


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        for path in ("/a", "/b", "/c"):
            say(running, [OK], path)
        yield running


class Streams:
    """The streams of one source, by the paths that they ask."""

    def __init__(self, url: str, transport: Transport, retry: Retry) -> None:
        self._url, self._transport, self._retry = url, transport, retry
        self.watches: dict[str, Watching] = {}

    async def ask(self, path: str) -> int:
        """The status that came in the end."""
        watch = self.watches.setdefault(path, Watching())
        return await self._transport.send(
            Request(self._url + path),
            credentials(None, {}),
            RequestLimits(Timeout(), self._retry, 1000, path),
            watch,
            lambda response: response.status,
        )


@asynccontextmanager
async def source(
    api: FakeApi, clock: Clock, rates: Rates | None = None, retry: Mapping[str, Any] = QUICK, **keys: Any
) -> AsyncIterator[Streams]:
    gate = Gate("gated", limits(**keys), rates, "host:1:x", clock)
    async with open_transport(configured(api.url)[0], Redactor(), clock, gate=gate) as transport:
        yield Streams(api.url, transport, Retry.model_validate(retry))


def metric(name: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"source": "gated"})


# ---- holds


async def test_a_wait_that_one_stream_is_told_holds_for_the_others(api: FakeApi) -> None:
    time_ = Timeless()
    say(api, [reply("slow down", 429, retry_after="40"), OK], "/a")
    async with source(api, time_.clock) as streams:
        assert await streams.ask("/a") == 200
        said = time_.hands
        say(api, [reply("[]", retry_after="20"), OK], "/a")
        await streams.ask("/a")
        await streams.ask("/b")
    assert said >= 40.0
    assert streams.watches["/b"].waits == [20.0]
    assert "/b: held back, as /a was answered 200" in streams.watches["/b"].reasons[0]


async def test_a_wait_that_is_longer_than_a_stream_bears_ends_it_with_the_time_to_come_back(api: FakeApi) -> None:
    time_ = Timeless()
    say(api, [reply("[]", retry_after="7200")], "/a")
    async with source(api, time_.clock) as streams:
        await streams.ask("/a")
        with pytest.raises(RateLimited, match="held back, as /a was answered 200; the API asks to come back") as caught:
            await streams.ask("/b")
    assert caught.value.retry_after == 7200
    assert [request.path for request in api.requests] == ["/a"]


async def test_a_wait_that_nobody_bears_holds_for_twice_what_we_bear_and_then_somebody_asks_again(
    api: FakeApi,
) -> None:
    time_ = Timeless()
    say(api, [reply("slow down", 429, retry_after="999999999"), OK], "/a")
    async with source(api, time_.clock, retry={**QUICK, "max_wait": "1m"}) as streams:
        with pytest.raises(RateLimited, match="to come back in 999999999 s") as caught:
            await streams.ask("/a")
        assert caught.value.retry_after == 120
        time_.hands += 59
        with pytest.raises(RateLimited):
            await streams.ask("/b")
        time_.hands += 62
        assert await streams.ask("/b") == 200


async def test_those_who_queue_are_told_when_a_hold_comes(api: FakeApi) -> None:
    """Three streams, one at a time: two are in the queue when the first is told to wait."""
    time_ = Timeless()
    say(api, [reply("[]", retry_after="30"), OK], "/a")
    async with source(api, time_.clock, concurrency=1) as streams, asyncio.TaskGroup() as group:
        for path in ("/a", "/b", "/c"):
            group.create_task(streams.ask(path))
    assert [streams.watches[path].waits for path in ("/a", "/b", "/c")] == [[], [30.0], [30.0]]
    assert time_.slept == [30.0]


@asynccontextmanager
async def rates_in(path: Path) -> AsyncIterator[SqliteRates]:
    await migrate(f"sqlite:///{path}")
    async with open_database(path) as database:
        yield SqliteRates(database)


@pytest.mark.parametrize("keys", [{}, {"rate": "100/s"}])
async def test_a_wait_that_one_process_is_told_holds_for_the_others(
    api: FakeApi, sqlite_path: Path, keys: dict[str, str]
) -> None:
    say(api, [reply("slow down", 429, retry_after="300")], "/a")
    retry = {**QUICK, "max_wait": "1m"}
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                source(api, SYSTEM, await stack.enter_async_context(rates_in(sqlite_path)), retry, **keys)
            )
            for _ in range(2)
        ]
        with pytest.raises(RateLimited):
            await first.ask("/a")
        with pytest.raises(RateLimited, match="held back, as /a was answered 429"):
            await second.ask("/b")
    assert [request.path for request in api.requests] == ["/a"]


class Away(Alone):
    """A state store that answers some calls, and then so many not."""

    def __init__(self, clock: Clock, answers: int, missing: float = math.inf) -> None:
        super().__init__(clock)
        self._calls, self._away = 0, (answers, answers + missing)

    def _answer(self) -> None:
        call, self._calls = self._calls, self._calls + 1
        if self._away[0] <= call < self._away[1]:
            raise StoreUnavailable("nobody there")

    async def take(self, source: str, holder: str, demand: Demand) -> Slots:
        self._answer()
        return await super().take(source, holder, demand)

    async def held(self, source: str) -> Hold | None:
        self._answer()
        return None

    async def hold(self, source: str, hold: Hold) -> None:
        self._answer()


async def test_without_a_rate_a_state_store_that_is_away_holds_nobody_back(api: FakeApi) -> None:
    say(api, [reply("[]", retry_after="2"), OK], "/a")
    time_ = Timeless()
    async with source(api, time_.clock, Away(time_.clock, 0)) as streams:
        assert [await streams.ask("/a") for _ in range(3)] == [200] * 3
    assert time_.slept == [2.0]


async def test_while_the_state_store_is_away_no_more_leaves_than_was_taken(api: FakeApi) -> None:
    time_ = Timeless()
    async with source(api, time_.clock, Away(time_.clock, 1), rate="10/s", burst=1) as streams:
        with pytest.raises(StoreUnavailable):
            while True:
                await streams.ask("/a")
    assert len(api.requests) == 5  # of the first half second
    [*_, why] = streams.watches["/a"].reasons
    assert "shared by way of the state store, which does not answer: nobody there" in why


async def test_when_the_state_store_is_back_it_goes_on_at_the_same_rate(api: FakeApi) -> None:
    time_ = Timeless()
    async with source(api, time_.clock, Away(time_.clock, 1, PATIENCE - 1), rate="10/s", burst=1) as streams:
        for _ in range(30):
            await streams.ask("/a")
    assert time_.hands >= 2.9


# ---- the rate


async def test_requests_leave_at_the_configured_rate_whatever_stream_they_are_of(api: FakeApi) -> None:
    time_ = Timeless()
    async with source(api, time_.clock, rate="60/m", burst=2) as streams:
        for n in range(20):
            await streams.ask(("/a", "/b")[n % 2])
    assert 17.9 < time_.hands <= 20.0


async def test_a_redirect_counts_as_a_request(api: FakeApi) -> None:
    time_ = Timeless()
    say(api, [lambda request: replace(OK(request), status=302, headers=(("location", "/b"),))], "/a")
    async with source(api, time_.clock, rate="1/s", burst=1) as streams:
        for _ in range(5):
            await streams.ask("/a")
    assert len(api.requests) == 10
    assert 7.9 < time_.hands <= 9.0


async def test_a_low_quota_is_spread_over_the_time_until_it_is_whole(api: FakeApi) -> None:
    time_ = Timeless()
    low = reply("[]", x_ratelimit_limit="1000", x_ratelimit_remaining="10", x_ratelimit_reset="100")
    say(api, [low, OK], "/a")
    async with source(api, time_.clock) as streams:
        await streams.ask("/a")
        await streams.ask("/b")
    assert time_.slept == [pytest.approx(10.0, abs=1.0)]


async def test_waiting_for_the_rate_does_not_use_up_the_budget_of_a_request(api: FakeApi) -> None:
    time_ = Timeless()
    say(api, [reply("no", 503)] * 4 + [OK], "/a")
    retry = {"attempts": 8, "base": "1ms", "cap": "2ms", "budget": "1m"}
    async with source(api, time_.clock, retry=retry, rate="1/m", burst=1) as streams:
        assert await streams.ask("/a") == 200
    assert time_.hands > 200


# ---- concurrency


async def go_through(gate: Gate, count: int) -> int:
    """So many tasks pass at once; how many of them were under way together at most."""
    retry = Retry.model_validate(QUICK)
    under_way = most = 0

    async def go() -> None:
        nonlocal under_way, most
        async with gate.turn("/a", Watching(), retry, lambda: "GET /a"):
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(go())
    return most


async def test_no_more_requests_are_under_way_than_configured() -> None:
    assert await go_through(Gate("gated", limits(concurrency=3)), 20) == 3


async def test_what_goes_out_while_requests_wait_for_it_does_not_queue_and_is_counted(api: FakeApi) -> None:
    """A token, with room for one request, and that one under way."""
    time_ = Timeless()
    say(api, [OK], "/token")
    gate = Gate("gated", limits(concurrency=1, rate="1/s", burst=1), clock=time_.clock)
    retry = Retry.model_validate(QUICK)
    async with open_transport(configured(api.url)[0], Redactor(), time_.clock, gate=gate) as transport:
        page, token = Streams(api.url, transport, retry), Streams(api.url, transport.aside(), retry)
        elsewhere = Streams(api.url, transport.toward("http://login.example"), retry)
        async with gate.turn("/a", Watching(), retry, str):
            await token.ask("/token")
        await page.ask("/a")
        with pytest.raises(SourceChanged):
            await elsewhere.ask("/token")
    assert 1.9 < time_.hands <= 2.0


async def test_who_is_cancelled_in_the_queue_or_on_its_way_leaves_room_for_others() -> None:
    gate = Gate("gated", limits(concurrency=1))
    retry = Retry.model_validate(QUICK)

    async def stay() -> None:
        async with gate.turn("/a", Watching(), retry, lambda: "GET /a"):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(stay()) for _ in range(4)]
    for task in (tasks[1], tasks[0], tasks[2], tasks[3]):  # in the turnstile, under way, …
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await go_through(gate, 5) == 1


async def test_being_throttled_halves_rate_and_concurrency_and_says_so(api: FakeApi) -> None:
    time_ = Timeless()
    before = metric("ingest_source_slowdowns_total") or 0.0
    say(api, [reply("slow down", 429), OK], "/a")
    async with source(api, time_.clock, rate="10/s") as streams:
        assert (metric("ingest_source_rate"), metric("ingest_source_concurrency")) == (10.0, 8)
        await streams.ask("/a")
        assert (metric("ingest_source_slowdowns_total") or 0.0) - before == 1
        assert metric("ingest_source_concurrency") == 4
        slowed = metric("ingest_source_rate") or 0.0
        assert 5.0 <= slowed < 6.0
        while (metric("ingest_source_rate"), metric("ingest_source_concurrency")) != (10.0, 8):
            await streams.ask("/b")
    assert 10.0 < time_.hands < 30.0
    [notice] = streams.watches["/a"].notices
    assert notice.kind == "slowed_down"
    assert "(429): at most 4 requests are under way now, 5 a second" in notice.message


@pytest.mark.parametrize(("status", "asked", "times"), [(503, {"retry_after": "1"}, 1), (503, {}, 0), (500, {}, 0)])
async def test_an_outage_without_a_wait_is_no_throttling(
    api: FakeApi, status: int, asked: dict[str, str], times: int
) -> None:
    before = metric("ingest_source_slowdowns_total") or 0.0
    say(api, [reply("no", status, **asked), OK], "/a")
    async with source(api, Timeless().clock) as streams:
        await streams.ask("/a")
    assert (metric("ingest_source_slowdowns_total") or 0.0) - before == times


# ---- outages


async def outage(streams: Streams, *paths: str) -> None:
    """They ask side by side until the first has used up its tries."""
    results = await asyncio.gather(*map(streams.ask, paths), return_exceptions=True)
    assert all(isinstance(result, SourceUnavailable) for result in results)


DOWN = reply("no", 503)


async def test_an_api_that_is_down_is_not_asked_and_says_when_it_will_be(api: FakeApi) -> None:
    time_ = Timeless()
    for path in ("/a", "/b", "/c"):
        say(api, [DOWN], path)
    async with source(api, time_.clock) as streams:
        await outage(streams, "/a", "/b")
        asked = len(api.requests)
        with pytest.raises(SourceUnavailable, match="/c: not asked, as nothing of gated has answered since") as caught:
            await streams.ask("/c")
        assert metric("ingest_source_breaker_state") == 2
    assert " times in a row; it is asked again at 2023-11-14T22:13:2" in str(caught.value)
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 1.1
    assert len(api.requests) == asked


async def test_who_gives_up_as_the_api_is_down_is_told_when_it_is_asked_again(api: FakeApi) -> None:
    say(api, [DOWN], "/a")
    async with source(api, Timeless().clock) as streams:
        with pytest.raises(SourceUnavailable, match="attempt 3 of 3") as caught:
            await streams.ask("/a")
    assert caught.value.retry_after == pytest.approx(1.0, abs=0.11)


async def test_of_those_who_come_back_one_tries_and_its_answer_lets_the_others_through(api: FakeApi) -> None:
    time_ = Timeless()
    for path in ("/a", "/b"):
        say(api, [DOWN], path)
    async with source(api, time_.clock) as streams:
        await outage(streams, "/a", "/b")
        asked = len(api.requests)
        time_.hands += 2
        for path in ("/a", "/b"):
            say(api, [OK], path)
        async with asyncio.TaskGroup() as group:
            tried = [group.create_task(streams.ask(path)) for path in ("/a", "/b", "/c")]
        assert [task.result() for task in tried] == [200, 200, 200]
        assert metric("ingest_source_breaker_state") == 0
    assert len(api.requests) == asked + 3


async def test_of_those_who_come_back_too_early_one_tries_and_the_others_end_with_it(api: FakeApi) -> None:
    time_ = Timeless()
    for path in ("/a", "/b", "/c"):
        say(api, [DOWN], path)
    async with source(api, time_.clock) as streams:
        await outage(streams, "/a", "/b")
        asked = len(api.requests)
        time_.hands += 2
        await outage(streams, "/a", "/b", "/c")
    assert len(api.requests) == asked + 1


async def test_a_probe_that_is_cancelled_makes_place_for_another(api: FakeApi) -> None:
    time_ = Timeless()
    for path in ("/a", "/b"):
        say(api, [DOWN], path)
    arrived = asyncio.Event()

    def never(request: Asked) -> Answer:
        arrived.set()
        return replace(OK(request), body=b"[ ]", pause=600.0)

    api.routes["/c"] = never
    async with source(api, time_.clock) as streams:
        await outage(streams, "/a", "/b")
        time_.hands += 2
        probe = asyncio.create_task(streams.ask("/c"))
        await arrived.wait()
        assert metric("ingest_source_breaker_state") == 1
        say(api, [OK], "/a")
        behind = asyncio.create_task(streams.ask("/a"))
        await asyncio.sleep(0)
        probe.cancel()
        assert await behind == 200


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
async def test_what_one_stream_is_refused_is_no_outage(api: FakeApi, status: int) -> None:
    say(api, [reply("no", status)], "/a")
    async with source(api, Timeless().clock) as streams:
        for _ in range(10):
            with pytest.raises(SourceRefused):
                await streams.ask("/a")
            assert await streams.ask("/b") == 200
        assert metric("ingest_source_breaker_state") == 0


async def test_what_is_wrong_with_one_stream_alone_is_no_outage(api: FakeApi) -> None:
    say(api, [DOWN], "/a")
    async with source(api, Timeless().clock) as streams:
        await streams.ask("/b")
        for _ in range(5):
            await outage(streams, "/a")
        assert await streams.ask("/b") == 200


async def test_being_throttled_is_no_outage(api: FakeApi) -> None:
    for path in ("/a", "/b"):
        say(api, [reply("slow down", 429)], path)
    async with source(api, Timeless().clock) as streams:
        await outage(streams, "/a", "/b")
        assert await streams.ask("/c") == 200


async def test_a_host_that_is_gone_is_an_outage_of_the_whole_source(api: FakeApi) -> None:
    async with FakeApi() as gone:
        pass
    async with source(gone, Timeless().clock) as streams:
        await outage(streams, "/a")
        with pytest.raises(SourceUnavailable, match="not asked"):
            await streams.ask("/b")
