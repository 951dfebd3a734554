"""Slices of a range: side by side, nothing between them, and none of the stream's own state is touched."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import Claim, StreamId
from checkpoints.jobs import Job
from checkpoints.jobs.sqlite import SqliteJobs
from ingest.backfill import Payload, Slice, job
from ingest.backfill.handler import handler
from ingest.backfill.plan import Plan, Wanted, plan
from ingest.errors import ConfigError, SourceRefused, StoreUnavailable
from ingest.eventlog.place import located
from ingest.eventlog.sqlite import SqliteAdmin
from ingest.jobs.handler import Again
from ingest.poller import Target
from ingest.report import Outcome, Report
from ingest.run import Runner, Stream
from ingest.sources import times
from ingest.sources.incremental import Stretch
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.unit.polling import (
    STREAM,
    TOPIC,
    TTL,
    Killed,
    Process,
    StumblingCheckpoints,
    StumblingPublisher,
    fails,
    poll,
    process,
)
from tests.unit.sources import NONE, Keys, Watching, configured, opened_family, reply

NOW = times.parse_rfc3339("2025-01-01", None)
MINUTE = 60 * times.MICROS
TIMESTAMP: dict[str, Any] = {"type": "timestamp", "field": "at", "since": {"param": "since"}}
BOTH: dict[str, Any] = {**TIMESTAMP, "until": {"param": "until"}}
PAGED = {"type": "cursor", "from": "$.next", "param": "c"}


def planned(start: str, end: str, slices: int | None = None, keys: Keys = NONE, **incremental: Any) -> Plan:
    given = {"incremental": {**BOTH, **incremental}, **keys}
    source, _ = configured(keys={name: value for name, value in given.items() if value is not None})
    return plan(STREAM, source, Wanted(start, end, slices), NOW)


def sent(found: Plan) -> list[tuple[str | None, str | None]]:
    return [(one.since, one.until) for one in found.slices]


def names(found: Plan) -> list[str]:
    return [one.slice.name for one in found.slices]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


# ---- slices


def test_each_slice_begins_where_the_one_before_it_ends() -> None:
    found = planned("2024-01-01", "2024-01-31T12:00:00Z", 3)
    assert names(found) == [
        "2024-01-01..2024-01-11T04:00:00Z",
        "2024-01-11T04:00:00Z..2024-01-21T08:00:00Z",
        "2024-01-21T08:00:00Z..2024-01-31T12:00:00Z",
    ]
    assert sent(found)[1] == ("since=2024-01-11T04:00:00Z", "until=2024-01-21T08:00:00Z")


@pytest.mark.parametrize(
    ("incremental", "expected"),
    [
        ({"format": "%Y-%m-%d"}, [("2024-01-01", "2024-01-03"), ("2024-01-03", "2024-01-04")]),
        ({"format": "unix"}, [("1704067200", "1704196800"), ("1704196800", "1704326400")]),
        (
            {"since": {"param": "since", "is": "exclusive"}, "format": "%Y-%m-%d"},
            [("2023-12-31", "2024-01-03"), ("2024-01-02", "2024-01-04")],
        ),
        (
            {"until_is": "inclusive", "format": "%Y-%m-%d"},
            [("2024-01-01", "2024-01-03"), ("2024-01-03", "2024-01-04")],
        ),
        (  # what is before the first value of a live run can be asked for, and nothing is read once more
            {"since": {"param": "since", "first": "2024-06-01"}, "lookback": "1d", "format": "%Y-%m-%d"},
            [("2024-01-01", "2024-01-03"), ("2024-01-03", "2024-01-04")],
        ),
        (
            {"since": {"param": "q", "value": "at >= '{cursor}'"}, "until": {"header": "X-Until"}},
            [
                ("q=at >= '2024-01-01T00:00:00Z'", "x-until=2024-01-02T12:00:00Z"),
                ("q=at >= '2024-01-02T12:00:00Z'", "x-until=2024-01-04T00:00:00Z"),
            ],
        ),
    ],
)
def test_the_bounds_are_what_is_sent(incremental: Keys, expected: list[tuple[str, str]]) -> None:
    found = sent(planned("2024-01-01", "2024-01-04", 2, **incremental))
    plain = [(f"since={since}", f"until={until}") if "=" not in since else (since, until) for since, until in expected]
    assert found == plain


def test_a_day_in_a_time_zone_begins_at_its_midnight() -> None:
    found = planned("2024-03-30", "2024-04-02", 3, format="%Y-%m-%d", timezone="Europe/Berlin")
    assert names(found) == [
        "2024-03-29T23:00:00Z..2024-03-30T23:00:00Z",
        "2024-03-30T23:00:00Z..2024-03-31T22:00:00Z",
        "2024-03-31T22:00:00Z..2024-04-01T22:00:00Z",
    ]


def test_integers_are_cut_between_them() -> None:
    integer = {"type": "integer", "field": "n", "since": {"param": "since"}, "order": "asc"}
    source, _ = configured(keys={"incremental": integer})
    found = plan(STREAM, source, Wanted("1", "11", 4), NOW)
    assert names(found) == ["1..3", "3..6", "6..8", "8..11"]
    assert sent(found)[1] == ("since=3", None)


def test_there_are_no_more_slices_than_can_be_told_apart() -> None:
    found = planned("2024-01-01T06:00:00Z", "2024-01-03T06:00:00Z", 9, format="%Y-%m-%d")
    assert names(found) == [
        "2024-01-01T06:00:00Z..2024-01-02", "2024-01-02..2024-01-03", "2024-01-03..2024-01-03T06:00:00Z"
    ]  # fmt: skip
    assert sent(found)[-1] == ("since=2024-01-03", "until=2024-01-04")
    assert found.notes == ["no more than 3 slices begin at something that can be sent"]


@pytest.mark.parametrize(
    ("incremental", "slices", "notes"), [(BOTH, 8, 0), ({**TIMESTAMP, "order": "asc"}, 8, 0), (TIMESTAMP, 1, 0)]
)
def test_a_range_whose_end_cannot_be_asked_for_is_one_slice_unless_told_otherwise(
    incremental: Keys, slices: int, notes: int
) -> None:
    source, _ = configured(keys={"incremental": incremental})
    found = plan(STREAM, source, Wanted("2024-01-01", "2024-02-01", None), NOW)
    assert (len(found.slices), len(found.notes)) == (slices, notes)
    many = plan(STREAM, source, Wanted("2024-01-01", "2024-02-01", 3), NOW)
    assert ["the API takes no `until`" in note for note in many.notes] == [True] * (slices == 1)


@pytest.mark.parametrize(
    ("keys", "start", "end", "message"),
    [
        ({"incremental": None}, "1", "2", "without `incremental` every run lists everything"),
        ({"incremental": "snapshot"}, "1", "2", "`incremental: {type: snapshot}` names no range"),
        ({"incremental": {"type": "feed", "field": "at"}}, "1", "2", "Say how it takes the lower bound"),
        ({}, "2024-02-01", "2024-02-01", "nothing lies between them"),
        ({}, "2024-02-01", "2024-01-01", "nothing lies between them"),
        ({}, "yesterday", "2024-01-01", "--from: 'yesterday' is not rfc3339"),
        ({}, "2024-01-01", "2025-01-01T00:00:01Z", "--to 2025-01-01T00:00:01Z is later than 2025-01-01T00:00:00Z"),
        ({"incremental": {**BOTH, "lag": "1h"}}, "2024-01-01", "2025-01-01", "later than 2024-12-31T23:00:00Z"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_what_to_configure(
    keys: Keys, start: str, end: str, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(start, end, 2, keys)
    assert message in str(raised.value)


@given(
    st.integers(-(10**9), 10**9),
    st.integers(1, 5 * 10**8),
    st.integers(1, 40),
    st.sampled_from(["rfc3339", "unix", "%Y-%m-%d"]),
)
def test_slices_leave_no_gap_and_do_not_overlap(start: int, length: int, number: int, form: str) -> None:
    begin, end = (times.rfc3339(one * 1_000_003) for one in (start, start + length))
    found = [one.slice.stretch for one in planned(begin, end, number, format=form).slices]
    ends = [found[0].start, *(one.end for one in found)]
    assert [one.start for one in found] == ends[:-1]
    assert ends == sorted(set(ends))
    assert (times.rfc3339(ends[0]), times.rfc3339(ends[-1])) == (begin, end)


def test_the_job_of_a_slice_says_all_that_it_needs() -> None:
    for slice in (Slice(Stretch(NOW - 1, NOW), True), Slice(Stretch(-5, 7), False)):
        made = job("api", "events", slice, "backfill", 60.0)
        assert msgspec.json.decode(made.payload, type=Payload).slice == slice
        assert made.dedupe_key == f"backfill:api/events@{slice.name}"


# ---- what each of them lists


class Api:
    """Rows by time. `days`: it compares days, not instants; `zone`: of its times without an offset. `fold`: which of
    two instants a repeated text is."""

    def __init__(
        self, keys: Keys, moments: list[int], *, days: bool = False, fold: int = 0, zone: str | None = None
    ) -> None:
        self._incremental, self._days, self._fold = keys["incremental"], days, fold
        self._zone = ZoneInfo(zone or self._incremental.get("timezone", "UTC"))
        newest_first = self._incremental.get("order") == "desc"
        self._rows = sorted(enumerate(moments), key=lambda row: row[1], reverse=newest_first)

    def __call__(self, request: Request) -> Answer:
        since, until = (self._read(request.query.get(name)) for name in ("since", "until"))
        rows = [row for row in self._rows if self._after(row[1], since) and self._before(row[1], until)]
        start = int(request.query.get("c", "0").removeprefix("t"))
        data = [{"id": id, "at": times.rfc3339(at)} for id, at in rows[start : start + PAGE]]
        following = f"t{start + PAGE}" if start + PAGE < len(rows) else None
        return Answer(request, body=json.dumps({"data": data, "next": following}).encode())

    def _after(self, at: int, since: int | None) -> bool:
        if since is None:
            return True
        exclusive = self._incremental["since"].get("is") == "exclusive"
        return self._compared(at) > self._compared(since) if exclusive else self._compared(at) >= self._compared(since)

    def _before(self, at: int, until: int | None) -> bool:
        if until is None:
            return True
        inclusive = self._incremental.get("until_is") == "inclusive"
        return self._compared(at) <= self._compared(until) if inclusive else self._compared(at) < self._compared(until)

    def _compared(self, at: int) -> int:
        return datetime.fromtimestamp(at / times.MICROS, self._zone).toordinal() if self._days else at

    def _read(self, text: str | None) -> int | None:
        form = self._incremental.get("format", "rfc3339")
        if text is None:
            return None
        if form in ("unix", "unix_ms"):
            return int(text) * (times.MICROS if form == "unix" else 1000)
        moment = datetime.fromisoformat(text) if form == "rfc3339" else datetime.strptime(text, form)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=self._zone, fold=self._fold)
        return round(moment.timestamp() * times.MICROS)


PAGE = 20
START, END = (times.parse_rfc3339(text, None) for text in ("2024-10-24T10:11:12.5Z", "2024-10-29T20:21:22.75Z"))
MOMENTS = [START + (END - START) * n // 20 for n in range(-4, 24)] + [START - 1, START, END - 1, END]
for hour in (0, 1, 20, 21, 22, 23):
    MOMENTS += [times.parse_rfc3339(f"2024-10-{day}T{hour:02}:30:00Z", None) for day in (26, 27)]
INSIDE = {n for n, at in enumerate(MOMENTS) if START <= at < END}
FORMS: list[dict[str, Any]] = [
    {},
    {"format": "unix"},
    {"format": "unix_ms"},
    {"format": "%Y-%m-%d %H:%M", "timezone": "Europe/Berlin"},
    {"format": "%Y-%m-%d", "timezone": "Europe/Berlin"},
    {"format": "%Y-%m-%d", "timezone": "UTC"},
    {"format": "%Y-%m", "timezone": "UTC"},
]
UNTIL = {"until": {"param": "until"}}
ENDS: list[dict[str, Any]] = [
    UNTIL, {**UNTIL, "until_is": "inclusive"}, {**UNTIL, "window": "30h"}, {"order": "asc"}, {"order": "desc"}
]  # fmt: skip


def _id(keys: Keys) -> str:
    return " ".join(map(str, keys.values())) or "plain"


async def published(api: FakeApi, keys: Keys, slices: int = 5, start: int = START, end: int = END) -> Counter[str]:
    """How often each id came out of the slices of a range."""
    counted: Counter[str] = Counter()
    source, _ = configured(keys=keys)
    async with opened_family(api.url, keys) as family:
        for one in plan(STREAM, source, Wanted(times.rfc3339(start), times.rfc3339(end), slices), NOW).slices:
            async for page in family.part("events", one.slice.stretch).pages(None, Watching()):
                counted.update(record.id for record in page.records)
    return counted


@pytest.mark.parametrize("reads", ["inclusive", "exclusive"])
@pytest.mark.parametrize("ends", ENDS, ids=_id)
@pytest.mark.parametrize("form", FORMS, ids=_id)
async def test_every_record_of_the_range_comes_out_of_one_slice(
    api: FakeApi, form: Keys, ends: Keys, reads: str
) -> None:
    since = {"param": "since", "is": reads}
    if "window" in ends:
        since["first"] = times.render(0, form.get("format", "rfc3339"), ZoneInfo(form.get("timezone", "UTC")))
    keys = {"paginate": PAGED, "incremental": {**TIMESTAMP, "since": since, **form, **ends}}
    variants: list[dict[str, Any]] = [{}]
    if "timezone" in form:
        variants.append({"days": True} if form["format"] == "%Y-%m-%d" else {"fold": 1})
    for variant in variants:
        api.routes["/events"] = Api(keys, MOMENTS, **variant)
        found = await published(api, keys)
        assert set(found) == set(map(str, INSIDE))
        # windows of one slice may be asked for a little more than themselves; what was seen tells
        assert set(found.values()) == {1} or "window" in ends


@pytest.mark.parametrize("fold", [0, 1])
async def test_no_slice_ends_in_the_hour_that_a_clock_shows_twice(api: FakeApi, fold: int) -> None:
    start, end = (times.parse_rfc3339(f"2024-10-{day}T12:30:00Z", None) for day in (26, 27))
    moments = list(range(start, end, 10 * MINUTE))
    form = {"format": "%Y-%m-%d %H:%M", "timezone": "Europe/Berlin"}
    keys = {"paginate": PAGED, "incremental": {**BOTH, **form}}
    api.routes["/events"] = Api(keys, moments, fold=fold)
    assert await published(api, keys, 2, start, end) == Counter(map(str, range(len(moments))))


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("ends", [UNTIL, {**UNTIL, "until_is": "inclusive"}, {"order": "asc"}], ids=_id)
@pytest.mark.parametrize("reads", ["inclusive", "exclusive"])
async def test_an_api_whose_days_are_not_ours_leaves_none_out_between_two_slices(
    api: FakeApi, zone: str, ends: Keys, reads: str
) -> None:
    days = {"format": "%Y-%m-%d", "since": {"param": "since", "is": reads}}
    keys = {"paginate": PAGED, "incremental": {**TIMESTAMP, **days, **ends}}
    api.routes["/events"] = Api(keys, MOMENTS, days=True, zone=zone)
    day = 86_400 * times.MICROS
    found = await published(api, keys, 4, START // day * day, END // day * day)
    within = {n for n, at in enumerate(MOMENTS) if START // day * day + day <= at < END // day * day - day}
    assert set(map(str, within)) <= set(found)


async def test_a_slice_ends_with_the_first_page_behind_it_where_the_order_is_known(api: FakeApi) -> None:
    keys = {"paginate": PAGED, "incremental": {**TIMESTAMP, "order": "asc"}}
    api.routes["/events"] = Api(keys, [NOW + n * MINUTE for n in range(100)])
    async with opened_family(api.url, keys) as family:
        part = family.part("events", Stretch(NOW + 10 * MINUTE, NOW + 35 * MINUTE))
        pages = [page async for page in part.pages(None, Watching())]
    assert [(len(page.records), page.skipped) for page in pages] == [(20, 0), (5, 15)]
    assert pages[-1].stop == "a page behind the end of what is asked for"


async def test_what_has_no_place_in_the_order_is_in_no_slice(api: FakeApi) -> None:
    api.routes["/events"] = reply('{"data": [{"id": 1, "at": null}, {"id": 2, "at": "2024-01-01T00:00:00Z"}]}')
    async with opened_family(api.url, {"incremental": BOTH}) as family:
        at = times.parse_rfc3339("2024-01-01", None)
        [page] = [page async for page in family.part("events", Stretch(at, at + 1)).pages(None, Watching())]
    assert ([record.id for record in page.records], page.skipped) == (["2"], 1)


async def test_an_api_that_stops_at_a_cap_is_asked_for_the_rest_of_the_slice(api: FakeApi) -> None:
    rows = [{"id": n, "updated_at": times.rfc3339(NOW + n * MINUTE)} for n in range(100)]
    api.serve("events", rows, style="cursor", page_size=10).cap = 20
    paginate = {"type": "cursor", "from": "$.next_cursor", "param": "cursor", "listing_cap": 20}
    keys = {"paginate": paginate, "incremental": {**BOTH, "field": "updated_at", "order": "asc"}}
    async with opened_family(api.url, keys) as family:
        part = family.part("events", Stretch(NOW + 10 * MINUTE, NOW + 85 * MINUTE))
        found = [record.id async for page in part.pages(None, Watching()) for record in page.records]
    assert set(found) == {str(n) for n in range(10, 85)}


async def test_records_are_what_the_stream_makes_of_them(api: FakeApi) -> None:
    data = [
        {"id": n, "at": times.rfc3339(NOW + n * MINUTE), "secret": 1, "state": ["gone", "open"][n % 2]}
        for n in range(4)
    ]
    api.routes["/events"] = reply(json.dumps({"data": [*data, {"id": None, "at": times.rfc3339(NOW)}]}))
    keys = {
        "incremental": BOTH,
        "transform": [{"drop": ["secret"]}, {"filter": "id != `3`"}],
        "deletes": {"soft": "state == 'gone'", "sweep": {"every": "1d"}},
        "expect": {"min_records": 1000},
    }
    async with opened_family(api.url, keys) as family:
        [page] = [one async for one in family.part("events", Stretch(NOW, NOW + 60 * MINUTE)).pages(None, Watching())]
    assert [(record.id, record.deleted) for record in page.records] == [("0", True), ("1", False), ("2", True)]
    assert not any(b"secret" in record.value for record in page.records)
    assert (page.skipped, len(page.refused), page.sweep, page.whole) == (1, 1, None, False)
    assert page.stop is not None


# ---- one slice, beside whoever polls the stream


SPAN = Slice(Stretch(NOW, NOW + 60 * MINUTE), micros=True)
PART = StreamId("api", "events@2025-01-01..2025-01-01T01:00:00Z")
KEYS: dict[str, Any] = {"paginate": PAGED, "incremental": {**BOTH, "order": "asc"}, "version": "at"}


async def backfill(
    one: Process, url: str, keys: Keys = KEYS, above: Keys = NONE, fence: int | None = None, note: str = "done"
) -> Report:
    """One run of the slice SPAN."""
    locate = partial(located, SqliteAdmin(one.database))
    runner = Runner(one.publisher, one.checkpoints, one.leases, one.holder, locate, lease_ttl=TTL)
    async with opened_family(url, keys, above) as family:
        target = Target(STREAM, TOPIC, 100_000, SPAN.name, fence)
        part = Stream(target, family.part("events", SPAN.stretch), 0.0, once=note)
        [report] = await runner.once([part], asyncio.Event())
    return report


def every_minute(api: FakeApi, minutes: range) -> None:
    api.routes["/events"] = Api(KEYS, [NOW + n * MINUTE for n in minutes])


async def state(path: Path) -> dict[StreamId, Any]:
    async with process(path) as one:
        return {found.stream: json.loads(found.cursor) for found in await one.checkpoints.list()}


async def test_a_slice_has_a_cursor_of_its_own_that_goes_to_the_history(api: FakeApi, sqlite_path: Path) -> None:
    every_minute(api, range(-20, 0))
    live = {**KEYS, "incremental": {**KEYS["incremental"], "until": None}}
    await poll(sqlite_path, api.url, live)
    before = await state(sqlite_path)
    every_minute(api, range(-20, 70))
    async with process(sqlite_path) as one:
        report = await backfill(one, api.url)
        assert (report.outcome, report.events, str(report.stream)) == (Outcome.COMPLETE, 60, str(PART))
        assert await one.checkpoints.seen(STREAM, [str(n) for n in range(20, 90)]) == {}
        assert next(entry.note for entry in await one.checkpoints.history(PART)) == "done"
        assert await one.checkpoints.seen(PART, [str(n) for n in range(90)]) == {}
        events = await one.events()
    assert await state(sqlite_path) == before
    assert [event.subject for event in events] == [str(n) for n in range(80)]
    assert {(event.source, event.stream, event.type) for event in events} == {("api", "events", "api.events")}
    assert events[-1].id == f"api:events:79@{times.rfc3339(NOW + 59 * MINUTE)}"


async def test_what_was_polled_before_is_the_same_event_and_no_second_row(api: FakeApi, sqlite_path: Path) -> None:
    every_minute(api, range(60))
    await poll(sqlite_path, api.url, KEYS)
    async with process(sqlite_path) as one:
        assert (await backfill(one, api.url, fence=7)).events == 60
        events = await one.events()
        assert await one.stored() == 60
    assert Counter(event.id for event in events) == Counter({event.id: 2 for event in events})
    assert {event.fence for event in events[60:]} == {7}


@pytest.mark.parametrize(
    ("paginate", "repeated", "requests"),
    [(PAGED, 20, 2), ({"type": "offset", "param": "c"}, 21, 4)],  # the page that no cursor stood for; counted, the mark
)
async def test_a_slice_that_died_goes_on_where_it_was(
    api: FakeApi, sqlite_path: Path, paginate: Keys, repeated: int, requests: int
) -> None:
    every_minute(api, range(-20, 90))
    keys = {**KEYS, "paginate": paginate}
    with pytest.raises(BaseExceptionGroup):
        async with process(
            sqlite_path, publisher=lambda publisher: StumblingPublisher(publisher, after={1: fails(Killed())})
        ) as one:
            await backfill(one, api.url, keys)
    assert PART in await state(sqlite_path)
    api.requests.clear()
    async with process(sqlite_path) as one:
        assert (await backfill(one, api.url, keys)).outcome is Outcome.COMPLETE
        assert set(await one.ids()) == {str(n) for n in range(20, 80)}
        assert len(await one.ids()) == 60 + repeated
    assert len(api.requests) == requests


async def test_a_slice_that_was_listed_to_its_end_is_not_listed_again(api: FakeApi, sqlite_path: Path) -> None:
    every_minute(api, range(-20, 90))

    class Forgetful(StumblingCheckpoints):
        async def forget(self, claim: Claim, note: str = "") -> None:
            raise StoreUnavailable("away")

    async with process(sqlite_path, checkpoints=Forgetful) as one:
        assert (await backfill(one, api.url)).outcome is Outcome.UNAVAILABLE
    api.requests.clear()
    async with process(sqlite_path) as one:
        assert (await backfill(one, api.url)).outcome is Outcome.COMPLETE
        assert len(await one.ids()) == 60
    assert not api.requests
    assert PART not in await state(sqlite_path)


async def test_children_are_listed_for_every_parent_each_in_its_part_of_the_range(
    api: FakeApi, sqlite_path: Path
) -> None:
    api.routes["/repos"] = reply('{"data": [{"id": "a"}, {"id": "b"}]}')
    for n, name in enumerate("ab"):
        every_minute(api, range(-20 * n, 45))
        api.routes[f"/repos/{name}/issues"] = api.routes["/events"]
    above = {"streams": {"repos": {"path": "/repos", "records": "$.data", "id": "id"}}, "limits": {"concurrency": 1}}
    keys = {**KEYS, "parent": {"stream": "repos"}, "path": "/repos/{parent.id}/issues"}
    with pytest.raises(BaseExceptionGroup):
        async with process(
            sqlite_path, publisher=lambda publisher: StumblingPublisher(publisher, after={3: fails(Killed())})
        ) as one:
            await backfill(one, api.url, keys, above)
    assert PART in await state(sqlite_path)
    async with process(sqlite_path) as one:
        assert (await backfill(one, api.url, keys, above)).outcome is Outcome.COMPLETE
        found = Counter(await one.ids())
        assert await one.checkpoints.cursors(PART, ["a", "b"]) == {}
    assert set(found) == {f"a|{n}" for n in range(45)} | {f"b|{n}" for n in range(20, 65)}
    assert found.total() == 90 + 20  # the page in flight once more
    assert PART not in await state(sqlite_path)


# ---- as a job


async def work(one: Process, api: FakeApi, job: Job, stop: asyncio.Event | None = None) -> list[Any]:
    """What it said of its progress."""
    said = list[Any]()
    async with opened_family(api.url, KEYS) as family:

        async def open_slice(name: StreamId, slice: Slice, note: str) -> Stream:
            target = Target(name, TOPIC, 100_000, slice.name)
            return Stream(target, family.part(name.stream, slice.stretch), 0.0, once=note)

        locate = partial(located, SqliteAdmin(one.database))
        runner = Runner(one.publisher, one.checkpoints, one.leases, one.holder, locate, lease_ttl=TTL)
        handle = handler(runner, open_slice, SqliteJobs(one.database).hold).work
        await handle(job, said.append, stop or asyncio.Event())
    return said


def claimed(payload: bytes | None = None) -> Job:
    made = job("api", "events", SPAN, "backfill", 0.0)
    return Job(7, 1, made.kind, made.source, made.queue, payload or made.payload, 1, 10, 0.0, 0.0)


async def test_a_slice_says_how_far_it_is_and_is_done_once(api: FakeApi, sqlite_path: Path) -> None:
    every_minute(api, range(90))
    async with process(sqlite_path) as one:
        said = await work(one, api, claimed())
        assert said[-1] == {
            "pages": 3, "events": 60, "unchanged": 0, "skipped": 0, "position": times.rfc3339(SPAN.stretch.end)
        }  # fmt: skip
        assert next(iter(await one.checkpoints.history(PART))).note == "read by the backfill of job 7"
        api.requests.clear()
        assert await work(one, api, claimed()) == []  # only the job's row did not know
        assert api.requests == []


async def test_a_slice_that_is_stopped_or_in_other_hands_comes_again(api: FakeApi, sqlite_path: Path) -> None:
    every_minute(api, range(90))
    stopped = asyncio.Event()
    stopped.set()
    async with process(sqlite_path) as one, process(sqlite_path) as other:
        with pytest.raises(Again, match="stopped"):
            await work(one, api, claimed(), stopped)
        assert await other.checkpoints.claim(PART, other.holder, TTL) is not None
        with pytest.raises(Again, match="another process reads the slice"):
            await work(one, api, claimed())


async def test_a_slice_that_is_refused_is_dead_and_a_payload_that_is_none_too(api: FakeApi, sqlite_path: Path) -> None:
    api.routes["/events"] = reply("{}", 403)
    async with process(sqlite_path) as one:
        with pytest.raises(SourceRefused):
            await work(one, api, claimed())
        with pytest.raises(ConfigError, match="names a stream, `from` and `to`"):
            await work(one, api, claimed(b"{}"))
