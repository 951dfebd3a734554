"""Where a run begins, and how far the cursor may move while it reads."""

import json
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs
from zoneinfo import ZoneInfo

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from ingest.errors import SourceChanged, SourceRefused
from ingest.sources import Page, SourceRecord, times
from ingest.sources.cursor import describe
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
    assert [notice.kind for notice in watch.notices].count("disorder") == 1


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


Asked = tuple[int, Sequence[int]]  # when, and the rows that came, in seconds from NOON


@pytest.mark.parametrize(
    ("keys", "pages", "mark"),
    [
        # in no order, what turned up since the first page was asked for may belong on it
        ({}, [(0, [-10]), (20, [5, -5])], -5),
        ({"lag": "1m"}, [(0, [-90]), (50, [-30, -70])], -70),
        ({"type": "feed"}, [(0, [-10]), (20, [5, -15])], -10),
        # in ascending order the cursor moves on with every page, up to the first row that had not settled
        ({"order": "asc"}, [(0, [-10]), (20, [5])], 5),
        ({"order": "asc", "lag": "1m"}, [(0, [-90]), (50, [-30])], -30),
        ({"order": "asc", "lag": "1m"}, [(0, [-90, -50]), (50, [-30])], -90),
        ({"order": "asc", "lag": "1m"}, [(0, [-90, -50]), (50, [-30]), (99, [-20])], -90),
        # an order that is broken is none
        ({"order": "asc"}, [(0, [-10]), (20, [5, -15])], 0),
    ],
)
def test_what_may_still_turn_up_on_a_page_that_was_read_is_not_passed(
    keys: Mapping[str, Any], pages: Sequence[Asked], mark: int
) -> None:
    rules, progress = bounds(**keys), Progress()
    for asked, rows in pages:
        records = placed(*(NOON + row * SECOND for row in rows))
        progress = rules.advance(progress, records, NOON + asked * SECOND, NOON + asked * SECOND)
    remembered, end = rules.remember_from(progress), rules.finish(progress).high_water
    assert (end, remembered) == (NOON + mark * SECOND, NOON + mark * SECOND)


async def test_a_listing_in_no_order_that_is_gone_on_with_later_moves_the_mark_to_its_begin(api: FakeApi) -> None:
    say(api, [page(at(10), next="t2"), page(at(9), at(12), first=2), page(at(11), first=2)])
    async with opened(api.url, stream()) as source:
        [first] = await read(source, pages=1)
        saved = cursor(first)
        saved["listing"]["first_ceiling"] = at(11, 30)
        [last] = await read(source, json.dumps(saved).encode())
        await read(source, last.cursor)
    assert [ids([first]), ids([last]), marks([last])] == [["1"], ["2", "3"], [at(10)]]
    assert parameter(targets(api)[-1]) == at(10)


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


@pytest.mark.parametrize("date", ["Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 -1400"])
async def test_a_clock_of_the_api_that_nobody_can_believe_lets_no_row_of_the_future_move_the_mark(
    api: FakeApi, date: str
) -> None:
    rows = [{"id": 1, "at": at(10)}, {"id": 2, "at": "2999-01-01T00:00:00Z"}]
    say(api, [reply(json.dumps({"data": rows}), date=date)])
    pages = await list_all(api.url, stream(paginate="none"))
    began = times.parse_rfc3339(str(marks(pages)[0]), None) / SECOND
    assert began < time.time()


@pytest.mark.parametrize("window", [None, "10m", "30m"])
async def test_a_window_ends_no_later_than_by_the_clock_of_the_api(api: FakeApi, window: str | None) -> None:
    theirs = time.time() - 3600
    first = times.rfc3339(int(theirs - 900) * SECOND)
    date = datetime.fromtimestamp(theirs, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    say(api, [reply('{"data":[]}', date=date)])
    since = {"param": "since", "first": first}
    keys = stream(paginate="none", lag="5m", since=since, until={"param": "until"}, window=window)
    pages = await list_all(api.url, keys)
    mark = times.parse_rfc3339(str(marks(pages)[-1]), None)
    assert 0 <= theirs - 300 - mark / SECOND < 60
    assert len(pages) <= 2


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
    say(api, [page(at(11), next="2")])
    watch = Watching()
    async with opened(api.url, keys) as source:
        assert len(await read(source, pages[-1].cursor, watch)) == 1
    assert not watch.notices
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


# ---- windows

WINDOWS: Mapping[str, Any] = {"until": {"param": "until"}, "since": {"param": "since", "first": "2024-01-01T00:00:00Z"}}
JANUARY = times.parse_rfc3339("2024-01-01T00:00:00Z", None)


@pytest.mark.parametrize(
    ("keys", "mark", "now", "expected"),
    [
        # unbounded below and above: the upper end is now − lag, and the mark moves there
        ({}, None, NOON, ("2024-01-01T00:00:00Z", "2024-01-02T12:00:00Z", NOON, False)),
        ({"lag": "2m"}, NOON - DAY, NOON, ("2024-01-01T12:00:00Z", "2024-01-02T11:58:00Z", NOON - 120 * SECOND, False)),
        # anchored at the mark, one after the other, the last one ends at now − lag
        ({"window": "1d"}, None, NOON, ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z", JANUARY + DAY, True)),
        ({"window": "1d"}, JANUARY + DAY, NOON, ("2024-01-02T00:00:00Z", "2024-01-02T12:00:00Z", NOON, False)),
        (
            {"window": "1d", "lookback": "1h"},
            NOON - DAY,
            NOON,
            ("2024-01-01T11:00:00Z", "2024-01-02T12:00:00Z", NOON, False),
        ),
        # what is sent to an API that leaves the end out is truncated, and the mark stays where it was cut
        (
            {"format": "unix"},
            NOON - DAY,
            NOON + 700_000,
            (str(JANUARY // SECOND + 43200), str(NOON // SECOND), NOON, False),
        ),
        # what is sent to an API that takes the end in is rounded up
        (
            {"format": "unix", "until_is": "inclusive"},
            NOON - DAY,
            NOON + 700_000,
            (str(NOON // SECOND - 86400), str(NOON // SECOND + 1), NOON + 700_000, False),
        ),
        (
            {"format": "%Y-%m-%d", "until_is": "inclusive"},
            JANUARY,
            JANUARY + DAY,
            ("2024-01-01", "2024-01-02", JANUARY + DAY, False),
        ),
        # a window that truncation would leave empty is rounded up
        ({"format": "%Y-%m-%d"}, JANUARY, NOON - DAY, ("2024-01-01", "2024-01-02", NOON - DAY, False)),
        # a lag that has grown moves nothing back
        (
            {"lag": "2d"},
            NOON - DAY,
            NOON,
            ("2024-01-01T12:00:00Z", "2024-01-01T12:00:00.000001Z", NOON - 2 * DAY, False),
        ),
        # a first bound that was raised above the mark is where windows begin
        (
            {"window": "1h"},
            JANUARY - DAY,
            NOON,
            ("2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z", JANUARY + 3600 * SECOND, True),
        ),
    ],
)
def test_a_window_is_anchored_at_the_mark_and_ends_behind_now(
    keys: Mapping[str, Any], mark: int | None, now: int, expected: tuple[object, ...]
) -> None:
    first: object = "2024-01-01T00:00:00Z"
    if keys.get("format") == "unix":
        first = JANUARY // SECOND
    elif "format" in keys:
        first = "2024-01-01"
    rules = bounds(**{**WINDOWS, "since": {"param": "since", "first": first}, **keys})
    assert tuple(rules.window(mark, now)) == expected


@given(
    st.integers(0, 400 * DAY),
    st.integers(1, 40),
    st.sampled_from(["rfc3339", "unix", "%Y-%m-%d", "%Y-%m-%d %H:%M"]),
    st.sampled_from(["inclusive", "exclusive"]),
)
def test_windows_leave_no_gap_between_them_whatever_is_sent(ahead: int, days: int, format_: str, until_is: str) -> None:
    """Every instant from the first bound to now − lag lies in what some window really asked for."""
    zone = "America/St_Johns"
    first = JANUARY // SECOND if format_ == "unix" else "2024-01-01" if "%H" not in format_ else "2024-01-01 00:00"
    keys = {"format": format_, "until_is": until_is, "window": f"{days}d", "timezone": zone, "lag": "90s"}
    rules = bounds(until={"param": "u"}, since={"param": "s", "first": first}, **keys)
    parse = times.parser((format_, "rfc3339"), ZoneInfo(zone))
    now = JANUARY + 90 * SECOND + DAY + ahead
    mark, covered, last = None, None, False
    for _ in range(450):
        window = rules.window(mark, now, again=mark is None)
        assert window.since is not None and window.until is not None and window.end is not None
        low, high = parse(window.since), parse(window.until)
        assert covered is None or low <= covered
        assert high >= window.end
        mark = covered = window.end
        if last := not window.follows:
            break
    assert last
    assert covered is not None
    assert now - 90 * SECOND - times.unit(format_) < covered <= now - 90 * SECOND


MOMENTS = st.integers(-DAY, 400 * DAY)  # after the last day of 2023: clocks are put forward and back among them


@given(
    MOMENTS | st.none(),
    MOMENTS,
    st.datetimes(datetime(2023, 12, 30), datetime(2025, 2, 1)),
    st.sampled_from(["rfc3339", "unix", "%Y-%m-%d", "%Y-%m-%d %H:%M"]),
    st.sampled_from(["UTC", "America/St_Johns", "Australia/Lord_Howe"]),
    st.fixed_dictionaries(
        {
            "until_is": st.sampled_from(["inclusive", "exclusive"]),
            "lag": st.sampled_from(["0s", "90s", "40d"]),
            "lookback": st.sampled_from(["0s", "10m"]),
        },
        optional={"window": st.sampled_from(["1s", "10m", "1d"])},
    ),
    st.sampled_from(["inclusive", "exclusive"]),
)
def test_no_window_is_empty_or_ends_before_it_begins(
    mark: int | None, now: int, begin: datetime, form: str, zone: str, keys: dict[str, Any], is_: str
) -> None:
    """Wherever the mark stands when `first`, `lag` or the format are changed, and whatever the clock does meanwhile."""
    first: str | int = times.render(times.instant(begin, ZoneInfo(zone)), form, ZoneInfo(zone))
    first = int(first) if form == "unix" else first
    since = {"param": "s", "first": first, "is": is_}
    rules = bounds(until={"param": "u"}, since=since, format=form, timezone=zone, **keys)
    window = rules.window(None if mark is None else JANUARY + mark, JANUARY + now)
    assert window.since is not None and window.until is not None
    low, high = map(times.parser((form, "rfc3339"), ZoneInfo(zone)), (window.since, window.until))
    nothing_between = is_ == keys["until_is"] == "exclusive" and high == low + times.unit(form)
    assert low < high or (low == high and (is_, keys["until_is"]) == ("inclusive", "inclusive"))
    assert not nothing_between
    assert not rules.leaves_nothing(window.since, window.until)


async def test_no_request_is_empty_where_the_first_bound_was_raised_above_the_mark(api: FakeApi) -> None:
    old, first = (times.rfc3339(int(time.time() - days * 86400) * SECOND) for days in (30, 2))
    say(api, [page(old), page()])
    [before] = await list_all(api.url, stream())
    keys = stream(since={"param": "since", "first": first}, until={"param": "until"}, window="1d")
    async with opened(api.url, keys) as source:
        pages = await read(source, before.cursor)
    asked = [(parameter(t), parameter(t, "until")) for t in targets(api)[1:]]
    assert asked[0][0] == first
    assert all(times.parse_rfc3339(str(a), None) < times.parse_rfc3339(str(b), None) for a, b in asked)
    assert [one[0] for one in asked[1:]] == [one[1] for one in asked[:-1]]
    assert marks(pages)[-1] == asked[-1][1]


async def test_a_cap_that_is_reached_at_the_very_end_of_a_window_asks_for_nothing_more(api: FakeApi) -> None:
    start = int(time.time() - 90000) * SECOND
    at_end = times.rfc3339(start + DAY)  # an API that takes the end in
    say(api, [page(times.rfc3339(start + 1), at_end), page(at_end, first=2)])
    since = {"param": "since", "first": times.rfc3339(start)}
    paginate = {**TOKEN, "listing_cap": 2}
    keys = stream(paginate=paginate, order="asc", since=since, until={"param": "until"}, window="1d")
    pages = await list_all(api.url, keys)
    assert [parameter(target) for target in targets(api)] == [since["first"], at_end]
    assert ids(pages) == ["1", "2", "2"]


async def test_a_run_reads_one_window_after_the_other_and_the_mark_moves_without_rows(api: FakeApi) -> None:
    start = (datetime.now(UTC) - timedelta(hours=60)).isoformat(timespec="seconds").replace("+00:00", "Z")
    say(api, [page(start, next="n"), page(start, first=2), page(), page()])
    keys = stream(since={"param": "since", "first": start}, until={"param": "until"}, window="1d")
    async with opened(api.url, keys) as source:
        pages = await read(source)
    asked = [(parameter(t), parameter(t, "until"), parameter(t, "c")) for t in targets(api)]
    assert [one[2] for one in asked] == [None, "n", None, None]
    assert asked[0][:2] == asked[1][:2]  # frozen for a listing
    assert [one[0] for one in asked[2:]] == [asked[0][1], asked[2][1]]
    assert [p.stop is None for p in pages] == [True, True, True, False]
    assert marks(pages)[1:] == [asked[0][1], asked[2][1], asked[3][1]]
    assert ids(pages) == ["1", "2"]


async def test_the_last_page_of_a_window_may_be_like_the_one_before_it(api: FakeApi) -> None:
    first = times.rfc3339(int(time.time() - 5400) * SECOND)
    keys = stream(
        paginate={"type": "keyset", "fields": {"id": "after"}, "size_param": "limit", "size": 10},
        since={"param": "since", "first": first},
        until={"param": "until"},
        window="1h",
    )
    say(api, [page(first), page(first), page()])  # it reads `after` as included
    assert ids(await list_all(api.url, keys)) == ["1", "1"]


async def test_a_run_that_is_cut_off_between_two_windows_goes_on_with_the_next(api: FakeApi) -> None:
    start = (datetime.now(UTC) - timedelta(hours=30)).isoformat(timespec="seconds").replace("+00:00", "Z")
    say(api, [page(start), page(start, first=2, next="n"), page(first=3), page(start, first=4)])
    keys = stream(since={"param": "since", "first": start}, until={"param": "until"}, window="1d")
    async with opened(api.url, keys) as source:
        [first] = await read(source, pages=1)
        [second] = await read(source, first.cursor, pages=1)
        await read(source, second.cursor)
    asked = [(parameter(t), parameter(t, "c")) for t in targets(api)]
    assert asked[1][0] == marks([first])[0] and asked[1][0] != asked[0][0]
    assert asked[2] == (asked[1][0], "n")


async def test_rows_beyond_the_end_of_a_window_are_published_and_move_no_mark(api: FakeApi) -> None:
    now = datetime.now(UTC)
    start = (now - timedelta(hours=36)).isoformat(timespec="seconds").replace("+00:00", "Z")
    beyond = (now - timedelta(hours=2)).isoformat(timespec="seconds").replace("+00:00", "Z")
    say(api, [page(beyond), page(beyond)])
    keys = stream(since={"param": "since", "first": start}, until={"param": "until"}, window="1d", order="asc")
    async with opened(api.url, keys) as source:
        [first] = await read(source, pages=1)
    assert ids([first]) == ["1"]
    assert marks([first]) == [parameter(targets(api)[0], "until")]


# ---- an exclusive bound, and where it goes


@pytest.mark.parametrize(
    ("format_", "mark", "sent"),
    [
        ("rfc3339", NOON, "2024-01-02T11:59:59.999999Z"),
        ("unix", NOON + 5, str(NOON // SECOND - 1)),
        ("unix_ms", NOON, str(NOON // 1000 - 1)),
        ("%Y-%m-%d", NOON, "2024-01-01"),
        ("%Y-%m-%dT%H:%M:%SZ", NOON, "2024-01-02T11:59:59Z"),
    ],
)
def test_an_api_that_leaves_the_bound_out_is_asked_one_unit_earlier(format_: str, mark: int, sent: str) -> None:
    assert bounds(since={"param": "s", "is": "exclusive"}, format=format_, timezone="UTC").since(mark) == sent


def test_an_exclusive_integer_is_asked_one_earlier_and_the_first_as_it_is_written() -> None:
    rules = bounds(type="integer", since={"param": "s", "is": "exclusive", "first": 7})
    assert (rules.since(None), rules.since(12)) == ("7", "11")


# ---- tokens

SYNC: Mapping[str, Any] = {"type": "token", "from": "$.sync", "param": "sync"}


def synced(rows: Sequence[int], next: str | None = None, sync: str | None = None) -> Any:
    return reply(json.dumps({"data": [{"id": n} for n in rows], "next": next, "sync": sync}))


async def test_the_token_of_a_finished_listing_starts_the_next_run(api: FakeApi) -> None:
    say(api, [synced([1], "p2"), synced([2], None, "s1"), synced([3], "p2", None), synced([], None, "s2"), synced([4])])
    keys = {"paginate": TOKEN, "incremental": SYNC}
    async with opened(api.url, keys) as source:
        first = await read(source)
        second = await read(source, first[-1].cursor)
        third = await read(source, second[-1].cursor)
    asked = [(parameter(t, "sync"), parameter(t, "c")) for t in targets(api)]
    assert asked == [(None, None), (None, "p2"), ("s1", None), ("s1", "p2"), ("s2", None)]
    assert [cursor(pages[-1])["mark"] for pages in (first, second, third)] == ["s1", "s2", "s2"]
    assert [p.remember_all for p in second] == [False, False]


async def test_by_default_the_token_is_that_of_the_last_page_that_had_one(api: FakeApi) -> None:
    body = [{"next": "a", "more": True}, {"next": "b", "more": False}, {"next": "c", "more": False}]
    say(api, [reply(json.dumps({"data": [{"id": n}], **one})) for n, one in enumerate(body)])
    keys = {"paginate": {**TOKEN, "more": "$.more"}, "incremental": "token"}
    async with opened(api.url, keys) as source:
        pages = await read(source)
        await read(source, pages[-1].cursor)
    assert [parameter(t, "c") for t in targets(api)] == [None, "a", "b"]


async def test_a_listing_that_ends_where_its_token_is_repeated_starts_there_next_time(api: FakeApi) -> None:
    say(api, [reply(json.dumps({"data": rows, "next": "a"})) for rows in ([{"id": 1}], [], [{"id": 2}])])
    keys = {"paginate": {**TOKEN, "end": "repeat"}, "incremental": "token"}
    async with opened(api.url, keys) as source:
        pages = await read(source)
        again = await read(source, pages[-1].cursor)
    assert [parameter(t, "c") for t in targets(api)] == [None, "a", "a"]
    assert (ids(again), again[-1].stop) == (["2"], "the token was repeated")


@pytest.mark.parametrize("status", [400, 404, 410, 422])
async def test_a_start_token_that_the_api_forgot_means_one_full_read(api: FakeApi, status: int) -> None:
    gone = reply('{"error":"expired"}', status=status)
    say(api, [synced([1], None, "s1"), gone, synced([1, 2], None, "s2"), gone, gone])
    watch = Watching()
    async with opened(api.url, {"paginate": TOKEN, "incremental": SYNC}) as source:
        first = await read(source)
        second = await read(source, first[-1].cursor, watch=watch)
        with pytest.raises(SourceRefused):
            await read(source, second[-1].cursor)
    assert [parameter(t, "sync") for t in targets(api)] == [None, "s1", None, "s2", None]
    assert (ids(second), len(watch.restarts), cursor(second[-1])["mark"]) == (["1", "2"], 1, "s2")


async def test_the_first_run_may_start_at_a_token_of_its_own(api: FakeApi) -> None:
    say(api, [synced([1], None, "s1")])
    keys = {"paginate": TOKEN, "incremental": {**SYNC, "since": {"first": "now"}}}
    await list_all(api.url, keys)
    assert parameter(targets(api)[0], "sync") == "now"


# ---- all of it again


async def test_a_snapshot_lists_everything_every_time_and_remembers_every_id(api: FakeApi) -> None:
    say(api, [page(at(1)), page(at(1))])
    async with opened(api.url, {"paginate": TOKEN, "incremental": "snapshot"}) as source:
        first = await read(source)
        again = await read(source, first[-1].cursor)
    assert targets(api) == ["/events"] * 2
    assert (ids(again), again[-1].remember_all, again[-1].remember_from) == (["1"], True, None)


@pytest.mark.parametrize(("days", "bound"), [(1, "2024-01-02T09:00:00Z"), (40, None)])
async def test_a_cursor_that_is_older_than_what_the_api_keeps_means_a_full_read(
    api: FakeApi, days: int, bound: str | None
) -> None:
    say(api, [page(at(9)), page(at(9))])
    watch = Watching()
    async with opened(api.url, stream(expires_after="30d")) as source:
        [first] = await read(source)
        saved = cursor(first)
        saved["updated_at"] = (datetime.now(UTC) - timedelta(days=days)).isoformat().replace("+00:00", "Z")
        await read(source, json.dumps(saved).encode(), watch=watch)
    assert parameter(targets(api)[1]) == bound
    assert [notice.kind for notice in watch.notices] == ([] if bound else ["expired"])


# ---- where bounds go


def sent(api: FakeApi) -> list[tuple[str | None, str | None, Any]]:
    """Of every request: its parameter `q`, its header X-Since, its body."""
    return [
        (
            parse_qs(request.target.partition("?")[2]).get("q", [None])[0],
            request.headers.get("x-since"),
            json.loads(request.body or b"null"),
        )
        for request in api.requests
    ]


@pytest.mark.parametrize(
    ("keys", "first", "second"),
    [
        ({"since": {"header": "X-Since"}}, (None, None, None), (None, at(9), None)),
        (
            {"json": {"limit": 5}, "since": {"body": "$.filter.updated.gte"}},
            (None, None, {"limit": 5}),
            (None, None, {"limit": 5, "filter": {"updated": {"gte": at(9)}}}),
        ),
        ({"since": {"param": "q", "value": "at >= '{cursor}'"}}, (None, None, None), (f"at >= '{at(9)}'", None, None)),
        ({"params": {"q": "at:[{window.start} TO *]"}}, (None, None, None), (f"at:[{at(9)} TO *]", None, None)),
        (
            {"json": {"where": {"at": {"gte": "{cursor}"}, "ok": True}}},
            (None, None, {"where": {"at": {}, "ok": True}}),
            (None, None, {"where": {"at": {"gte": at(9)}, "ok": True}}),
        ),
    ],
)
async def test_the_lower_bound_goes_where_it_should_and_is_left_out_of_the_first_run(
    api: FakeApi, keys: Mapping[str, Any], first: object, second: object
) -> None:
    say(api, [page(at(9)), page(at(9))])
    incremental = {"type": "timestamp", "field": "at", **({"since": keys["since"]} if "since" in keys else {})}
    stream_ = {name: value for name, value in keys.items() if name != "since"}
    async with opened(api.url, {"paginate": TOKEN, "incremental": incremental, **stream_}) as source:
        [one] = await read(source)
        [again] = await read(source, one.cursor)
    assert sent(api) == [first, second]
    assert again.remember_from == times.parse_rfc3339(at(9), None)


async def test_both_bounds_may_stand_in_one_text(api: FakeApi) -> None:
    say(api, [page()])
    since = {"param": "q", "value": "[{window.start} TO {window.end}]", "first": "2024-01-01"}
    keys = {
        "paginate": TOKEN,
        "incremental": {"type": "timestamp", "field": "at", "since": since, "until_is": "inclusive"},
    }
    await list_all(api.url, {**keys, "params": {"upto": "{window.end}"}})
    [(text, _, _)] = sent(api)
    assert text is not None
    assert re.fullmatch(r"\[2024-01-01 TO \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\]", text)
    assert text.endswith(parameter(targets(api)[0], "upto") + "]")  # type: ignore[operator]


async def test_both_bounds_in_one_text_need_no_other_place_for_them(api: FakeApi) -> None:
    say(api, [page()])
    since = {"param": "q", "value": "[{window.start} TO {window.end}]", "first": "2024-01-01"}
    await list_all(api.url, stream(since=since))
    [(text, _, _)] = sent(api)
    assert text is not None and text.startswith("[2024-01-01 TO 2")


async def test_a_start_token_goes_where_the_token_of_a_page_goes(api: FakeApi) -> None:
    say(api, [reply(json.dumps({"data": [], "next": token})) for token in ("a", None, "b", None)])
    keys = {
        "json": {},
        "paginate": {"type": "cursor", "from": "$.next", "body": "$.page.after"},
        "incremental": "token",
    }
    async with opened(api.url, keys) as source:
        pages = await read(source)
        await read(source, pages[-1].cursor)
    assert [body for _, _, body in sent(api)] == [{}, *({"page": {"after": token}} for token in ("a", "a", "b"))]


# ---- behind the last row

KEYSET: Mapping[str, Any] = {"paginate": {"type": "keyset", "fields": {"at": "after_at", "id": "after_id"}}}


def keys_of(api: FakeApi) -> list[tuple[str | None, str | None]]:
    return [(parameter(t, "after_at"), parameter(t, "after_id")) for t in targets(api)]


async def test_the_next_run_begins_behind_the_last_row(api: FakeApi) -> None:
    say(api, [page(at(1), at(2)), page(at(2), first=3), page(), page(at(4), first=4), page()])
    async with opened(api.url, {**KEYSET, "incremental": "keyset"}) as source:
        pages = await read(source)
        again = await read(source, pages[-1].cursor)
    assert keys_of(api) == [(None, None), (at(2), "2"), (at(2), "3"), (at(2), "3"), (at(4), "4")]
    assert (ids(pages), ids(again)) == (["1", "2", "3"], ["4"])
    assert not again[-1].remember_all


async def test_a_run_that_is_cut_off_goes_on_behind_the_last_row_that_was_saved(api: FakeApi) -> None:
    say(api, [page(at(1), at(2)), page(at(3), first=3), page()])
    async with opened(api.url, {**KEYSET, "incremental": "keyset"}) as source:
        [first] = await read(source, pages=1)
        rest = await read(source, first.cursor)
    assert keys_of(api) == [(None, None), (at(2), "2"), (at(3), "3")]
    assert (ids(rest), describe(rest[-1].cursor)) == (["3"], f'["{at(3)}","3"]')


async def test_behind_a_lag_the_next_run_begins_before_what_has_not_settled(api: FakeApi) -> None:
    old, fresh = (
        (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(timespec="seconds").replace("+00:00", "Z")
        for ago in (600, 5)
    )
    say(api, [page(old, fresh, fresh), page(), page(fresh, fresh, first=2), page()])
    keys = {**KEYSET, "incremental": {"type": "keyset", "field": "at", "lag": "2m"}}
    async with opened(api.url, keys) as source:
        pages = await read(source)
        again = await read(source, pages[-1].cursor)
    assert keys_of(api) == [(None, None), (fresh, "3"), (old, "1"), (fresh, "3")]
    assert (ids(pages), ids(again)) == (["1", "2", "3"], ["2", "3"])
    assert pages[0].remember_from == times.parse_rfc3339(old, None)
    assert cursor(again[-1])["mark"] == f'["{old}","1"]'


@pytest.mark.parametrize("leave", [False, True])
async def test_what_has_not_settled_on_one_page_is_not_passed_by_the_next(api: FakeApi, leave: bool) -> None:
    """The rows come in the order of their ids; what is new is told by a time."""
    old, fresh = times.rfc3339(int(time.time() - 600) * SECOND), times.rfc3339(int(time.time() - 5) * SECOND)
    say(api, [page(old, fresh), page(old, old, first=3), page(), page()])
    keys = {
        "paginate": {"type": "keyset", "fields": {"id": "after_id"}},
        "incremental": {"type": "keyset", "field": "at", "lag": "2m"},
    }
    async with opened(api.url, keys) as source:
        pages = await read(source, pages=1) if leave else await read(source)
        pages += await read(source, pages[-1].cursor) if leave else []
        await read(source, pages[-1].cursor)
    assert [parameter(target, "after_id") for target in targets(api)] == [None, "2", "4", "1"]
    assert ids(pages) == ["1", "2", "3", "4"]
    assert {one.remember_from for one in pages} == {None}  # the next run lists rows of any time


async def test_what_started_a_run_by_a_token_is_no_time(api: FakeApi) -> None:
    by_token = {"paginate": TOKEN, "incremental": {"type": "token", "from": "$.start", "param": "from"}}
    say(api, [reply(json.dumps({"data": [{"id": 1, "at": at(10)}], "start": "s1"})), page(at(10)), page(at(11))])
    saved = (await list_all(api.url, by_token))[-1].cursor
    async with opened(api.url, stream()) as source:
        then = (await read(source, saved))[-1]
        await read(source, then.cursor)
    assert [parameter(target) for target in targets(api)] == [None, None, at(10)]
    assert (then.whole, "mark" in cursor(then)) == (True, False)


@pytest.mark.parametrize(
    ("form", "since", "until"),
    [("%Y-%m", "2023-12", "2024-02"), ("%Y", "2023", "2025"), ("%Y-%m-%d", "2024-01-01", "2024-01-03")],
)
def test_a_bound_that_is_a_month_or_a_year_is_rounded_to_one(form: str, since: str, until: str) -> None:
    rules = bounds(
        format=form, since={"param": "since", "is": "exclusive"}, until={"param": "until"}, until_is="inclusive"
    )
    window = rules.window(NOON, NOON + 60 * SECOND)
    assert (window.since, window.until) == (since, until)


# ---- bounds that an API does not know


@pytest.mark.parametrize(
    ("keys", "rows", "said"),
    [
        ({}, [at(9), at(12)], ["1 of the first page's records lie before the lower bound that was sent"]),
        ({}, [at(12), None], []),
        ({"lookback": "3h"}, [at(9), at(12)], []),
        ({"format": "%Y-%m-%d"}, [at(9), at(12)], []),  # the bound is the whole day
        ({"since": None}, [at(9), at(12)], []),
    ],
)
async def test_rows_that_were_not_asked_for_say_that_the_bound_is_not_known(
    api: FakeApi, keys: dict[str, Any], rows: list[str | None], said: list[str]
) -> None:
    say(api, [page(at(12))])
    [first] = await list_all(api.url, stream(**keys))
    say(api, [page(*rows)])
    watch = Watching()
    async with opened(api.url, stream(**keys)) as source:
        await read(source, first.cursor, watch)
    assert [notice.message.partition(" (")[0] for notice in watch.notices] == said
