"""Tables for people: as wide as they are where there is room, on a narrow terminal without what says least.

Only the last column is broken over several lines. What was left out is said below.
"""

from collections.abc import Sequence
from typing import NamedTuple

GAP = 2  # blanks between two columns
LAST = 24  # characters that the last column gets at least
WIDE = 200  # characters, where no terminal is
NOTHING = ("", "-", "0", "0.0 s")


Names = Sequence[str]
Rows = Sequence[Sequence[str]]


class Spare(NamedTuple):
    """Columns that a narrow terminal does without, in their order: `quiet` where they have nothing to say, then
    `lesser`."""

    quiet: Names = ()
    lesser: Names = ()


NONE = Spare()


class Shape(NamedTuple):
    kept: list[int]  # columns
    dropped: list[int]  # those of the others that had something to say


def shape(columns: Names, found: Rows, spare: Spare, width: int) -> Shape:
    """Which columns fit."""
    widths = [max(map(len, (name, *(row[n] for row in found)))) for n, name in enumerate(columns)]
    kept, last = list(range(len(columns))), len(columns) - 1
    widths[last] = min(widths[last], LAST)
    silent = {n for n in kept if all(row[n] in NOTHING for row in found)}
    quiet = [n for n in map(columns.index, spare.quiet) if n in silent]
    dropped = []
    for n in dict.fromkeys([*quiet, *map(columns.index, spare.lesser)]):
        if sum(widths[one] + GAP for one in kept) - GAP <= width:
            break
        kept.remove(n)
        dropped += [] if n in silent else [n]
    return Shape(kept, dropped)


def show(columns: Names, found: Rows, spare: Spare) -> None:
    """On standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=WIDE)
    kept, dropped = shape(columns, found, spare, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for n in kept:
        table.add_column(columns[n], overflow="fold", no_wrap=n != kept[-1] and console.is_terminal)
    for row in found:
        table.add_row(*(row[n] for n in kept))
    console.print(table)
    if dropped:
        print(f"left out, as the terminal is narrow: {', '.join(columns[n] for n in dropped)}")
