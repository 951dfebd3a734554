"""Values are shown as they would be written in the file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.config.spelling import amount, per_time, seconds
from ingest.config.values import duration, rate, size


@given(st.integers(0, 10**12))
def test_a_duration_is_read_back_as_it_was(milliseconds: int) -> None:
    assert duration(seconds(milliseconds / 1000) if milliseconds else 0) == pytest.approx(milliseconds / 1000)


@given(st.integers(1, 10**12))
def test_a_size_is_read_back_as_it_was(count: int) -> None:
    assert size(amount(count)) == count


@pytest.mark.parametrize("text", ["100/s", "80/m", "5000/h", "7/d", "0.5/s"])
def test_a_rate_is_read_back_as_it_was(text: str) -> None:
    assert rate(per_time(rate(text))) == pytest.approx(rate(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [(604_800.0, "7d"), (5400.0, "1h30m"), (0.5, "500ms"), (60.0, "1m"), (0.0, "0"), (1.5, "1s500ms")],
)
def test_durations_are_spelled_with_the_longest_units(value: float, text: str) -> None:
    assert seconds(value) == text
