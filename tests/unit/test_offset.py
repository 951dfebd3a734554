"""What is known of a database's clock is never wrong, and gets better with every answer."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.sources.offset import DRIFT, TICK, Offset

TINY = 1e-6

ANSWERS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20)
"""Seconds before asking, until the clock is read, until the answer is there."""


@given(st.floats(0, 1e9), ANSWERS)
def test_their_time_by_our_clock_is_never_early_and_late_by_the_uncertainty_at_most(
    difference: float, answers: list[tuple[float, float, float]]
) -> None:
    offset, now = Offset(), 1000.0
    for pause, there, back in answers:
        asked_at = now + pause
        read_at, now = asked_at + there, asked_at + there + back
        offset.seen(asked_at, int((read_at + difference) / TICK) * TICK, now)
        late = offset.ours(read_at + difference) - read_at
        assert -TINY <= late <= offset.uncertainty + TINY


def test_the_quickest_answer_counts_until_the_clocks_may_have_come_apart() -> None:
    offset = Offset()
    offset.seen(0.0, 100.001, 0.002)
    quick = offset.uncertainty
    offset.seen(1.0, 101.4, 2.0)
    assert quick < offset.uncertainty <= quick + 2 * 2.0 * DRIFT


def test_a_clock_that_was_set_is_known_anew() -> None:
    offset = Offset()
    offset.seen(0.0, 100.0, 0.01)
    offset.seen(1.0, 5000.0, 1.01)
    assert abs(offset.ours(5000.0) - 1.01) < TINY
