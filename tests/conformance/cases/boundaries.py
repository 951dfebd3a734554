"""Where the next run begins: equal times, late rows, times of every kind, listings that were interrupted."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.conformance.case import (
    CURSOR,
    PAGING,
    Ask,
    Case,
    Change,
    Command,
    Expect,
    Kill,
    Play,
    Run,
    Since,
    Stage,
    ids,
    json_answer,
    row,
    rows,
    up_to,
)
from tests.harness import faults
from tests.harness.listings import Answer, Json, Request

SECONDS = "%Y-%m-%dT%H:%M:%SZ"
FROM = replace(CURSOR, since=Since())
ASCENDING = replace(CURSOR, since=Since(ascending=True))
FEED = replace(CURSOR, since=Since(param="", descending=True))
ONE_PAGE = Ask(PAGING["none"], since=Since())


def sent(stage: Stage, name: str = "since") -> str:
    """The lower bound of the last run's first request."""
    return stage.asked[0].query.get(name, "") if stage.asked else ""


def by_instant(stage: Stage, listed: Sequence[Json]) -> None:
    """All rows that are not older than `since`, compared as instants; 400 for a bound that is no time."""

    def answer(request: Request) -> Answer:
        try:
            since = _instant(request.query.get("since", "1970-01-01T00:00:00Z"))
        except ValueError:
            return Answer(request, status=400, body=b"since is no time")
        return json_answer(request, {"data": [one for one in listed if _instant(str(one["updated_at"])) >= since]})

    stage.api.routes["/events"] = answer


def _instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def a_row_of_the_same_second(stage: Stage) -> Run:
    listing = stage.serve(rows(3))
    yield None
    listing.add(row(4, at=3))
    yield None


def a_row_that_comes_late(stage: Stage) -> Run:
    listing = stage.serve([row(1, at=10), row(2, at=20)])
    yield None
    listing.replace([row(1, at=10), row(3, at=15), row(2, at=20)])
    yield None


def rows_that_settle(stage: Stage) -> Run:
    """Seconds after a row, an older one becomes visible."""
    begun = time.time()
    first = [row(1, ago(begun, 300)), row(2, ago(begun, 1))]
    by_instant(stage, first)
    yield None
    by_instant(stage, [*first, row(3, ago(begun, 5))])
    yield None


def a_clock_behind(stage: Stage) -> Run:
    """The API's clock is an hour behind, its answers say so, and a row of its now becomes visible late."""
    there = time.time() - 3600
    listed = [row(1, ago(there, 300)), row(2, ago(there, 1))]

    def answer(request: Request) -> Answer:
        date = datetime.fromtimestamp(time.time() - 3600, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        since = request.query.get("since", "")
        return json_answer(request, {"data": [one for one in listed if str(one["updated_at"]) >= since]}, date=date)

    stage.api.routes["/events"] = answer
    yield None
    listed.append(row(3, ago(there, 5)))
    yield None


def ago(now: float, seconds: float) -> str:
    return (datetime.fromtimestamp(now, UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def nothing_new(stage: Stage) -> Run:
    stage.serve(rows(3))
    yield None
    yield None


def a_row_of_the_future(stage: Stage) -> Run:
    listing = stage.serve([row(1), row(2, "2999-01-01T00:00:00Z")])
    yield None
    listing.replace([row(1), row(3), row(2, "2999-01-01T00:00:00Z")])
    yield None


def newest_first(stage: Stage) -> Run:
    listing = stage.serve(rows(6)[::-1])
    yield None
    listing.replace(rows(8)[::-1])
    yield None
    stage.must(sent(stage).startswith("2024-01-01T00:00:06"), f"asks from {sent(stage)}, not from the newest row")


def newest_first_and_cut_off(stage: Stage) -> Run:
    stage.serve(rows(6)[::-1])
    stage.api.misbehave([faults.ok, *[faults.status(500)] * 20])
    yield None
    stage.api.misbehave([])
    yield None


def oldest_first_and_cut_off(stage: Stage) -> Run:
    stage.serve(rows(8))
    stage.api.misbehave([faults.ok, faults.ok, *[faults.status(500)] * 20])
    yield None
    stage.api.misbehave([])
    yield None
    stage.must(len(stage.asked) <= 3, "begins again at the first page")


def a_feed_without_a_filter(stage: Stage) -> Run:
    listing = stage.serve(rows(12)[::-1])
    yield None
    listing.replace(rows(13)[::-1])
    yield None
    stage.must(len(stage.asked) <= 2, f"reads {len(stage.asked)} of 7 pages for one new row")


def rows_come_while_it_is_listed(stage: Stage) -> Run:
    listing = stage.serve(rows(3), size=4)
    yield None
    listing.replace(rows(9))
    listing.page_size = 2
    yield None
    bounds = {request.query.get("since") for request in stage.asked}
    stage.must(len(bounds) == 1, f"pages of one listing with {len(bounds)} lower bounds")


def without_a_time(*names: int, filtered: bool) -> Play:
    """Those rows have none. `filtered`: a request with a lower bound leaves them out."""

    def play(stage: Stage) -> Run:
        listed = [{**one, "updated_at": None} if n in names else one for n, one in enumerate(rows(6), 1)]

        def answer(request: Request) -> Answer:
            since, at = request.query.get("since"), int(request.query.get("cursor", 0))
            found = [one for one in listed if since is None or not filtered or str(one["updated_at"] or "") >= since]
            token = str(at + 2) if at + 2 < len(found) else None
            return json_answer(
                request, {"data": found[at : at + 2], "next_cursor": token, "has_more": token is not None}
            )

        stage.api.routes["/events"] = answer
        yield None

    return play


def parts_of_a_second(stage: Stage) -> Run:
    by_instant(stage, [row(1, "2024-01-01T00:00:33.614Z")])
    yield None
    by_instant(stage, [row(1, "2024-01-01T00:00:33.614Z"), row(2, "2024-01-01T00:00:33.900Z")])
    yield None


def times_of_elsewhere(stage: Stage) -> Run:
    """10:00 at +05:30 is 04:30 UTC."""
    first = row(1, "2024-01-01T10:00:00+05:30")
    by_instant(stage, [first])
    yield None
    by_instant(stage, [first, row(2, "2024-01-01T05:00:00Z")])
    yield None


def numbers_as_text(written: Mapping[int, object]) -> Play:
    """The field counts 9, 10, 11; `written`: as the API writes it."""

    def play(stage: Stage) -> Run:
        def serve(*numbers: int) -> None:
            def answer(request: Request) -> Answer:
                since = int(request.query.get("since", 0))
                listed = [{"id": f"r{n}", "seq": written[n], "n": n} for n in numbers if n >= since]
                return json_answer(request, {"data": listed})

            stage.api.routes["/events"] = answer

        serve(9, 10)
        yield None
        serve(9, 10, 11)
        yield None
        stage.must(sent(stage) == "10", f"asks from {sent(stage)}, not from 10")

    return play


def naive_times(stage: Stage) -> Run:
    first = row(1, "2024-03-10T02:30:00")

    def serve(*listed: Json) -> None:
        stage.api.routes["/events"] = lambda request: json_answer(
            request, {"data": [one for one in listed if str(one["updated_at"]) >= request.query.get("since", "")]}
        )

    serve(first)
    yield None
    serve(first, row(2, "2024-03-10T02:35:00"))
    yield None
    stage.must(sent(stage) == "2024-03-10T02:30:00", f"asks from {sent(stage)}, not from 2024-03-10T02:30:00")


def dates(stage: Stage) -> Run:
    listed = [row(1, "2024-01-05")]
    stage.api.routes["/events"] = lambda request: json_answer(
        request, {"data": [one for one in listed if str(one["updated_at"]) >= request.query.get("since", "")]}
    )
    yield None
    listed.append(row(2, "2024-01-04"))
    yield None
    stage.must(sent(stage)[:10] == "2024-01-04", f"asks from {sent(stage)}, not from a day before 2024-01-05")


def out_of_order(stage: Stage) -> Run:
    listing = stage.serve([row(3), row(1), row(2)])
    yield None
    listing.add(row(4))
    yield None
    stage.must(sent(stage).startswith("2024-01-01T00:00:03"), f"asks from {sent(stage)}, not from the highest")


def unordered_though_promised(stage: Stage) -> Run:
    """Page 1 holds a newer row than page 2, which cannot be had at first."""
    stage.serve([row(1), row(6), row(2), row(3)])
    stage.api.misbehave([faults.ok, *[faults.status(500)] * 20])
    yield None
    stage.api.misbehave([])
    yield None


def killed(at: int) -> Play:
    def play(stage: Stage) -> Run:
        stage.serve(rows(10))
        yield Kill(at)
        yield None
        stage.must("cursor" in stage.asked[0].query, "begins again at the first page")

    return play


def token_refused(status: int) -> Play:
    """Page 3 cannot be had; a day later its token is no longer known."""

    def play(stage: Stage) -> Run:
        stage.serve(rows(8))
        stage.api.misbehave([faults.ok, faults.ok, *[faults.status(500)] * 20])
        yield None
        stage.api.misbehave([lambda answer: faults.status(status)(answer) if answer.start else answer])
        yield None

    return play


def looked_at(*argv: str) -> Play:
    """Page 3 cannot be had; before the next run someone looks."""

    def play(stage: Stage) -> Run:
        stage.serve(rows(8))
        stage.api.misbehave([faults.ok, faults.ok, *[faults.status(500)] * 20])
        yield None
        stage.api.misbehave([])
        yield Command(argv)
        yield None
        stage.must(stage.asked[0].query.get("cursor") == "t4", "does not go on where it stood")

    return play


def another_filter(stage: Stage) -> Run:
    """Page 3 cannot be had; then the configuration asks for something else."""
    stage.serve(rows(8))
    stage.api.misbehave([faults.ok, faults.ok, *[faults.status(500)] * 20])
    yield None
    stage.api.misbehave([])
    yield Change({"params": {"kind": "b"}})
    stage.must("cursor" not in stage.asked[0].query, "goes on with a token of another listing")


def later_than(stage: Stage) -> Run:
    """`since` means: later than."""
    listed = rows(3)

    def answer(request: Request) -> Answer:
        since = _instant(request.query.get("since", "1970-01-01T00:00:00Z"))
        return json_answer(request, {"data": [one for one in listed if _instant(str(one["updated_at"])) > since]})

    stage.api.routes["/events"] = answer
    yield None
    listed.append(row(4, at=3))
    yield None


def last_second_of_a_day(inclusive: bool) -> Play:
    """It is asked for a day at a time, and rows are of the last second of a day, and of the first of the next."""

    def play(stage: Stage) -> Run:
        day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2)
        moments = [timedelta(seconds=-1, milliseconds=n) for n in (0, 412, 999)] + [timedelta()]
        listed = [row(n, (day + one).isoformat("T", "milliseconds")[:-6] + "Z") for n, one in enumerate(moments, 1)]

        def answer(request: Request) -> Answer:
            since = _instant(request.query.get("since", "2000-01-01T00:00:00Z"))
            until = _instant(request.query.get("until", "2999-01-01T00:00:00Z"))
            found = [
                one for one in listed
                if since <= (at := _instant(str(one["updated_at"]))) and (at <= until if inclusive else at < until)
            ]  # fmt: skip
            return json_answer(request, {"data": found})

        stage.api.routes["/events"] = answer
        first = (day - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        until_is = "inclusive" if inclusive else "exclusive"
        yield Change({"since": Since(first=first, format=SECONDS, timezone="UTC", until="until", until_is=until_is)})

    return play


def gives_a_sync_token(refused: bool) -> Play:
    """The last page names what starts the next run. `refused`: by then it is too old."""

    def play(stage: Stage) -> Run:
        def answer(request: Request) -> Answer:
            if (token := request.query.get("sync")) is None:
                count = 2 if len(stage.api.requests) == 1 else 3
                return json_answer(request, {"data": rows(count), "sync": "s2"})
            if refused:
                return Answer(request, status=410, body=b'{"error":"full sync required"}')
            return json_answer(request, {"data": rows(1, first=3) if token == "s2" else [], "sync": "s3"})

        stage.api.routes["/events"] = answer
        yield None
        yield None

    return play


NAIVE = replace(
    ONE_PAGE, since=Since(kind="text", format="%Y-%m-%dT%H:%M:%S", formats=["%Y-%m-%dT%H:%M:%S"], timezone="UTC")
)
SYNCED = replace(ONE_PAGE, since=Since("sync", "sync", kind="token"))
COUNTED = replace(ONE_PAGE, since=Since("seq", kind="integer"), fields=["seq", "n"])

CASES = (
    Case("B17 B18", "a row of the same second appears after the run", "the lower bound is inclusive: it is read",
         a_row_of_the_same_second, FROM, Expect(up_to(4), once=True)),
    Case("B18 later", "reads the lower bound as: later than", "a row of the same second is read all the same",
         later_than, replace(ONE_PAGE, since=Since(exclusive=True)), Expect(up_to(4), once=True)),
    *(
        Case(f"B21 {word}", f"is asked a day at a time, in seconds, its upper bound {word}; rows have milliseconds",
             "the last second of a day is not lost", last_second_of_a_day(word == "inclusive"), ONE_PAGE,
             Expect(up_to(4)))
        for word in ("exclusive", "inclusive")
    ),
    Case("sync token", "the last page names what starts the next run", "the next run starts there",
         gives_a_sync_token(False), SYNCED, Expect(up_to(3), once=True)),
    Case("sync token 410", "refuses what starts the next run, because it is too old", "one full read",
         gives_a_sync_token(True), SYNCED, Expect(up_to(3))),
    Case("B23 B62", "nothing is new, and the newest row is listed again", "nothing leaves twice", nothing_new, FROM,
         Expect(up_to(3), never_twice=True)),
    Case("B19 lookback", "a row appears that is older than the newest one read", "`lookback` finds it",
         a_row_that_comes_late, replace(CURSOR, since=Since(lookback=10)), Expect(up_to(3), once=True)),
    Case("B19 B20 lag", "seconds after a row, an older one becomes visible", "the cursor stays behind now: it is read",
         rows_that_settle, replace(ONE_PAGE, since=Since(lag=60)), Expect(up_to(3), once=True)),
    Case("X12", "its clock is an hour behind ours, and rows become visible late", "`lag` counts by its clock",
         a_clock_behind, replace(ONE_PAGE, since=Since(lag=60)), Expect(up_to(3), told="clock")),
    Case("B25", "one row is of the year 2999", "it is read, and the cursor does not follow it", a_row_of_the_future,
         FROM, Expect(up_to(3))),
    Case("B26", "lists the newest first", "the mark is the highest value, not the last one", newest_first,
         replace(CURSOR, since=Since(descending=True)), Expect(up_to(8))),
    Case("B26 cut off", "lists the newest first, and fails on page 2", "the next run reads the older rows too",
         newest_first_and_cut_off, replace(CURSOR, since=Since(descending=True)), Expect(up_to(6), [False, True])),
    Case("B64", "fails on page 3 for a while", "the next run goes on at page 3", oldest_first_and_cut_off, ASCENDING,
         Expect(up_to(8), [False, True], once=True)),
    Case("B64 killed", "(the tool is killed while page 3 is on its way)", "the next run goes on there", killed(3),
         CURSOR, Expect(up_to(10), [None, True])),
    Case("feed", "lists the newest first and knows no filter", "the next run stops at what is known",
         a_feed_without_a_filter, FEED, Expect(up_to(13), once=True)),
    Case("B27", "rows arrive while it is listed", "every page of a listing has the same lower bound",
         rows_come_while_it_is_listed, ASCENDING, Expect(up_to(9))),
    Case("B30", "leaves rows without a time out when a lower bound is sent", "the first run sends none",
         without_a_time(2, filtered=True), FROM, Expect(up_to(6))),
    Case("B31", "one row has no time", "it is read, and paging goes on", without_a_time(3, filtered=False), FROM,
         Expect(up_to(6))),
    Case("B31 page", "a whole page has no times", "it is read, and paging goes on",
         without_a_time(3, 4, filtered=False), FROM, Expect(up_to(6))),
    Case("B38", "times have milliseconds, the parameter has seconds", "truncated, never rounded up", parts_of_a_second,
         replace(ONE_PAGE, since=Since(format=SECONDS, timezone="UTC")), Expect(up_to(2))),
    Case("B33 B35", "times carry the offset +05:30", "they are compared as instants", times_of_elsewhere,
         replace(ONE_PAGE, since=Since(format="%Y-%m-%dT%H:%M:%S%z", formats=["%Y-%m-%dT%H:%M:%S%z"])),
         Expect(up_to(2))),
    Case("B35 numbers", "the field is a number: 9, 10, 11", "compared as numbers",
         numbers_as_text({9: 9, 10: 10, 11: 11}), COUNTED, Expect(ids(9, 10, 11))),
    Case("B35 text", 'the field is a number in a string: "9", "10", "11"', "compared as numbers",
         numbers_as_text({9: "9", 10: "10", 11: "11"}), COUNTED, Expect(ids(9, 10, 11))),
    *(
        Case(f"B36 {zone}", f"times have no offset, and the machine is in {zone}", "`timezone` says what they mean",
             naive_times, NAIVE, Expect(up_to(2)), environment={"TZ": zone})
        for zone in ("America/St_Johns", "Asia/Kolkata")
    ),
    Case("B34", "times are bare dates, and a day is to be read again", "a day is a day", dates,
         replace(ONE_PAGE, since=Since(lookback=86_400, format="%Y-%m-%d", formats=["%Y-%m-%d"])), Expect(up_to(2))),
    Case("B39", "rows come in no order", "the mark is the highest value and never moves back", out_of_order, FROM,
         Expect(up_to(4))),
    Case("B39 promised", "rows come in no order although it promises one, and page 2 fails at first",
         "no row behind the mark is lost", unordered_though_promised, ASCENDING,
         Expect(ids(1, 2, 3, 6), [False, True])),
    *(
        Case(f"X1 {status}", f"page 3 fails, and later its token is refused with {status}",
             "the window begins again, once", token_refused(status), ASCENDING, Expect(up_to(8), [False, True]))
        for status in (400, 404, 410)
    ),
    *(
        Case(f"B15 {argv[0]}", f"page 3 fails, and `ingest {' '.join(argv)}` runs before the next run",
             "the next run goes on where it stood", looked_at(*argv), CURSOR,
             Expect(up_to(8), [False, True, True], once=True), peers=False)
        for argv in (
            ("check", "--connect"), ("preview", "--source", "api", "--stream", "events"),
            ("run", "--once", "--dry-run"),
        )
    ),
    Case("X2", "page 3 fails, and then the configuration asks for something else",
         "the saved token is not used for another listing", another_filter, CURSOR, Expect(up_to(8), [False, True])),
)  # fmt: skip
