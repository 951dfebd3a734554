"""Reports that an API makes meanwhile: one job for each listing, whatever happens on the way, its file read whole."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ingest.report import Outcome
from ingest.sources.incremental import Stretch
from ingest.sources.times import parse_rfc3339
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.unit.polling import Killed, StumblingCheckpoints, fails, poll, process
from tests.unit.sources import Watching, ids, list_all, opened_family

POLL = {"path": "/reports/{job.id}", "status": "$.status", "done": "DONE", "every": "1ms"}
JOB: dict[str, Any] = {
    "create": {"json": {"kind": "orders"}, "id": "$.id"},
    "poll": {**POLL, "failed": ["FATAL"], "empty": ["CANCELLED"]},
    "download": {"path": "/files/{job.file}"},
}
KEYS: dict[str, Any] = {"path": "/reports", "job": JOB}
SINCE: dict[str, Any] = {"type": "timestamp", "field": "at", "since": {"body": "$.from", "first": "2024-01-01"}}


class Office:
    """Makes reports: each is asked about `wait` times before it is done, and has a file of rows."""

    def __init__(self, api: FakeApi, wait: int = 2) -> None:
        self.url, self.requests, self.wait = api.url, api.requests, wait
        self.orders: list[Any] = []  # bodies that were sent
        self.left: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = [{"id": 1}, {"id": 2}]
        self.ends = "DONE"
        self.more: dict[str, Any] = {}  # of the last answer about a job
        self.headers: tuple[tuple[str, str], ...] = ()
        self.refuse: dict[str, int] = {}  # target → status, once
        self.file: bytes | None = None
        api.routes = self  # type: ignore[assignment]

    def get(self, path: str) -> Any:
        return self._answer

    def _answer(self, request: Request) -> Answer:
        if (status := self.refuse.pop(request.target, None)) is not None:
            return Answer(request, status=status, body=b"{}")
        _, kind, *rest = request.path.split("/")
        if kind == "files":
            body = json.dumps({"data": self.rows}).encode() if self.file is None else self.file
            return Answer(request, body=body)
        if not rest:
            self.orders.append(request.json)
            name = f"j{len(self.orders)}"
            self.left[name] = self.wait
            return Answer(request, status=201, headers=self.headers, body=json.dumps({"id": name}).encode())
        [name] = rest
        if name not in self.left:
            return Answer(request, status=404, body=b"{}")
        self.left[name] -= 1
        if self.left[name] >= 0:
            return Answer(request, status=202, body=b'{"status": "RUNNING"}')
        return Answer(request, body=json.dumps({"status": self.ends, "file": f"f-{name}", **self.more}).encode())

    def asked(self) -> list[str]:
        found = [f"{request.method} {request.target}" for request in self.requests]
        self.requests.clear()
        return found


@pytest_asyncio.fixture
async def office() -> AsyncIterator[Office]:
    async with FakeApi() as running:
        yield Office(running)


@pytest.fixture
def path(sqlite_path: Path) -> Path:
    return sqlite_path


async def logged(path: Path) -> list[str]:
    async with process(path) as one:
        return await one.ids()


async def test_a_job_is_created_asked_about_and_its_file_read(office: Office, path: Path) -> None:
    report = await poll(path, office.url, KEYS)
    assert (report.outcome, report.events, report.reason) == (Outcome.COMPLETE, 2, "single page")
    assert office.asked() == ["POST /reports", *["GET /reports/j1"] * 3, "GET /files/f-j1"]
    assert office.orders == [{"kind": "orders"}]
    assert report.waited > 0


@pytest.mark.parametrize(
    ("job", "more", "last"),
    [
        ({"download": {"url": "$.result.url"}}, {"result": {"url": "/files/x?sig=1"}}, "GET /files/x?sig=1"),
        (
            {"download": {"path": "/files/{job.doc.id}", "params": {"a": "{job.id}"}}},
            {"doc": {"id": 7}},
            "GET /files/7?a=j1",
        ),
        ({"poll": {**POLL, "done": [True, "OK"]}}, {"status": True}, "GET /files/f-j1"),
        ({"poll": {"path": "/reports/{job.id}", "every": "1ms"}}, {}, "GET /files/f-j1"),
    ],
    ids=["the URL that the answer names", "fields of the answer", "a flag", "its status"],
)
async def test_where_the_file_is_and_when(office: Office, job: Any, more: Any, last: str) -> None:
    office.more = more
    assert ids(await list_all(office.url, {**KEYS, "job": {**JOB, **job}})) == ["1", "2"]
    assert office.asked()[-1] == last


async def test_the_url_of_the_job_may_come_in_a_header(office: Office) -> None:
    office.headers = (("location", "/reports/j1?of=me"),)
    poll_at = {key: value for key, value in POLL.items() if key != "path"}
    job = {
        "create": {"json": {}},
        "poll": {**poll_at, "url": "header.Location"},
        "download": {"path": "/files/{job.file}"},
    }
    assert ids(await list_all(office.url, {**KEYS, "job": job})) == ["1", "2"]
    assert office.asked()[1:] == [*["GET /reports/j1?of=me"] * 3, "GET /files/f-j1"]


async def test_a_file_is_read_as_its_format_says(office: Office) -> None:
    office.file = gzip.compress(b"id,name\r\n1,a\r\n2,b\r\n")
    keys = {**KEYS, "format": "csv", "records": "$"}
    assert ids(await list_all(office.url, keys)) == ["1", "2"]


async def test_a_file_may_come_in_pages(office: Office, path: Path) -> None:
    office.rows = [{"id": 1}]
    keys = {**KEYS, "paginate": {"type": "page", "size": 1, "end": "short"}, "job": {**JOB}}
    office.file = None
    pages = [b'{"data": [{"id": 1}]}', b'{"data": [{"id": 2}]}', b'{"data": []}']
    answer = office._answer

    def paged(request: Request) -> Answer:
        return (
            Answer(request, body=pages[int(request.query["page"]) - 1]) if "files" in request.path else answer(request)
        )

    office._answer = paged  # type: ignore[method-assign]
    dies = {1: fails(Killed())}  # after the job and one page
    with suppress(ExceptionGroup):
        async with process(path, checkpoints=lambda db: StumblingCheckpoints(db, after=dies)) as one:
            await one.poll(office.url, keys)
    office.asked()
    assert (await poll(path, office.url, keys)).outcome is Outcome.COMPLETE
    assert office.asked() == ["GET /files/f-j1?page=2", "GET /files/f-j1?page=3"]
    assert await logged(path) == ["1", "2"]


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("before", [True, False])
async def test_a_crash_creates_no_other_job_once_it_is_saved(
    office: Office, path: Path, step: int, before: bool
) -> None:
    dies = {step: fails(Killed())}
    with suppress(ExceptionGroup):
        async with process(
            path, checkpoints=lambda db: StumblingCheckpoints(db, **({"before": dies} if before else {"after": dies}))
        ) as one:
            await one.poll(office.url, KEYS)
    saved = step > 0 or not before
    done = step > 1 or (step == 1 and not before)
    office.asked()
    report = await poll(path, office.url, KEYS)
    assert report.outcome is Outcome.COMPLETE
    assert ("POST /reports" in office.asked()) is (not saved or done)
    assert set(await logged(path)) == {"1", "2"}


async def test_a_run_that_is_stopped_while_it_waits_leaves_the_job_to_the_next(office: Office, path: Path) -> None:
    stop, answer = asyncio.Event(), office._answer

    def stopping(request: Request) -> Answer:
        if request.method == "GET":
            stop.set()
        return answer(request)

    office._answer, office.wait = stopping, 1000  # type: ignore[method-assign]
    async with process(path) as one:
        report = await one.poll(office.url, {**KEYS, "job": {**JOB, "poll": {**JOB["poll"], "every": "1h"}}}, stop=stop)
    assert (report.outcome, report.reason) == (Outcome.INCOMPLETE, "stopped by a signal")
    office.left["j1"] = 0
    assert (await poll(path, office.url, KEYS)).outcome is Outcome.COMPLETE
    assert len(office.orders) == 1


async def test_a_job_that_the_api_no_longer_knows_is_created_again_once(office: Office, path: Path) -> None:
    dies = {0: fails(Killed())}
    with suppress(ExceptionGroup):
        async with process(path, checkpoints=lambda db: StumblingCheckpoints(db, after=dies)) as one:
            await one.poll(office.url, KEYS)
    office.left.clear()
    async with process(path) as one:  # it was not created just now
        await one.database.write(
            lambda connection: connection.execute(
                "UPDATE checkpoints SET cursor = json_set(cursor, '$.listing.job.ordered', '2024-01-01T00:00:00Z')"
            )
        )
    office.asked()
    assert (await poll(path, office.url, KEYS)).outcome is Outcome.COMPLETE
    assert office.asked()[:2] == ["GET /reports/j1", "POST /reports"]


async def test_a_file_that_is_gone_is_made_again_once(office: Office, path: Path) -> None:
    office.refuse = {"/files/f-j1": 403}
    assert (await poll(path, office.url, KEYS)).outcome is Outcome.COMPLETE
    assert [one for one in office.asked() if "GET /reports" not in one] == [
        "POST /reports", "GET /files/f-j1", "POST /reports", "GET /files/f-j2"
    ]  # fmt: skip
    office.refuse = {"/files/f-j3": 403, "/files/f-j4": 403}
    report = await poll(path, office.url, KEYS)
    assert (report.outcome, "/files/f-j4: 403" in report.reason) == (Outcome.FAILED, True)


@pytest.mark.parametrize(
    ("file", "outcome"),
    [(b'{"error": "expired"}', Outcome.FAILED), (gzip.compress(b'{"data":[]}')[:-9], Outcome.FAILED)],
)
async def test_a_file_that_nobody_can_read_is_made_again_by_the_next_run(
    office: Office, path: Path, file: bytes, outcome: Outcome
) -> None:
    office.file = file
    report = await poll(path, office.url, {**KEYS, "retry": {"attempts": 2, "base": "1ms"}})
    assert (report.outcome, "has another report made" in report.reason) == (outcome, True)
    office.file = None
    assert (await poll(path, office.url, KEYS)).events == 2
    assert len(office.orders) == 2


async def test_a_job_that_is_not_known_yet_is_waited_for(office: Office, path: Path) -> None:
    office.refuse = {"/reports/j1": 404}
    assert (await poll(path, office.url, KEYS)).outcome is Outcome.COMPLETE
    assert len(office.orders) == 1


@pytest.mark.parametrize(
    ("ends", "job", "orders", "reason"),
    [
        ("FATAL", {}, 2, "the job j2 ended as FATAL"),
        (
            "RUNNING",
            {"poll": {**POLL, "timeout": "2ms"}},
            1,
            "the job j1 is still RUNNING after `job.poll.timeout`",
        ),
    ],
)
async def test_a_job_that_comes_to_nothing_fails_the_run_and_the_next_has_another(
    office: Office, path: Path, ends: str, job: Any, orders: int, reason: str
) -> None:
    """One that failed is ordered again first."""
    office.ends = ends
    keys = {**KEYS, "job": {**JOB, **job}}
    report = await poll(path, office.url, keys)
    assert (report.outcome, reason in report.reason, len(office.orders)) == (Outcome.FAILED, True, orders)
    office.ends = "DONE"
    assert (await poll(path, office.url, KEYS)).outcome is Outcome.COMPLETE
    assert len(office.orders) == orders + 1


async def test_a_report_that_failed_once_is_made_again_in_the_same_run(office: Office, path: Path) -> None:
    office.ends, answer = "FATAL", office._answer

    def heals(request: Request) -> Answer:
        office.ends = "FATAL" if len(office.orders) < 2 else "DONE"
        return answer(request)

    office._answer = heals  # type: ignore[method-assign]
    report = await poll(path, office.url, KEYS)
    assert (report.outcome, report.events, len(office.orders)) == (Outcome.COMPLETE, 2, 2)


async def test_what_errors_say_counts_for_a_job_too(office: Office, path: Path) -> None:
    """An API that throttles with 403 is waited for: the job is not lost."""
    office.refuse = {"/reports": 403, "/reports/j1": 403, "/files/f-j1": 403}
    above = {"errors": [{"when": {"status": 403}, "do": "rate_limited"}]}
    report = await poll(path, office.url, {**KEYS, "retry": {"base": "1ms", "cap": "1ms"}}, above)
    assert (report.outcome, report.retries, len(office.orders)) == (Outcome.COMPLETE, 3, 1)
    office.refuse = {"/reports/j2": 403}
    above = {"errors": [{"when": {"status": 403}, "do": "skip"}]}
    report = await poll(path, office.url, {**KEYS, "expect": {"min_records": 0}}, above)
    reason = "`errors` says skip to status 403"
    assert (report.outcome, report.gaps, report.reason) == (Outcome.COMPLETE, 1, reason)


@pytest.mark.parametrize("hours", [-3, 3])
async def test_how_long_a_job_is_waited_for_is_counted_by_our_clock(office: Office, path: Path, hours: int) -> None:
    answer = office._answer
    told = ("date", format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True))
    office._answer = lambda request: replace(answer(request), headers=(told,))  # type: ignore[method-assign]
    office.refuse = {"/reports/j1": 404}
    report = await poll(path, office.url, KEYS)
    assert (report.outcome, len(office.orders)) == (Outcome.COMPLETE, 1)


async def test_a_report_may_hold_nothing(office: Office, path: Path) -> None:
    office.ends = "CANCELLED"
    report = await poll(path, office.url, KEYS)
    assert (report.outcome, report.events, report.reason) == (Outcome.COMPLETE, 0, "no content")


@pytest.mark.parametrize(
    ("more", "job", "reason"),
    [
        ({}, {"create": {"id": "$.name"}}, "without an id of the job at `job.create.id: $.name`"),
        ({}, {"poll": {**POLL, "status": "$.state"}}, "without a status at `job.poll.status: $.state`"),
        ({}, {"download": {"url": "$.url"}}, "without a URL at `job.download.url: $.url`"),
        ({}, {"download": {"path": "/files/{job.no}"}}, "has no `no` to fill `{job.no}` with"),
        ({"url": "http://elsewhere.example/x"}, {"download": {"url": "$.url"}}, "elsewhere.example"),
    ],
)
async def test_an_answer_that_lacks_what_is_needed_fails_the_run(
    office: Office, path: Path, more: Any, job: Any, reason: str
) -> None:
    office.more = more
    report = await poll(path, office.url, {**KEYS, "job": {**JOB, **job}})
    assert (report.outcome, reason in report.reason) == (Outcome.FAILED, True)


async def test_an_answer_about_a_job_that_unpacks_to_too_much_fails_the_run(office: Office, path: Path) -> None:
    bomb = gzip.compress(b'{"id": "' + b"a" * 2_000_000 + b'"}')
    office._answer = lambda request: Answer(request, body=bomb)  # type: ignore[method-assign]
    report = await poll(path, office.url, KEYS, {"limits": {"max_body": "1MB"}})
    reason = "over limits.max_body (1000000 bytes), unpacked"
    assert (report.outcome, reason in report.reason) == (Outcome.FAILED, True)


async def test_each_window_has_a_report_of_its_own(office: Office, path: Path) -> None:
    office.rows = []
    incremental = {**SINCE, "until": {"body": "$.to"}, "window": "365d"}
    keys = {**KEYS, "incremental": incremental}
    report = await poll(path, office.url, keys)
    assert report.outcome is Outcome.COMPLETE
    assert office.orders[0] == {"kind": "orders", "from": "2024-01-01", "to": "2024-12-31T00:00:00Z"}
    assert office.orders[1]["from"] == "2024-12-31T00:00:00Z"
    assert len(office.orders) == len(office.left) > 1
    again = len(office.orders)
    await poll(path, office.url, keys)
    assert len(office.orders) == again + 1
    to_the_millisecond = len("2024-01-01T00:00:00.000")
    assert office.orders[-1]["from"][:to_the_millisecond] == office.orders[again - 1]["to"][:to_the_millisecond]


async def test_the_mark_does_not_pass_the_moment_at_which_the_report_was_ordered(office: Office, path: Path) -> None:
    office.rows = [{"id": 1, "at": "2999-01-01T00:00:00Z"}, {"id": 2, "at": "2024-06-01T00:00:00Z"}]
    await poll(path, office.url, {**KEYS, "incremental": SINCE})
    async with process(path) as one:
        assert json.loads(await one.cursor() or b"")["high_water"] == "2024-06-01T00:00:00Z"


async def test_a_report_is_made_for_each_parent(office: Office, path: Path) -> None:
    answer = office._answer

    def shops(request: Request) -> Answer:
        return (
            Answer(request, body=b'{"data": [{"id": "a"}, {"id": "b"}]}')
            if request.path == "/shops"
            else answer(request)
        )

    office._answer = shops  # type: ignore[method-assign]
    job = {**JOB, "create": {"json": {"shop": "{parent.id}"}, "id": "$.id"}}
    above = {"streams": {"shops": {"path": "/shops", "records": "$.data", "id": "id"}}}
    assert (await poll(path, office.url, {**KEYS, "job": job, "parent": "shops"}, above)).events == 4
    assert sorted(one["shop"] for one in office.orders) == ["a", "b"]
    assert sorted(await logged(path)) == ["a|1", "a|2", "b|1", "b|2"]


async def test_what_it_takes_to_get_a_file_is_neither_shown_nor_saved(office: Office, path: Path) -> None:
    signature = "X-Signature=0123456789abcdef0123456789abcdef"
    office.more = {"url": f"{office.url}/files/x?{signature}"}
    office.refuse = {f"/files/x?{signature}": 500}
    keys = {**KEYS, "job": {**JOB, "download": {"url": "$.url"}}, "retry": {"attempts": 1}}
    report = await poll(path, office.url, keys)
    assert (report.outcome, "/files/x" in report.reason, "abcdef" in report.reason) == (
        Outcome.UNAVAILABLE,
        True,
        False,
    )
    async with process(path) as one:
        assert b"abcdef" not in (await one.cursor() or b"")
    job = {**JOB, "download": {"url": "$.nothing"}}
    report = await poll(path, office.url, {**KEYS, "job": job})
    assert (report.outcome, "files/x?***" in report.reason, "abcdef" in report.reason) == (Outcome.FAILED, True, False)


async def test_the_parents_of_a_stream_may_come_in_a_report(office: Office, path: Path) -> None:
    answer = office._answer

    def items(request: Request) -> Answer:
        of = request.query.get("of")
        return Answer(request, body=b'{"data": [{"id": 1}]}') if of else answer(request)

    office._answer = items  # type: ignore[method-assign]
    above = {"streams": {"lists": {**KEYS, "records": "$.data", "id": "id"}}}
    keys = {"path": "/items?of={parent.id}", "parent": "lists", "deletes": {"sweep": {"every": "1h"}}}
    assert (await poll(path, office.url, keys, above)).events == 2
    office.rows = office.rows[:1]
    report = await poll(path, office.url, keys, above)
    assert (report.outcome, report.deletes, len(office.orders)) == (Outcome.COMPLETE, 1, 2)


async def test_what_no_report_lists_any_more_is_gone(office: Office, path: Path) -> None:
    swept = {**KEYS, "deletes": {"sweep": {"every": "1h"}}}
    await poll(path, office.url, swept)
    office.rows = office.rows[1:]
    assert (await poll(path, office.url, swept)).deletes == 1


async def test_a_page_of_a_report_that_is_gone_meanwhile_has_another_made(office: Office, path: Path) -> None:
    keys = {**KEYS, "paginate": {"type": "page", "size": 1}}
    pages = {"1": [{"id": 1}], "2": [{"id": 2}], "3": []}
    answer, gone = office._answer, {"f-j1"}

    def paged(request: Request) -> Answer:
        if "files" not in request.path:
            return answer(request)
        page = request.query["page"]
        if page == "2" and request.path.split("/")[-1] in gone:
            return Answer(request, status=403, body=b"{}")
        return Answer(request, body=json.dumps({"data": pages[page]}).encode())

    office._answer = paged  # type: ignore[method-assign]
    report = await poll(path, office.url, keys)
    assert (report.outcome, report.events, len(office.orders)) == (Outcome.COMPLETE, 2, 2)
    gone |= {"f-j3", "f-j4"}
    report = await poll(path, office.url, keys)
    assert (report.outcome, "/files/f-j4?page=2: 403" in report.reason) == (Outcome.FAILED, True)


async def test_a_slice_of_a_backfill_orders_a_report_of_its_own(office: Office) -> None:
    office.rows = [{"id": day, "at": f"2023-01-0{day}T00:00:00Z"} for day in (1, 2, 3)]
    keys = {**KEYS, "incremental": {**SINCE, "until": {"body": "$.to"}, "lookback": "1d"}}
    start, end = (parse_rfc3339(f"2023-01-0{day}", None) for day in (1, 3))
    async with opened_family(office.url, keys) as family:
        pages = [page async for page in family.part("events", Stretch(start, end)).pages(None, Watching())]
    assert office.orders == [{"kind": "orders", "from": "2023-01-01T00:00:00Z", "to": "2023-01-03T00:00:00Z"}]
    assert (ids(pages), sum(page.skipped for page in pages)) == (["1", "2"], 1)
