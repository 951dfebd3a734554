"""A schedule has one dead job, which counts those before it, as in `postgres_folding`."""

import sqlite3
from collections.abc import Sequence


def fold(connection: sqlite3.Connection, died: Sequence[int]) -> None:
    """Into each of these, which are of schedules, the other dead jobs of that schedule; their attempts go with them."""
    for id in sorted(died, reverse=True):
        gone = connection.execute(
            """DELETE FROM jobs WHERE state = 'dead' AND id <> ?1
               AND schedule = (SELECT schedule FROM jobs WHERE id = ?1) RETURNING deaths""",
            (id,),
        ).fetchall()
        number = sum(deaths + 1 for (deaths,) in gone)
        connection.execute("UPDATE jobs SET deaths = deaths + ? WHERE id = ?", (number, id))
