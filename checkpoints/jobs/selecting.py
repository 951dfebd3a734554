"""What the two engines' statements for people have in common: which columns, and which rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from checkpoints.jobs.desk import Attempt, Filter, Row

S = TypeVar("S", bound=msgspec.Struct)

TIMES = ("_at", "_until")  # how the names of columns end that hold one


def columns(kind: type[Row] | type[Attempt], moment: Callable[[str], str]) -> str:
    """The SELECT list of what becomes a `kind`. `moment`: a column of a time as seconds since 1970."""
    return ", ".join(moment(name) if name.endswith(TIMES) else name for name in kind.__struct_fields__)


def made(kind: type[S], values: Iterable[object]) -> S:
    """Of the columns in the order of the fields; 0 and 1 are what SQLite has for false and true."""
    fields: Mapping[str, Any] = dict(zip(kind.__struct_fields__, values, strict=True))
    return msgspec.convert(fields, kind, strict=False)


def condition(chosen: Filter, mark: Callable[[int], str]) -> tuple[str, list[str]]:
    """After WHERE, and the values of its parameters. `mark`: what stands for parameter n, the first being 1.

    States are literal: the indexes are partial, and a planner that does not see the value uses none of them."""
    tests, values = ["true"], []
    for column, value in (
        ("source", chosen.source),
        ("kind", chosen.kind),
        ("last_error_class", chosen.error_class),
        ("schedule", chosen.schedule),
    ):
        if value is not None:
            values.append(value)
            tests.append(f"{column} = {mark(len(values))}")
    if chosen.states:
        tests.append(f"state IN ({', '.join(repr(state.value) for state in chosen.states)})")
    if chosen.ids is not None:
        tests.append(f"id IN {among(chosen.ids)}")
    return " AND ".join(tests), values


def among(ids: Sequence[int]) -> str:
    """`id IN …`; of numbers alone, so they are part of the statement."""
    return f"({', '.join(map(str, map(int, ids))) or 'NULL'})"
