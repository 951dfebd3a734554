"""Where a run begins, and how far the cursor may move while it reads."""

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from ingest.errors import SourceChanged
from ingest.sources import Page, SourceRecord, times
from ingest.sources.incremental import Bounds, Progress
from tests.harness.fake_api import FakeApi
from tests.unit.sources import (
    Watching,
    configured,
    cursor,
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

TOKEN = {"type": "cursor", "from": "$.next", "param": "c"}
SECOND = 1_000_000
DAY = 86_400 * SECOND
NOON = times.parse_rfc3339("2024-01-02T12:00:00Z", None)
FAR = 10**16  # microseconds: long after every record of a test


def bounds(**incremental: Any) -> Bounds:
    keys = {"type": "timestamp", "field": "at", "since": {"param": "since"}, **incremental}
    config = configured(keys={"incremental": keys})[1].incremental
    assert config is not None
    return Bounds(config)


def stream(*, paginate: object = TOKEN, **incremental: Any) -> dict[str, Any]:
    keys = {"type": "timestamp", "field": "at", "since": {"param": "since"}, **incremental}
    return {"paginate": paginate, "incremental": {name: value for name, value in keys.items() if value is not None}}


def at(hour: int, minute: int = 0, second: int = 0) -> str:
    return f"2024-01-02T{hour:02}:{minute:02}:{second:02}Z"


def page(*moments: str | int | None, next: str | None = None, first: int = 1) -> Any:
    """Records with these values in `at` and ids that count up."""
    rows = [{"id": n, "at": moment} for n, moment in enumerate(moments, first)]
    return reply(json.dumps({"data": rows, "next": next}))


def placed(*positions: int | None) -> list[SourceRecord]:
    return [SourceRecord(str(n), None, str(n), None, position, b"{}") for n, position in enumerate(positions)]


def marks(pages: Sequence[Page]) -> list[object]:
    return [cursor(page).get("high_water") for page in pages]


def parameter(target: str, name: str = "since") -> str | None:
    query = target.partition("?")[2]
    found = [pair.partition("=")[2] for pair in query.split("&") if pair.partition("=")[0] == name]
    return found[0].replace("%3A", ":") if found else None


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


# ---- the lower bound


@pytest.mark.parametrize(
    ("keys", "mark", "sent"),
    [
        ({}, None, None),
        ({"since": {"param": "s", "first": "unfiltered"}}, None, None),
        ({"since": {"param": "s", "first": "2024-01-01"}}, None, "2024-01-01"),
        ({"since": {"param": "s", "first": 1704067200}, "format": "unix"}, None, "1704067200"),
        ({}, NOON + 614_999, "2024-01-02T12:00:00.614999Z"),
        ({"format": "unix"}, NOON + 999_999, str(NOON // SECOND)),
        ({"format": "unix_ms"}, NOON + 614_999, str(NOON // 1000 + 614)),
        ({"format": "%Y-%m-%d"}, NOON, "2024-01-02"),
        ({"format": "%Y-%m-%d %H:%M", "timezone": "Asia/Kolkata"}, NOON + 59 * SECOND, "2024-01-02 17:30"),
        ({"lookback": "90s"}, NOON, "2024-01-02T11:58:30Z"),
        ({"lookback": "300ms", "format": "unix"}, NOON, str(NOON // SECOND - 1)),
        ({"lookback": "5d", "since": {"param": "s", "first": "2024-01-01"}}, NOON, "2024-01-01"),
        ({"lookback": "1h", "since": {"param": "s", "first": "2024-01-01"}}, NOON, "2024-01-02T11:00:00Z"),
        ({"since": {"param": "s", "first": "2025-01-01"}}, NOON, "2025-01-01"),
        ({"lookback": "5000w"}, times.EARLIEST + DAY, "0001-01-03T00:00:00Z"),
        ({"since": None}, NOON, None),
    ],
)
def test_the_lower_bound_is_the_mark_truncated_to_what_can_be_sent(
    keys: Mapping[str, Any], mark: int | None, sent: str | None
) -> None:
    chosen = {**keys} if keys.get("since", {}) is not None else {}
    rules = bounds(**chosen) if chosen or "since" not in keys else bounds_without_since()
    assert rules.since(mark) == sent


def bounds_without_since(**incremental: Any) -> Bounds:
    config = configured(keys={"incremental": {"type": "timestamp", "field": "at", **incremental}})[1].incremental
    assert config is not None
    return Bounds(config)


@pytest.mark.parametrize(
    ("keys", "mark", "sent"),
    [
        ({}, None, None),
        ({"since": {"param": "s", "first": 100}}, None, "100"),
        ({}, 9_007_199_254_740_993, "9007199254740993"),
        ({"lookback": 10}, 500, "490"),
        ({"lookback": 10, "since": {"param": "s", "first": 495}}, 500, "495"),
    ],
)
def test_an_integer_bound_is_exact(keys: Mapping[str, Any], mark: int | None, sent: str | None) -> None:
    assert bounds(**{"type": "integer", **keys}).since(mark) == sent


ROUGH = [
    (bounds(format=form, timezone=zone, lookback="90s"), times.parser((form,), ZoneInfo(zone)))
    for form in ("rfc3339", "unix", "unix_ms", "%Y-%m-%d", "%d.%m.%Y %H:%M")
    for zone in ("UTC", "Asia/Kolkata", "America/St_Johns")
]


@given(st.integers(2 * 10**14, FAR // 4), st.sampled_from(ROUGH))
def test_nothing_that_the_next_run_lists_again_is_forgotten(mark: int, rough: tuple[Bounds, times.Parse]) -> None:
    rules, understood = rough
    sent, remembered = rules.since(mark), rules.remember_from(Progress(high_water=mark))
    assert sent is not None
    assert remembered is not None
    assert remembered == understood(sent) <= mark - 90 * SECOND


def test_where_the_api_cannot_be_asked_for_less_nothing_is_forgotten() -> None:
    rules = bounds_without_since()
    assert rules.lists_everything
    assert rules.remember_from(Progress(high_water=NOON)) is None
    assert not bounds().lists_everything


async def test_the_first_run_is_unfiltered_and_the_next_one_begins_at_the_mark(api: FakeApi) -> None:
    say(api, [page(at(10), at(12), at(11))])
    [first] = await list_all(api.url, stream(paginate="none"))
    async with opened(api.url, stream(paginate="none")) as source:
        await read(source, first.cursor)
    assert [parameter(target) for target in targets(api)] == [None, at(12)]


async def test_first_is_sent_as_it_is_written_on_every_page(api: FakeApi) -> None:
    say(api, [page(at(10), next="t2"), page(at(11), first=2)])
    await list_all(api.url, stream(since={"param": "since", "first": "2024-01-01T00:00:00+01:00"}))
    assert targets(api)[0] == "/events?since=2024-01-01T00%3A00%3A00%2B01%3A00"
    assert parameter(targets(api)[1]) == parameter(targets(api)[0])


async def test_the_bound_replaces_the_same_name_in_params(api: FakeApi) -> None:
    say(api, [page(at(10))])
    keys = {**stream(since={"param": "since", "first": "2024-01-01"}), "params": {"since": "x", "a": 1}}
    await list_all(api.url, keys)
    assert targets(api) == ["/events?since=2024-01-01&a=1"]


# ---- the mark


async def test_in_ascending_order_the_mark_moves_with_every_page(api: FakeApi) -> None:
    say(api, [page(at(10), at(11), next="t2"), page(at(11), at(12), first=3)])
    assert marks(await list_all(api.url, stream(order="asc"))) == [at(11), at(12)]


@pytest.mark.parametrize("order", ["none", "desc", None])
async def test_in_any_other_order_the_mark_moves_at_the_end_only(api: FakeApi, order: str | None) -> None:
    say(api, [page(at(12), at(11), next="t2"), page(at(10), first=3)])
    assert marks(await list_all(api.url, stream(order=order))) == [None, at(12)]


async def test_a_row_before_its_turn_keeps_the_mark_until_the_end_and_is_noticed_once(api: FakeApi) -> None:
    turns = [page(at(10), next="2"), page(at(12), at(11), first=2, next="3"), page(at(13), first=4, next="4")]
    say(api, [*turns, page(at(9), first=5)])
    watch = Watching()
    async with opened(api.url, stream(order="asc")) as source:
        pages = await read(source, watch=watch)
    assert marks(pages) == [at(10), at(10), at(10), at(13)]
    assert [notice.kind for notice in watch.notices] == ["disorder"]


async def test_disorder_is_seen_between_pages_and_after_a_resume(api: FakeApi) -> None:
    say(api, [page(at(12), next="t2"), page(at(11), first=2, next="t3"), page(at(13), first=3, next="t4"), page()])
    async with opened(api.url, stream(order="asc")) as source:
        [first] = await read(source, pages=1)
        [second] = await read(source, first.cursor, pages=1)
        rest = await read(source, second.cursor)
    assert marks([first, second, *rest]) == [at(12), at(12), at(12), at(13)]


async def test_a_listing_that_fails_keeps_the_mark_of_the_one_before(api: FakeApi) -> None:
    say(api, [page(at(10))])
    [before] = await list_all(api.url, stream())
    say(api, [page(at(12), next="t2"), reply("no", 403)])
    async with opened(api.url, stream()) as source:
        pages, _ = await read_until_it_fails(source, before.cursor)
    assert marks(pages) == [at(10)]


async def test_the_mark_never_moves_back(api: FakeApi) -> None:
    say(api, [page(at(12)), page(at(10)), page()])
    async with opened(api.url, stream(paginate="none")) as source:
        [first] = await read(source)
        [second] = await read(source, first.cursor)
        [third] = await read(source, second.cursor)
    assert marks([first, second, third]) == [at(12)] * 3


def test_rows_newer_than_the_lag_leave_the_mark_behind_them() -> None:
    rules = bounds(lag="2m", order="asc")
    progress = rules.advance(Progress(), placed(NOON - 180 * SECOND, NOON - 60 * SECOND), NOON, NOON)
    assert progress.high_water == NOON - 180 * SECOND


def test_the_lag_counts_from_when_the_page_was_asked_for() -> None:
    rules = bounds(lag="2m", order="asc")
    records = placed(NOON - 150 * SECOND, NOON - 100 * SECOND)
    progress = rules.advance(Progress(), records, asked=NOON, now=NOON + 60 * SECOND)
    assert progress.high_water == NOON - 150 * SECOND


async def test_rows_within_the_lag_are_published_and_asked_for_again(api: FakeApi) -> None:
    old, new = time.time() - 3600, time.time() - 5
    moments = [datetime.fromtimestamp(int(moment), UTC).isoformat().replace("+00:00", "Z") for moment in (old, new)]
    say(api, [page(*moments)])
    pages = await list_all(api.url, stream(paginate="none", lag="5m"))
    assert (ids(pages), marks(pages)) == (["1", "2"], [moments[0]])


@pytest.mark.parametrize("ahead", [-3600, 3600])
async def test_the_lag_counts_by_the_clock_of_the_api_when_ours_differs(api: FakeApi, ahead: int) -> None:
    theirs = time.time() + ahead
    moments = [times.rfc3339(int(theirs + seconds) * SECOND) for seconds in (-600, -10)]
    date = datetime.fromtimestamp(theirs, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    rows = [{"id": n, "at": moment} for n, moment in enumerate(moments)]
    say(api, [reply(json.dumps({"data": rows}), date=date)])
    watch = Watching()
    async with opened(api.url, stream(paginate="none", lag="5m")) as source:
        pages = await read(source, watch=watch)
    assert marks(pages) == [moments[0]]
    assert [notice.kind for notice in watch.notices] == ["clock_skew"]


@pytest.mark.parametrize(("seconds", "headers"), [(-5, {}), (5, {}), (-3600, {"age": "3600"}), (0, {"age": "x"})])
async def test_clocks_that_agree_are_not_noticed(api: FakeApi, seconds: int, headers: dict[str, Any]) -> None:
    date = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    say(api, [reply('{"data":[]}', date=date, **headers), reply('{"data":[]}', date="yesterday")])
    watch = Watching()
    async with opened(api.url) as source:
        await read(source, watch=watch)
        await read(source, watch=watch)
    assert not watch.notices


async def test_a_row_of_the_future_is_published_and_does_not_move_the_mark(api: FakeApi) -> None:
    say(api, [page(at(10), "2999-01-01T00:00:00Z", at(11))])
    watch = Watching()
    async with opened(api.url, stream(paginate="none", order="asc")) as source:
        pages = await read(source, watch=watch)
    assert (ids(pages), marks(pages)) == (["1", "2", "3"], [at(11)])
    assert not watch.notices


async def test_a_row_of_the_future_fails_the_stream_where_it_says_so(api: FakeApi) -> None:
    say(api, [page(at(10), "2999-01-01T00:00:00Z")])
    pages, error = await failure(api.url, stream(paginate="none", on_future="fail"))
    assert isinstance(error, SourceChanged)
    assert "2999-01-01" in str(error)
    assert not pages


def test_a_row_within_the_lag_is_none_of_the_future() -> None:
    rules = bounds(lag="2m", on_future="fail")
    assert rules.advance(Progress(), placed(NOON - SECOND), NOON, NOON).reached is None


@pytest.mark.parametrize(
    ("on_null", "read", "refused", "skipped"), [("emit", 3, 0, 0), ("skip", 2, 0, 1), ("fail", 2, 1, 0)]
)
async def test_a_row_without_the_field_follows_on_null_and_paging_goes_on(
    api: FakeApi, on_null: str, read: int, refused: int, skipped: int
) -> None:
    say(api, [page(at(10), None, next="t2"), page(at(11), first=3)])
    pages = await list_all(api.url, stream(order="asc", on_null=on_null))
    assert len(ids(pages)) == read
    assert sum(len(page.refused) for page in pages) == refused
    assert sum(page.skipped for page in pages) == skipped
    assert marks(pages) == [at(10), at(11)]


async def test_a_page_without_any_time_does_not_stop_the_stream(api: FakeApi) -> None:
    say(api, [page(None, None, next="t2"), page(at(11), first=3)])
    assert marks(await list_all(api.url, stream())) == [None, at(11)]


async def test_times_are_compared_as_instants_and_not_as_text(api: FakeApi) -> None:
    say(api, [page("2024-01-02T12:00:00+05:00", "2024-01-02T08:00:00Z", "2024-01-02T08:00:00.5Z")])
    assert marks(await list_all(api.url, stream(paginate="none"))) == ["2024-01-02T08:00:00.500000Z"]


async def test_integers_move_the_mark_without_losing_a_digit(api: FakeApi) -> None:
    say(api, [page(9, 9_007_199_254_740_993, 100)])
    keys = stream(paginate="none", type="integer")
    pages = await list_all(api.url, keys)
    assert marks(pages) == [9_007_199_254_740_993]
    async with opened(api.url, keys) as source:
        await read(source, pages[0].cursor)
    assert parameter(targets(api)[-1]) == "9007199254740993"


# ---- feeds


async def test_a_feed_ends_after_a_page_that_lies_wholly_below_the_mark(api: FakeApi) -> None:
    keys = stream(type="feed", since=None, lookback="1h")
    say(api, [page(at(12))])
    [first] = await list_all(api.url, keys)
    below = at(10, 59, 59)
    second, third = page(at(11), at(9), next="3", first=3), page(below, at(9), next="4", first=5)
    say(api, [page(at(13), at(11), next="2"), second, third, page(at(8), first=7)])
    async with opened(api.url, keys) as source:
        pages = await read(source, first.cursor)
    assert (len(pages), pages[-1].stop) == (3, "a page older than what is known")
    assert marks(pages) == [at(12), at(12), at(13)]


async def test_a_row_exactly_at_the_bound_keeps_a_feed_going(api: FakeApi) -> None:
    keys = stream(type="feed", since=None)
    say(api, [page(at(12))])
    [first] = await list_all(api.url, keys)
    say(api, [page(at(12), at(11), next="2"), page(at(10), next="3", first=3), page(at(9))])
    async with opened(api.url, keys) as source:
        assert len(await read(source, first.cursor)) == 2


async def test_the_first_run_of_a_feed_reads_everything(api: FakeApi) -> None:
    say(api, [page(at(12), next="2"), page(at(11), next="3", first=2), page(at(10), first=3)])
    assert len(await list_all(api.url, stream(type="feed", since=None))) == 3


async def test_a_feed_whose_api_takes_a_bound_reads_to_its_end(api: FakeApi) -> None:
    say(api, [page(at(12))])
    [first] = await list_all(api.url, stream(type="feed"))
    say(api, [page(at(9), next="2"), page(at(8), first=2)])
    async with opened(api.url, stream(type="feed")) as source:
        assert len(await read(source, first.cursor)) == 2
    assert parameter(targets(api)[1]) == at(12)


# ---- what is remembered


@given(st.lists(st.integers(0, 10**9), max_size=30), st.sampled_from(["asc", "none"]))
def test_the_mark_is_the_highest_position_and_never_beyond_the_lag(positions: list[int], order: str) -> None:
    rules = bounds(order=order, lag="100s")
    now = 5 * 10**8
    progress = Progress()
    for position in positions:
        before = progress.high_water
        progress = rules.advance(progress, placed(position), now, now)
        assert before is None or (progress.high_water is not None and progress.high_water >= before)
    end = rules.finish(progress)
    settled = [position for position in positions if position <= now - 100 * SECOND]
    assert end.high_water == max(settled, default=None)


@given(st.lists(st.integers(0, 10**9) | st.none(), min_size=1, max_size=20))
def test_ids_at_or_after_the_next_bound_are_worth_remembering(positions: list[int | None]) -> None:
    rules = bounds(lookback="50s", order="asc")
    progress = rules.advance(Progress(), placed(*positions), FAR, FAR)
    bound = rules.remember_from(progress)
    known = [position for position in positions if position is not None]
    if not known:
        assert bound is None
        return
    sent = rules.since(rules.finish(progress).high_water)
    assert sent is not None
    assert bound == times.parse_rfc3339(sent, None)
