"""Waits are what the server asked for, in whatever form, and our own delay is bounded."""

import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.retry import asked_wait, backoff, http_date

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT
AFTER = ("Retry-After",)
RESET = ("X-RateLimit-Reset",)


def waits(value: str) -> float | None:
    return asked_wait({"retry-after": value}, AFTER, NOW)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("50, 53", 53.0),
        ("53,50", 53.0),
        ("x, 9", 9.0),
        ("-5", 0.0),
        ("999999999", 999_999_999.0),
        ("1700000090", 90.0),
        ("1700000090.5", 90.5),
        ("1700000090500", 90.5),
        ("1600000000", 0.0),
        ("1600000000000", 0.0),
        ("Tue, 14 Nov 2023 22:23:20 GMT", 600.0),
        ("Tuesday, 14-Nov-23 22:23:20 GMT", 600.0),
        ("Tue Nov 14 22:23:20 2023", 600.0),
        ("Tue, 14 Nov 2023 22:23:20 -0000", 600.0),
        ("Tue, 14 Nov 2023 23:23:20 +0100", 600.0),
        ("Tue, 14 Nov 2023 22:23:20", 600.0),
        ("Sun Nov  6 08:49:37 1994", 0.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("Tue, 14 Nov 2023 22:23:20 GMT, Tue, 14 Nov 2023 22:33:20 GMT", 1200.0),
        ("Tue, 14 Nov 2023 22:23:20 GMT, 700", 700.0),
    ],
)
def test_every_form_of_a_wait_is_understood(value: str, seconds: float) -> None:
    assert waits(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "1h",
        "5 seconds",
        "NaN",
        "inf",
        "1_000",
        "0x10",
        "Fri, 31 Dec 99999 23:59:59 GMT",
        "14 Foo 2023 22:23:20",
    ],
)
def test_garbage_says_nothing(value: str) -> None:
    assert waits(value) is None


@pytest.mark.parametrize("zone", ["America/St_Johns", "Asia/Kolkata"])
def test_a_date_means_the_same_wherever_we_run(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert waits("Tue Nov 14 22:23:20 2023") == waits("Tue, 14 Nov 2023 22:23:20 GMT") == 600.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_longest_of_several_headers_wins() -> None:
    headers = {"retry-after": "5", "x-ratelimit-reset": "1700000060", "ratelimit-reset": "10"}
    assert asked_wait(headers, ("Retry-After", "X-RateLimit-Reset", "RateLimit-Reset"), NOW) == 60.0


def test_headers_are_found_whatever_the_case_of_their_configured_names() -> None:
    assert asked_wait({"retry-after": "5"}, ("RETRY-AFTER",), NOW) == 5.0


def test_only_the_named_headers_count() -> None:
    assert asked_wait({"x-other": "5"}, AFTER, NOW) is None


@pytest.mark.parametrize(
    ("remaining", "succeeded", "seconds"),
    [
        ("0", True, 60.0),
        ("17", True, None),
        (None, True, None),
        ("junk", True, None),
        ("0", False, 60.0),
        ("17", False, None),
        (None, False, 60.0),
    ],
)
def test_a_reset_header_counts_when_nothing_remains(
    remaining: str | None, succeeded: bool, seconds: float | None
) -> None:
    headers = {"x-ratelimit-reset": "60"} | ({} if remaining is None else {"x-ratelimit-remaining": remaining})
    assert asked_wait(headers, RESET, NOW, succeeded=succeeded) == seconds


def test_a_retry_after_counts_with_a_good_answer_too() -> None:
    assert asked_wait({"retry-after": "3"}, AFTER, NOW, succeeded=True) == 3.0


def test_a_wait_without_end_is_a_number_that_can_be_shown() -> None:
    assert waits("9" * 300) == 1e15


@given(st.text(), st.text())
def test_no_header_whatever_it_says_raises_or_asks_for_less_than_nothing(value: str, remaining: str) -> None:
    headers = {"x-ratelimit-reset": value, "x-ratelimit-remaining": remaining}
    wait = asked_wait(headers, RESET, NOW)
    assert wait is None or wait >= 0.0


@given(st.text(alphabet="0123456789.,-+eE GMTADecSunFri:", max_size=60))
def test_what_looks_like_a_wait_raises_nothing_either(value: str) -> None:
    wait = waits(value)
    assert wait is None or wait >= 0.0


@given(st.integers(0, 4_000_000_000))
def test_every_date_that_a_server_can_format_is_read_exactly(moment: int) -> None:
    assert http_date(formatdate(moment, usegmt=True)) == moment


@given(st.integers(1, 10_000), st.floats(0.001, 10.0), st.floats(10.0, 1000.0))
def test_our_own_delay_never_passes_its_cap(attempt: int, base: float, cap: float) -> None:
    assert 0.0 <= backoff(attempt, base, cap) <= min(cap, base * 2.0 ** min(attempt - 1, 60))


def test_the_delay_is_spread_over_the_whole_range() -> None:
    delays = [backoff(3, 1.0, 60.0) for _ in range(1000)]
    assert min(delays) < 1.0 < 3.0 < max(delays) <= 4.0
