"""The main job on real data: 336,776 flights, out of an API that nobody here wrote, into rows, every one compared."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.command import Engine, Ingest
from tests.harness import datasette
from tests.harness.names import unique

EMBEDDED_ROWS = 60_000  # of them on SQLite; all on Kafka and Postgres


def configuration(url: str, source: str) -> str:
    return f"""
version: 1
sources:
  {source}:
    base_url: {url}
    streams:
      departures:
        path: /flights/flights.json
        params: {{_shape: objects, _size: max}}
        records: $.rows
        id: id
        key: carrier
        occurred_at: time_hour
        paginate: {{type: next_url, from: $.next_url}}
        incremental: {{type: integer, field: id, since: {{param: id__gte}}, order: asc}}
consumers:
  warehouse: {{kind: store, topics: ["{source}.*"]}}
topics: {{partitions: 4, replication: 1, min_insync: 1, durability: relaxed}}
"""


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[datasette.Datasette]:
    api = datasette.start(tmp_path_factory.mktemp("datasette"))
    try:
        yield api
    finally:
        api.close()


@pytest.fixture(scope="module")
def some_flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[datasette.Datasette]:
    api = datasette.start(tmp_path_factory.mktemp("some"), rows=EMBEDDED_ROWS)
    try:
        yield api
    finally:
        api.close()


def expected(api: datasette.Datasette) -> dict[int, dict[str, object]]:
    connection = sqlite3.connect(f"file:{api.database}?mode=ro", uri=True)
    try:
        connection.row_factory = sqlite3.Row
        return {row["id"]: dict(row) for row in connection.execute("SELECT * FROM flights")}
    finally:
        connection.close()


def add_flights(api: datasette.Datasette, count: int) -> int:
    """The highest id before."""
    columns = "year, month, day, carrier, flight, origin, dest, time_hour"
    with closing(sqlite3.connect(api.database)) as connection, connection:
        top: int = connection.execute("SELECT max(id) FROM flights").fetchone()[0]
        for flight in range(count):
            values = (2013, 12, 31, "ZZ", flight, "JFK", "LAX", "2013-12-31T23:00:00Z")
            connection.execute(f"INSERT INTO flights ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    return top


async def stored(ingest: Ingest) -> Iterator[dict[str, object]]:
    done = await ingest("events", "--format", "jsonl")
    return (json.loads(line) for line in done.out.splitlines())


async def every_row_arrives(ingest: Ingest, api: datasette.Datasette, source: str) -> None:
    rows = expected(api)
    first = (await ingest("run", "--source", source, "--once", "--json")).json[0]
    assert (first["outcome"], first["events"]) == ("complete", len(rows))
    consumed = (await ingest("consume", "warehouse", "--once", "--json")).json[0]
    assert (consumed["inserted"], consumed["duplicates"], consumed["dead_letters"]) == (len(rows), 0, 0)

    seen: set[str] = set()
    for event in await stored(ingest):
        payload = event["payload"]
        assert isinstance(payload, dict)
        assert rows.pop(payload["id"]) == payload
        assert (event["source"], event["stream"], event["key"]) == (source, "departures", payload["carrier"])
        seen.add(str(event["event_id"]))
    assert rows == {}
    assert len(seen) == first["events"]

    again = (await ingest("run", "--source", source, "--once", "--json")).json[0]
    assert (again["outcome"], again["events"], again["unchanged"]) == ("complete", 0, 1)
    repeated = (await ingest("consume", "warehouse", "--once", "--json")).json[0]
    assert (repeated["inserted"], repeated["duplicates"]) == (0, 0)


async def test_all_flights_arrive_through_kafka_in_postgres(
    flights: datasette.Datasette, servers: Engine, tmp_path: Path
) -> None:
    source = unique("flights")
    (tmp_path / "ingest.yaml").write_text(configuration(flights.url, source))
    await every_row_arrives(Ingest(tmp_path, servers), flights, source)


async def test_flights_arrive_in_one_sqlite_file(some_flights: datasette.Datasette, tmp_path: Path) -> None:
    (tmp_path / "ingest.yaml").write_text(configuration(some_flights.url, "flights"))
    await every_row_arrives(Ingest(tmp_path, Engine("embedded", {})), some_flights, "flights")


EXPORTS = {
    "csv": "{path: /flights/flights.csv, format: csv, params: {_stream: on, _sort: id, id__lte: 5001}}",
    "jsonl": "{path: /flights/flights.json, format: jsonl, paginate: link,"
    " params: {_shape: array, _nl: on, _size: 1000, _sort: id, id__lte: 5001}}",  # one row on the last page
}


@pytest.mark.parametrize("kind", EXPORTS)
async def test_what_is_exported_is_what_the_database_holds(
    kind: str, some_flights: datasette.Datasette, tmp_path: Path
) -> None:
    (tmp_path / "ingest.yaml").write_text(f"""
version: 1
sources:
  flights: {{base_url: {some_flights.url}, defaults: {{records: $, id: id}}, streams: {{departures: {EXPORTS[kind]}}}}}
consumers:
  warehouse: {{kind: store, topics: ["flights.*"]}}
""")
    ingest = Ingest(tmp_path, Engine("embedded", {}))
    await ingest("run", "--once")
    await ingest("consume", "warehouse", "--once")
    wanted = {str(id): row for id, row in expected(some_flights).items() if id <= 5001}
    if kind == "csv":
        wanted = {id: {n: "" if v is None else str(v) for n, v in row.items()} for id, row in wanted.items()}
    assert {str(event["key"]): event["payload"] for event in await stored(ingest)} == wanted


async def test_rows_behind_the_last_one_are_all_that_the_next_run_reads(
    some_flights: datasette.Datasette, tmp_path: Path
) -> None:
    text = configuration(some_flights.url, "flights")
    paginate = "{type: keyset, fields: {id: id__gt}, size_param: _size, size: 500}"
    text = text.replace("{type: next_url, from: $.next_url}", paginate).replace("_size: max", "_sort: id")
    start = text.index("        incremental:")
    (tmp_path / "ingest.yaml").write_text(
        f"{text[:start]}        incremental: keyset\n{text[text.index('consumers:') :]}"
    )
    ingest = Ingest(tmp_path, Engine("embedded", {}))
    first = (await ingest("run", "--once", "--json")).json[0]
    assert (first["outcome"], first["events"]) == ("complete", len(expected(some_flights)))
    add_flights(some_flights, 3)
    again = (await ingest("run", "--once", "--json")).json[0]
    assert (again["events"], again["unchanged"], again["pages"]) == (3, 0, 2)


async def test_rows_that_are_added_later_are_all_that_the_next_run_publishes(
    some_flights: datasette.Datasette, engine: Engine, tmp_path: Path
) -> None:
    source = unique("flights")
    (tmp_path / "ingest.yaml").write_text(
        configuration(some_flights.url, source).replace("_size: max", f"_size: max, id__gt: {EMBEDDED_ROWS - 1500}")
    )
    ingest = Ingest(tmp_path, engine)
    await ingest("run", "--source", source, "--once")
    top = add_flights(some_flights, 3)
    again = (await ingest("run", "--source", source, "--once", "--json")).json[0]
    assert (again["events"], again["unchanged"], again["cursor_from"], again["cursor_to"]) == (
        3,
        1,
        str(top),
        str(top + 3),
    )
