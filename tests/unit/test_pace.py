"""Throttled, we halve and grow back; what little remains of a quota is spread."""

import pytest

from ingest.sources.pace import FAR, RECOVERY, SLOWEST, Pace
from ingest.sources.quota import Quota


def test_at_first_everything_may_leave_at_once() -> None:
    pace = Pace(8, None)
    assert (pace.width, pace.rate) == (8, None)
    pace.departed(10.0)
    assert pace.next(10.0) <= 10.0


def test_being_throttled_halves_what_may_be_under_way_and_the_rate() -> None:
    pace = Pace(8, 10.0)
    assert pace.throttled(1.0, 2.0)
    assert (pace.width, pace.rate) == (4, 5.0)
    pace.departed(2.0)
    assert pace.next(2.0) == pytest.approx(2.2)


def test_answers_to_requests_that_had_left_before_do_not_halve_again() -> None:
    pace = Pace(8, 10.0)
    pace.throttled(1.0, 2.0)
    assert not pace.throttled(1.9, 2.1)
    assert pace.throttled(2.1, 2.2)
    assert pace.width == 2


def test_halving_ends_at_one_request_and_a_crawl() -> None:
    pace = Pace(8, 64.0)
    for n in range(20):
        pace.throttled(n, n)
    assert pace.width == 1
    assert pace.rate is not None
    assert 64.0 * SLOWEST <= pace.rate < 4.0  # a second between two of them is time to grow, too


def test_it_grows_back_in_equal_steps() -> None:
    pace = Pace(8, 10.0)
    pace.throttled(0.0, 0.0)
    rates = []
    for n in range(1, 4):
        assert pace.answered(n)
        rates.append(pace.rate)
    assert rates == pytest.approx([5 + n * 10 / RECOVERY for n in range(1, 4)])
    assert pace.answered(RECOVERY)
    assert pace.rate == 10.0


def test_a_window_of_answers_makes_room_for_one_more_request() -> None:
    pace = Pace(8, None)
    pace.throttled(0.0, 0.0)
    widths = []
    for _ in range(30):
        pace.answered(0.0)
        widths.append(pace.width)
    assert widths[3:5] == [4, 5]
    assert widths[-1] == 8
    assert not pace.answered(0.0)


def test_what_little_remains_is_spread_until_the_quota_is_whole() -> None:
    pace = Pace(1, None)
    pace.departed(100.0)
    pace.told([Quota(4, 100, 20.0)], 0, 100.0)
    assert pace.next(100.0) == 105.0
    assert pace.next(121.0) <= 121.0


def test_requests_under_way_are_not_counted_as_what_remains() -> None:
    pace = Pace(3, None)
    pace.departed(100.0)
    pace.told([Quota(4, 100, 20.0)], 2, 100.0)
    assert pace.next(100.0) == 110.0


@pytest.mark.parametrize(
    "quota", [Quota(6, 100, 20.0), Quota(1, 100, 0.0), Quota(1, 100, FAR + 1), Quota(2, None, 9.0)]
)
def test_where_enough_remains_or_the_end_is_far_nothing_is_spread(quota: Quota) -> None:
    pace = Pace(1, None)
    pace.departed(100.0)
    pace.told([quota], 0, 100.0)
    assert pace.next(100.0) <= 100.0


def test_a_quota_that_is_whole_again_is_not_spread_any_more() -> None:
    pace = Pace(1, None)
    pace.departed(100.0)
    pace.told([Quota(1, 100, 20.0)], 0, 100.0)
    pace.told([Quota(99, 100, 60.0)], 0, 101.0)
    assert pace.next(101.0) <= 101.0


def test_of_several_quotas_one_that_is_low_counts() -> None:
    pace = Pace(1, None)
    pace.departed(100.0)
    pace.told([Quota(1, 10, 5.0), Quota(999, 1000, 3000.0)], 0, 100.0)
    assert pace.next(100.0) == 105.0
