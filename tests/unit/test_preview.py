"""What people are told of a schedule: when it fires next, and what it does where clocks are set."""

from datetime import UTC, datetime

import pytest

from ingest.cli.schedules_shown import schedules
from ingest.config.loader import parse

FILE = """version: 1
sources:
  a:
    base_url: https://x
    defaults: {path: /x, records: $}
    streams:
      b: {KEYS}
"""


def shown(keys: str, now: str) -> list[str]:
    config = parse(FILE.replace("KEYS", keys)).config
    return [line.strip() for line in schedules(config, datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp())]


def test_the_next_five_runs_stand_in_one_line_with_the_day_where_it_changes() -> None:
    assert shown("cron: 0 */6 * * *", "2027-01-31T11:00") == [
        "a/b  0 */6 * * * UTC  next: Sun 2027-01-31 12:00 UTC, 18:00, Mon 2027-02-01 00:00 UTC, 06:00, 12:00"
    ]
    [line] = shown("every: 90s", "2027-01-31T11:00")
    assert line.startswith("a/b  every 90s  next: Sun 2027-01-31 11:0") and line.count(",") == 4


def test_tasks_are_shown_too() -> None:
    config = parse(FILE.replace("KEYS", "") + "tasks: {report: {call: 'a:b', cron: 0 6 * * 1}}").config
    assert [line.split()[0] for line in schedules(config, 0.0)] == ["a/b", "task:report"]


def test_what_is_polled_all_the_time_has_no_runs_to_show() -> None:
    assert shown("every: 50ms", "2027-01-31T11:00") == []


@pytest.mark.parametrize(
    ("keys", "now", "remarks"),
    [
        (
            "cron: 30 2 * * *, timezone: Europe/Berlin",
            "2027-03-27T12:00",
            [
                "2027-03-28: the clock is set forward, 02:30 is left out: fires at 03:00 CEST",
                "2027-10-31: the clock is set back, 02:30 is there twice: fires the first time",
            ],
        ),
        (
            "cron: '*/10 2 * * *', timezone: Europe/Berlin, dst: {gap: skip, fold: both}",
            "2027-03-27T12:00",
            [
                "2027-03-28: the clock is set forward, 02:00, 02:10, 02:20, … are left out: does not fire",
                "2027-10-31: the clock is set back, 02:00, 02:10, 02:20, … are there twice: fires both times",
            ],
        ),
        (
            "cron: '*/15 * * * *', timezone: Europe/Berlin",
            "2027-03-27T12:00",
            [
                "2027-03-28: the clock is set; fires 92 times, by elapsed time",
                "2027-10-31: the clock is set; fires 100 times, by elapsed time",
            ],
        ),
        ("cron: 0 6 * * *, timezone: Europe/Berlin", "2027-03-27T12:00", []),
        (
            "cron: 0 6 13 * 5, catch_up: all",
            "2027-03-27T12:00",
            [
                "on every day that matches either: day of the month `13`, or day of the week `5`",
                "catch_up: all, but overlap: skip: of what was missed the first one keeps the others out",
            ],
        ),
    ],
)
def test_what_is_not_obvious_stands_below(keys: str, now: str, remarks: list[str]) -> None:
    [_, *found] = shown(keys, now)
    assert found == remarks


@pytest.mark.parametrize(
    ("now", "run"),
    [
        ("2027-03-27T12:00", "Sun 2027-03-28 03:00 CEST (02:30 is left out that day)"),
        ("2027-10-30T12:00", "Sun 2027-10-31 02:30 CEST (the first of two)"),
    ],
)
def test_a_run_on_such_a_day_says_so(now: str, run: str) -> None:
    assert f"next: {run}, Mon" in shown("cron: 30 2 * * *, timezone: Europe/Berlin", now)[0]
