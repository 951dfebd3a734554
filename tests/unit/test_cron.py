"""A cron fires when a person who reads it would say, where clocks are set too; what never fires is said to be so."""

from bisect import bisect_right
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest.jobs.cron import DAY, Cron, Fold, Gap, days_that_change, joined

ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Africa/Cairo", "Asia/Beirut", "Asia/Kolkata",
    "Australia/Lord_Howe", "America/St_Johns", "America/Nuuk", "Africa/Casablanca", "Pacific/Apia", "Antarctica/Troll",
]  # fmt: skip


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def day(zone: str, text: str) -> tuple[float, float]:
    """From just before its midnight to just before the next."""
    midnight = datetime.combine(date.fromisoformat(text), time(), ZoneInfo(zone))
    after = datetime.combine(date.fromisoformat(text) + timedelta(days=1), time(), ZoneInfo(zone))
    return midnight.timestamp() - 1, after.timestamp() - 1


def fires(cron: Cron, since: float, until: float) -> list[str]:
    found = []
    tick = cron.after(since)
    while tick is not None and tick <= until:
        found.append(datetime.fromtimestamp(tick, UTC).strftime("%d %H:%M"))
        tick = cron.after(tick)
    return found


@pytest.mark.parametrize(
    ("text", "zone", "on", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2027-03-28", ["28 01:00"]),
        ("30 2 * * *", "Europe/Berlin", "2027-10-31", ["31 00:30"]),
        ("0 3 * * *", "Europe/Berlin", "2027-03-28", ["28 01:00"]),
        ("0 2,3 * * *", "Europe/Berlin", "2027-03-28", ["28 01:00"]),
        ("0,30 2 * * *", "Europe/Berlin", "2027-03-28", ["28 01:00"]),
        ("*/30 2 * * *", "Europe/Berlin", "2027-03-28", ["28 01:00"]),
        ("*/30 2 * * *", "Europe/Berlin", "2027-10-31", ["31 00:00", "31 00:30"]),
        ("30 2 * * *", "America/New_York", "2027-03-14", ["14 07:00"]),
        ("30 1 * * *", "America/New_York", "2027-11-07", ["07 05:30"]),
        ("15 1 * * *", "Europe/London", "2027-03-28", ["28 01:00"]),
        ("0 0 * * *", "America/Santiago", "2027-09-05", ["05 04:00"]),
        ("0 0 * * *", "Africa/Cairo", "2027-04-30", ["29 22:00"]),
        ("0 0 * * *", "Asia/Beirut", "2027-03-28", ["27 22:00"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2027-10-03", ["02 15:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2027-04-04", ["03 14:45"]),
    ],
)
def test_a_time_of_day_fires_once_where_clocks_are_set(text: str, zone: str, on: str, expected: list[str]) -> None:
    assert fires(Cron(text, ZoneInfo(zone)), *day(zone, on)) == expected


@pytest.mark.parametrize(
    ("text", "forward", "back"), [("0 * * * *", 23, 25), ("*/15 * * * *", 92, 100), ("0 */2 * * *", 12, 12)]
)
def test_every_hour_goes_by_elapsed_time_and_every_other_hour_by_the_clock(text: str, forward: int, back: int) -> None:
    cron = Cron(text, ZoneInfo("Europe/Berlin"))
    for on, expected in (("2027-03-28", forward), ("2027-10-31", back)):
        found = fires(cron, *day("Europe/Berlin", on))
        assert len(found) == len(set(found)) == expected == cron.count(*day("Europe/Berlin", on))
    assert "28 01:00" in fires(cron, *day("Europe/Berlin", "2027-03-28"))


@pytest.mark.parametrize(
    ("gap", "fold", "forward", "back"),
    [
        ("shift", "first", ["28 01:00"], ["31 00:30"]),
        ("skip", "last", [], ["31 01:30"]),
        ("skip", "both", [], ["31 00:30", "31 01:30"]),
    ],
)
def test_the_rule_may_be_another(gap: Gap, fold: Fold, forward: list[str], back: list[str]) -> None:
    cron = Cron("30 2 * * *", ZoneInfo("Europe/Berlin"), gap, fold)
    assert fires(cron, *day("Europe/Berlin", "2027-03-28")) == forward
    assert fires(cron, *day("Europe/Berlin", "2027-10-31")) == back


def test_nothing_fires_for_a_day_that_was_left_out() -> None:
    cron = Cron("0 9 * * *", ZoneInfo("Pacific/Apia"))
    found = fires(cron, at("2011-12-28T12:00"), at("2012-01-01T00:00"))
    assert found == ["28 19:00", "29 19:00", "30 19:00", "31 19:00"]
    days = [datetime.fromtimestamp(at(f"2011-12-{one.replace(' ', 'T')}"), cron.zone).day for one in found]
    assert days == [28, 29, 31, 1]


def test_a_clock_that_is_set_back_over_midnight_mixes_two_days() -> None:
    """St. John's, 2006: at 00:01 the clock went back to 23:01 of the day before."""
    cron = Cron("0,30 * * * *", ZoneInfo("America/St_Johns"))
    found = fires(cron, at("2006-10-29T01:15"), at("2006-10-29T04:15"))
    assert found == ["29 01:30", "29 02:00", "29 02:30", "29 03:00", "29 03:30", "29 04:00"]


def test_days_of_the_month_and_weekdays_are_either_or_unless_one_begins_with_a_star() -> None:
    since, until = at("2027-01-31T12:00"), at("2027-03-01T12:00")
    assert fires(Cron("0 0 13 * 5"), since, until) == ["05 00:00", "12 00:00", "13 00:00", "19 00:00", "26 00:00"]
    assert fires(Cron("0 0 */13 * 5"), since, until) == []
    assert joined("0 0 13 * 5") == "on every day that matches either: day of the month `13`, or day of the week `5`"
    assert joined("0 0 */2 * 5") == "only on days that match both: day of the month `*/2`, and day of the week `5`"
    assert joined("0 0 1 * *") is joined("0 0 * * 1-5") is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("0 0 30 2 *", "`0 0 30 2 *` never fires: there is no such date"),
        ("0 0 31 4,6 */7", "`0 0 31 4,6 */7` never fires: there is no such date"),
        ("0 0 6 * * *", "has 6 fields; a cron expression has five, and none of them for seconds"),
        ("0 6 * *", "has 4 fields; a cron expression has five: minute, hour, day of the month, month"),
        ("", "has 1 field; "),
        ("60 * * * *", "`60 * * * *`: `60` is no minute"),
        ("0 24 * * *", "`24` is no hour"),
        ("0 0 0 * *", "`0` is no day of the month"),
        ("0 0 * juni *", "`juni` is no month"),
        ("0 0 * * fri-mon", "`fri-mon` is no day of the week"),
        ("0 0 * * 1#2/2", "`1#2/2` is no day of the week"),
        ("*/0 * * * *", "`*/0` is no minute"),
        ("@daily", "`@daily` is no cron expression; write 0 0 * * *"),
    ],
)
def test_what_never_fires_or_cannot_be_read_is_said(text: str, wrong: str) -> None:
    with pytest.raises(ValueError) as caught:
        Cron(text)
    assert wrong in str(caught.value)


def test_a_rare_date_is_found() -> None:
    cron = Cron("0 0 29 2 */7")  # a Sunday
    assert cron.after(at("2027-01-01")) == at("2032-02-29")
    assert cron.until(at("2027-01-01")) == at("2004-02-29")
    assert "February" in cron.words()


def test_the_days_on_which_a_clock_is_set_are_found() -> None:
    cron = Cron("30 2 * * *", ZoneInfo("Europe/Berlin"))
    found = [date.fromordinal(one).isoformat() for one in days_that_change(cron, at("2027-01-01"), 365)]
    assert found == ["2027-03-28", "2027-10-31"]


class CountingZone(tzinfo):
    """A zone that counts how often it is asked."""

    def __init__(self, name: str) -> None:
        self.zone, self.asked = ZoneInfo(name), 0

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        self.asked += 1
        return self.zone.utcoffset(dt)

    def dst(self, dt: datetime | None) -> timedelta | None:
        return self.zone.dst(dt)

    def tzname(self, dt: datetime | None) -> str | None:
        return self.zone.tzname(dt)

    def fromutc(self, dt: datetime) -> datetime:
        self.asked += 1
        return self.zone.fromutc(dt.replace(tzinfo=self.zone)).replace(tzinfo=self)


def test_what_ninety_days_missed_costs_does_not_grow_with_the_ticks() -> None:
    since = at("2027-01-01")
    until = since + 90 * DAY
    work = {}
    for text, ticks in (("0 0 * * *", 90), ("* * * * *", 129_600)):
        zone = CountingZone("Europe/Berlin")
        cron = Cron(text, zone)
        assert cron.count(since, until) == ticks
        assert cron.until(until) is not None
        work[text] = zone.asked
    assert work["* * * * *"] < work["0 0 * * *"] + 2 * 1440 + 10  # the day on which the clock is set, minute by minute
    zone = CountingZone("Europe/Berlin")
    Cron("* * * * *", zone).count(since - 40_000 * DAY, until)
    assert zone.asked < 30_000  # a century: no more than the last days are counted


FIELDS = st.tuples(
    st.sampled_from(["0", "30", "*/15", "0,59", "1", "*", "7-40/11"]),
    st.sampled_from(["*", "2", "0", "23", "*/2", "1-3", "0,23", "2,3"]),
    st.sampled_from(["*", "*", "13", "L", "28-31", "*/2"]),
    st.sampled_from(["*", "*", "3", "10", "2-4"]),
    st.sampled_from(["*", "*", "0", "1-5", "sun", "5#2"]),
)
MOMENTS = st.integers(int(at("2005-01-01")), int(at("2038-01-01"))).map(float)


@settings(deadline=None, max_examples=150)
@given(fields=FIELDS, zone=st.sampled_from(ZONES), since=MOMENTS, gap=st.sampled_from(["shift", "skip"]),
       fold=st.sampled_from(["first", "last", "both"]))  # fmt: skip
@example(("0,30", "0,23", "*", "*", "*"), "America/Nuuk", at("2026-03-28T20:00"), "shift", "both")
@example(("*/15", "*", "*", "*", "*"), "America/St_Johns", at("2006-10-28T20:00"), "shift", "first")
def test_ticks_only_grow_and_there_and_back_are_the_same(
    fields: tuple[str, ...], zone: str, since: float, gap: Gap, fold: Fold
) -> None:
    cron = Cron(" ".join(fields), ZoneInfo(zone), gap, fold)
    ticks = [since]
    for _ in range(30):
        following = cron.after(ticks[-1])
        assert following is not None
        ticks.append(following)
    assert all(earlier < later for earlier, later in pairwise(ticks))
    assert [cron.until(tick) for tick in ticks[1:]] == ticks[1:]
    assert [cron.until(tick - 1) for tick in ticks[2:]] == ticks[1:-1]
    middle = ticks[15] + 1
    if ticks[-1] - since < 900 * DAY:
        assert cron.count(since, ticks[-1]) == 30
        assert cron.count(since, middle) + cron.count(middle, ticks[-1]) == 30


@settings(deadline=None, max_examples=60)
@given(minutes=st.sampled_from(["0", "*/15", "7,52"]), zone=st.sampled_from(ZONES), since=MOMENTS)
@example("*/15", "Europe/Berlin", at("2027-10-30T12:00"))
@example("*/15", "Australia/Lord_Howe", at("2027-10-02T00:00"))
def test_every_hour_is_every_moment_whose_clock_on_the_wall_matches(minutes: str, zone: str, since: float) -> None:
    cron = Cron(f"{minutes} * * * *", ZoneInfo(zone))
    wanted = {int(one) for one in minutes.split(",")} if "/" not in minutes else set(range(0, 60, 15))
    begin = int(since) // 60 * 60
    moments = range(begin + 60, begin + 2 * DAY, 60)
    brute = [m for m in moments if datetime.fromtimestamp(m, cron.zone).minute in wanted]
    walked = [begin]
    while (following := cron.after(walked[-1])) is not None and following < moments[-1] + 1:
        walked.append(int(following))
    assert walked[1:] == brute[: bisect_right(brute, moments[-1])]
