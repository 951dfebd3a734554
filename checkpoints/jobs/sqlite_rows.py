"""How jobs lie in the SQLite file: times are milliseconds, lists are JSON."""

import sqlite3
from collections.abc import Iterable

import msgspec

from ingest.sqlite import NOW_MS

MINUTE = 60_000  # milliseconds
GUARDED = "('queue_one', 'cancel_previous')"
"""Policies of overlap by which one job of a schedule runs at a time; others of it may be pending."""


def moment(connection: sqlite3.Connection) -> int:
    """The database's clock: once in a transaction."""
    return int(connection.execute(f"SELECT {NOW_MS}").fetchone()[0])


def millis(seconds: float) -> int:
    return round(seconds * 1000)


def array(items: Iterable[object]) -> str:
    return msgspec.json.encode(list(items)).decode()


def running_of(column: str, value: str) -> str:
    return f"(SELECT count(*) FROM jobs AS r WHERE r.state = 'running' AND r.{column} = {value})"


def shown_as(worker: str) -> str:
    """The part of `host:pid:random` by which others see whether its process is there."""
    return worker.rpartition(":")[2]
