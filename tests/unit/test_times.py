"""Times are compared as instants, sent truncated and read in every configured form."""

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.sources import times

KOLKATA = ZoneInfo("Asia/Kolkata")
NEW_YORK = ZoneInfo("America/New_York")
ZONES = [UTC, KOLKATA, NEW_YORK, ZoneInfo("America/St_Johns")]
PATTERNS = [
    "rfc3339",
    "unix",
    "unix_ms",
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%Y-%m-%dT%H:%M:%S.%f%z",
    "%Y-%m",
]
POSITIONS = st.integers(times.EARLIEST, times.LATEST)
SINCE_1973 = st.integers(10**17 // 1000, 4_000_000_000_000_000)  # before, milliseconds look like seconds


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("2024-01-02T03:04:05Z", at("2024-01-02T03:04:05+00:00")),
        ("2024-01-02T03:04:05z", at("2024-01-02T03:04:05+00:00")),
        ("2024-01-02 03:04:05Z", at("2024-01-02T03:04:05+00:00")),
        ("2024-01-02T03:04:05+05:30", at("2024-01-01T21:34:05+00:00")),
        ("2024-01-02T03:04:05.614Z", at("2024-01-02T03:04:05+00:00") + 614_000),
        ("2024-01-02T03:04:05.123456789Z", at("2024-01-02T03:04:05+00:00") + 123_456),
        ("2024-01-02", at("2024-01-02T00:00:00+00:00")),
    ],
)
def test_rfc_3339_is_read_as_an_instant(text: str, position: int) -> None:
    assert times.parser(("rfc3339",), None)(text) == position


def test_a_bare_date_is_midnight_utc_whatever_the_zone() -> None:
    assert times.parser(("rfc3339",), KOLKATA)("2024-01-02") == at("2024-01-02T00:00:00+00:00")


def test_a_pattern_without_a_time_of_day_needs_no_zone() -> None:
    assert times.parser(("%d/%m/%Y",), None)("02/01/2024") == at("2024-01-02T00:00:00+00:00")


@pytest.mark.parametrize("zone", ["America/St_Johns", "Asia/Kolkata"])
def test_times_mean_the_same_wherever_we_run(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        noon = at("2024-01-02T12:00:00+00:00")
        assert times.parser(("%Y-%m-%d %H:%M",), UTC)("2024-01-02 12:00") == noon
        assert times.parser(("%Y-%m-%d",), None)("2024-01-02") == noon - 43_200_000_000
        assert times.render(noon, "%Y-%m-%d %H:%M", None) == "2024-01-02 12:00"
        assert times.rfc3339(noon) == "2024-01-02T12:00:00Z"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_naive_time_takes_the_configured_zone() -> None:
    assert times.parser(("rfc3339",), KOLKATA)("2024-01-02T03:04:05") == at("2024-01-01T21:34:05+00:00")
    assert times.parser(("%Y-%m-%d %H:%M",), KOLKATA)("2024-01-02 03:04") == at("2024-01-01T21:34:00+00:00")


@pytest.mark.parametrize("formats", [("rfc3339",), ("%Y-%m-%dT%H:%M:%S",), ("rfc3339", "%d.%m.%Y")])
def test_a_naive_time_without_a_zone_is_refused_and_says_what_to_set(formats: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="timezone"):
        times.parser(formats, None)("2024-01-02T03:04:05")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("1700000000", 1_700_000_000_000_000),
        ("1700000000.123456789", 1_700_000_000_123_456),
        ("1700000000123", 1_700_000_000_123_000),
        ("1700000000123.5", 1_700_000_000_123_500),
        ("1700000000123456", 1_700_000_000_123_456),
        ("0", 0),
        ("-1.5", -1_500_000),
        ("-0.25", -250_000),
    ],
)
def test_a_number_is_seconds_milli_or_microseconds_by_size(text: str, position: int) -> None:
    assert times.parser(("unix",), None)(text) == position


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2024-13-01", "2024-01-02T25:00:00Z", "1e9", "99999999999999999999", "９９"]
)
def test_what_is_no_time_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        times.parser(("rfc3339", "unix"), UTC)(text)


def test_a_number_is_no_time_unless_a_numeric_format_is_configured() -> None:
    with pytest.raises(ValueError, match="is not rfc3339"):
        times.parser(("rfc3339",), UTC)("1700000000")


def test_a_pattern_of_digits_reads_numbers() -> None:
    assert times.parser(("%Y%m%d", "rfc3339"), UTC)("20240102") == at("2024-01-02T00:00:00+00:00")


def test_the_first_format_that_fits_is_taken() -> None:
    parse = times.parser(("%d/%m/%Y", "%m/%d/%Y"), UTC)
    assert parse("02/01/2024") == at("2024-01-02T00:00:00+00:00")
    assert parse("01/31/2024") == at("2024-01-31T00:00:00+00:00")


@pytest.mark.parametrize(
    ("form", "zone", "sent"),
    [
        ("rfc3339", None, "2024-01-02T20:04:05.987654Z"),
        ("unix", None, "1704225845"),
        ("unix_ms", None, "1704225845987"),
        ("%Y-%m-%d", None, "2024-01-02"),
        ("%Y-%m-%d", KOLKATA, "2024-01-03"),
        ("%Y-%m-%d %H:%M:%S", NEW_YORK, "2024-01-02 15:04:05"),
        ("%Y-%m-%dT%H:%M:%S%z", KOLKATA, "2024-01-03T01:34:05+0530"),
    ],
)
def test_what_is_sent_is_truncated_to_its_format(form: str, zone: ZoneInfo | None, sent: str) -> None:
    assert times.render(at("2024-01-02T20:04:05+00:00") + 987_654, form, zone) == sent


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2024-01-02T03:04:05Z", "2024-01-02T03:04:05Z"),
        ("2024-01-02T03:04:05.25Z", "2024-01-02T03:04:05.25Z"),
        ("2024-01-02T03:04:05+05:30", "2024-01-01T21:34:05Z"),
        ("2024-01-02 03:04:05Z", "2024-01-02T03:04:05Z"),
        ("2024-01-02T03:04:05.123456789Z", "2024-01-02T03:04:05.123456Z"),
        ("2024-01-02", "2024-01-02T00:00:00Z"),
    ],
)
def test_any_time_can_be_shown_in_utc(text: str, shown: str) -> None:
    assert times.in_utc(text, times.parser(("rfc3339",), None)) == shown


def test_an_impossible_time_is_not_shown() -> None:
    with pytest.raises(ValueError, match="is not"):
        times.in_utc("2024-13-45T99:99:99Z", times.parser(("rfc3339",), None))


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("-7", -7), ("9223372036854775807", 2**63 - 1)])
def test_integers_are_exact(text: str, number: int) -> None:
    assert times.parse_integer(text) == number


@pytest.mark.parametrize("text", ["", "1.0", "1e3", "1_000", " 1", "9223372036854775808", "1" * 5000])
def test_what_no_database_could_keep_is_no_integer(text: str) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        times.parse_integer(text)


@given(POSITIONS)
def test_a_shown_position_is_read_back_exactly(position: int) -> None:
    assert times.parse_rfc3339(times.rfc3339(position), None) == position


@given(SINCE_1973, st.sampled_from(PATTERNS), st.sampled_from(ZONES))
def test_what_is_sent_never_lies_behind_the_position(position: int, form: str, zone: ZoneInfo) -> None:
    sent = times.render(position, form, zone)
    read = times.parser((form,), zone)(sent)
    assert read <= position
    assert times.render(read, form, zone) == sent


@given(SINCE_1973, SINCE_1973, st.sampled_from(PATTERNS), st.sampled_from([UTC, KOLKATA]))
def test_a_later_position_is_never_sent_as_an_earlier_one(a: int, b: int, form: str, zone: ZoneInfo) -> None:
    parse = times.parser((form,), zone)
    low, high = sorted((a, b))
    assert parse(times.render(low, form, zone)) <= parse(times.render(high, form, zone))


@given(st.datetimes(timezones=st.sampled_from(ZONES), min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)))
def test_an_offset_changes_the_text_and_not_the_instant(moment: datetime) -> None:
    expected = (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert times.parse_rfc3339(moment.astimezone(UTC).isoformat(), None) == expected
    assert times.instant(moment, None) == expected


@given(st.text(max_size=40), st.sampled_from(PATTERNS))
def test_any_text_is_a_position_or_a_value_error(text: str, form: str) -> None:
    try:
        position = times.parser((form, "rfc3339", "unix"), UTC)(text)
    except ValueError:
        return
    assert times.EARLIEST <= position <= times.LATEST


@pytest.mark.parametrize(
    ("text", "position"),
    [("9999-12-31T23:59:59Z", times.LATEST), ("9999-12-31", times.LATEST), ("0001-01-01T00:00:00Z", times.EARLIEST)],
)
def test_dates_that_stand_for_never_are_early_or_late_enough(text: str, position: int) -> None:
    assert times.parser(("rfc3339",), None)(text) == position
