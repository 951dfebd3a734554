"""A table fits the terminal: what says nothing goes first, then what its caller can do without, which is said."""

import pytest

from ingest.cli.table import Shape, Spare, shape

COLUMNS = ("stream", "events", "retries", "cursor", "why")
SPARE = Spare(("retries",), ("cursor",))
ROWS = [["shop/orders", "1,000", "0", "end of the listing", "no token at $.next, as there is none any more"]]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (100, Shape([0, 1, 2, 3, 4], [])),
        (70, Shape([0, 1, 3, 4], [])),
        (50, Shape([0, 1, 4], [3])),
        (10, Shape([0, 1, 4], [3])),
    ],
)
def test_columns_go_in_their_order_until_the_others_fit(width: int, expected: Shape) -> None:
    assert shape(COLUMNS, ROWS, SPARE, width) == expected


def test_a_column_that_says_something_in_one_row_stays() -> None:
    rows = [*ROWS, ["shop/users", "1", "3", "-", "single page"]]
    assert shape(COLUMNS, rows, SPARE, 50) == Shape([0, 1, 2, 4], [3])
