"""Times and numbers of every kind, as bounds and in records."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.conformance.case import (
    Case,
    Change,
    Expect,
    Play,
    Run,
    Since,
    Stage,
    ids,
    json_answer,
    row,
    up_to,
)
from tests.conformance.cases.boundaries import ONE_PAGE, SECONDS, by_instant, instant, sent
from tests.harness.listings import Answer, Json, Request

NAIVE = replace(
    ONE_PAGE, since=Since(kind="text", format="%Y-%m-%dT%H:%M:%S", formats=["%Y-%m-%dT%H:%M:%S"], timezone="UTC")
)
COUNTED = replace(ONE_PAGE, since=Since("seq", kind="integer"), fields=["seq", "n"])


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


def last_second_of_a_day(inclusive: bool) -> Play:
    """It is asked for a day at a time, and rows are of the last second of a day, and of the first of the next."""

    def play(stage: Stage) -> Run:
        day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2)
        moments = [timedelta(seconds=-1, milliseconds=n) for n in (0, 412, 999)] + [timedelta()]
        listed = [row(n, (day + one).isoformat("T", "milliseconds")[:-6] + "Z") for n, one in enumerate(moments, 1)]

        def answer(request: Request) -> Answer:
            since = instant(request.query.get("since", "2000-01-01T00:00:00Z"))
            until = instant(request.query.get("until", "2999-01-01T00:00:00Z"))
            found = [
                one for one in listed
                if since <= (at := instant(str(one["updated_at"]))) and (at <= until if inclusive else at < until)
            ]  # fmt: skip
            return json_answer(request, {"data": found})

        stage.api.routes["/events"] = answer
        first = (day - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        until_is = "inclusive" if inclusive else "exclusive"
        yield Change({"since": Since(first=first, format=SECONDS, timezone="UTC", until="until", until_is=until_is)})

    return play


CASES = (
    *(
        Case(f"B21 {word}", f"is asked a day at a time, in seconds, its upper bound {word}; rows have milliseconds",
             "the last second of a day is not lost", last_second_of_a_day(word == "inclusive"), ONE_PAGE,
             Expect(up_to(4)))
        for word in ("exclusive", "inclusive")
    ),
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
)  # fmt: skip
