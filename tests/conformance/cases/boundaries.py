"""Where the next run begins: equal times, late rows, rows without a time."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.conformance.case import (
    CURSOR,
    PAGING,
    Ask,
    Case,
    Expect,
    Play,
    Run,
    Since,
    Stage,
    json_answer,
    row,
    rows,
    up_to,
)
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
            since = instant(request.query.get("since", "1970-01-01T00:00:00Z"))
        except ValueError:
            return Answer(request, status=400, body=b"since is no time")
        return json_answer(request, {"data": [one for one in listed if instant(str(one["updated_at"])) >= since]})

    stage.api.routes["/events"] = answer


def instant(text: str) -> datetime:
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


def out_of_order(stage: Stage) -> Run:
    listing = stage.serve([row(3), row(1), row(2)])
    yield None
    listing.add(row(4))
    yield None
    stage.must(sent(stage).startswith("2024-01-01T00:00:03"), f"asks from {sent(stage)}, not from the highest")


def later_than(stage: Stage) -> Run:
    """`since` means: later than."""
    listed = rows(3)

    def answer(request: Request) -> Answer:
        since = instant(request.query.get("since", "1970-01-01T00:00:00Z"))
        return json_answer(request, {"data": [one for one in listed if instant(str(one["updated_at"])) > since]})

    stage.api.routes["/events"] = answer
    yield None
    listed.append(row(4, at=3))
    yield None


CASES = (
    Case("B17 B18", "a row of the same second appears after the run", "the lower bound is inclusive: it is read",
         a_row_of_the_same_second, FROM, Expect(up_to(4), once=True)),
    Case("B18 later", "reads the lower bound as: later than", "a row of the same second is read all the same",
         later_than, replace(ONE_PAGE, since=Since(exclusive=True)), Expect(up_to(4), once=True)),
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
    Case("B39", "rows come in no order", "the mark is the highest value and never moves back", out_of_order, FROM,
         Expect(up_to(4))),
)  # fmt: skip
