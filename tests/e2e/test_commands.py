"""Each command as a user meets it: what it prints, what it leaves behind, and its exit code."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import httpx
import pytest_asyncio

from tests.e2e.command import Engine, Ingest
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.names import unique

EMBEDDED = Engine("embedded", {})


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        yield server


def configured(folder: Path, api: FakeApi, source: str = "shop", *, every: str = "50ms", **stream: str) -> None:
    keys = "".join(f"\n        {name}: {value}" for name, value in stream.items())
    (folder / "ingest.yaml").write_text(f"""
version: 1
sources:
  {source}:
    base_url: {api.url}
    retry: {{attempts: 2, base: 1ms, cap: 2ms}}
    streams:
      orders:
        path: /orders
        records: $.data
        id: id
        paginate: {{type: next_url, from: $.next}}
        every: {every}{keys}
consumers:
  warehouse: {{kind: store, topics: ["{source}.*"], batch: {{wait: 50ms}}}}
topics: {{partitions: 3, replication: 1, min_insync: 1, durability: relaxed, max_message: 100KB}}
""")


async def ids(ingest: Ingest) -> list[str]:
    done = await ingest("events", "--format", "jsonl")
    return sorted(json.loads(line)["payload"]["id"] for line in done.out.splitlines())


def up_to(count: int) -> list[str]:
    return [str(record["id"]) for record in numbered(count)]


def samples(text: str) -> Mapping[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


async def until(ready: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it is true."""
    async with asyncio.timeout(60):
        while not await ready():  # noqa: ASYNC110 - another process is asked
            await asyncio.sleep(0.05)


async def test_records_become_rows_and_a_second_run_writes_nothing(
    api: FakeApi, engine: Engine, tmp_path: Path
) -> None:
    source = unique("shop")
    api.serve("orders", numbered(250), page_size=100)
    configured(tmp_path, api, source)
    ingest = Ingest(tmp_path, engine)
    first = await ingest("run", "--source", source, "--once")
    assert f"{source}/orders" in first.out
    await ingest("consume", "warehouse", "--once")
    assert await ids(ingest) == up_to(250)
    second = await ingest("run", "--once")
    assert "nothing new" in second.out
    consumed = await ingest("consume", "warehouse", "--once", "--json")
    assert consumed.json[0]["inserted"] == consumed.json[0]["duplicates"] == 0


async def test_processes_that_keep_running_bring_new_records_to_rows_and_say_so_in_metrics(
    api: FakeApi, engine: Engine, tmp_path: Path
) -> None:
    source = unique("shop")
    orders = api.serve("orders", numbered(30), page_size=10)
    configured(tmp_path, api, source)
    ingest = Ingest(tmp_path, engine, INGEST_LOG_FORMAT="json")
    poller = await ingest.start("run", "--source", source, "--ops", "127.0.0.1:0")
    consumer = await ingest.start("consume", "warehouse", "--ops", "127.0.0.1:0")
    try:
        poller_url, consumer_url = await listening(poller), await listening(consumer)
        async with httpx.AsyncClient() as client:

            async def ready() -> bool:
                return (await client.get(poller_url.replace("/metrics", "/readyz"))).status_code == 200

            async def stored(count: int) -> bool:
                found = samples((await client.get(consumer_url)).text)
                labels = f'group="warehouse.{source}.orders",outcome="inserted",topic="{source}.orders"'
                return found.get(f"ingest_consumer_records_total{{{labels}}}") == count

            await until(ready)
            await until(lambda: stored(30))
            orders.add(*numbered(5, first=31))
            await until(lambda: stored(35))
            polled = samples((await client.get(poller_url)).text)
            assert polled[f'ingest_source_records_total{{outcome="published",source="{source}",stream="orders"}}'] == 35
            assert (await client.get(poller_url.replace("/metrics", "/healthz"))).text == "ok\n"
    finally:
        for process in (poller, consumer):
            process.send_signal(signal.SIGTERM)
        results = [await asyncio.wait_for(process.communicate(), 30) for process in (poller, consumer)]
    assert [process.returncode for process in (poller, consumer)] == [0, 0], results
    assert await ids(ingest) == up_to(35)


async def listening(process: asyncio.subprocess.Process) -> str:
    """The address that the process says it serves metrics at."""
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while line := await process.stderr.readline():
            if b"metrics and health" in line:
                return str(json.loads(line)["url"])
    raise AssertionError("it never said where it listens")


async def test_an_api_that_stays_away_is_exit_3_and_the_next_run_goes_on_at_the_same_page(
    api: FakeApi, engine: Engine, tmp_path: Path
) -> None:
    source = unique("shop")
    api.serve("orders", numbered(50), page_size=10)
    configured(tmp_path, api, source)
    ingest = Ingest(tmp_path, engine)
    api.misbehave([faults.ok, faults.ok, faults.status(503), faults.status(503)])
    failed = await ingest("run", "--once", code=3)
    assert "UNAVAILABLE" in failed.out
    assert "503" in failed.out
    asked = len(api.requests)
    await ingest("run", "--once")
    assert len(api.requests) - asked == 3
    await ingest("consume", "warehouse", "--once")
    assert await ids(ingest) == up_to(50)


async def test_a_listing_that_changed_its_shape_is_exit_1_and_says_where_and_what_to_try(
    api: FakeApi, tmp_path: Path
) -> None:
    api.serve("orders", numbered(5))
    configured(tmp_path, api)
    api.misbehave([faults.records_at("results")])
    failed = await Ingest(tmp_path, EMBEDDED)("run", "--once", code=1)
    assert "ingest.yaml:" in failed.out
    assert "$.results (5)" in failed.out


async def test_a_wrong_configuration_is_exit_2_with_every_mistake_at_its_place(api: FakeApi, tmp_path: Path) -> None:
    configured(tmp_path, api, evrey="5m", sede="1")
    for command in (["check"], ["run", "--once"], ["consume", "warehouse", "--once"]):
        done = await Ingest(tmp_path, EMBEDDED)(*command, code=2)
        assert "ingest.yaml:14:9: unknown key `evrey`, did you mean `every`?" in done.err
        assert "ingest.yaml:15:9: unknown key `sede`" in done.err


async def test_an_unknown_source_is_exit_2(api: FakeApi, tmp_path: Path) -> None:
    configured(tmp_path, api)
    done = await Ingest(tmp_path, EMBEDDED)("run", "--source", "shp", "--once", code=2)
    assert "no source `shp`; configured: shop" in done.err


async def test_a_database_that_was_not_migrated_is_refused_until_migrate_has_run(
    api: FakeApi, kafka_url: str, bare_postgres_url: str, tmp_path: Path
) -> None:
    source = unique("shop")
    api.serve("orders", numbered(3))
    configured(tmp_path, api, source)
    engine = Engine("", {"INGEST_LOG_URL": kafka_url, "INGEST_STORE_URL": bare_postgres_url})
    ingest = Ingest(tmp_path, engine)
    assert "ingest migrate" in (await ingest("run", "--once", code=2)).err
    await ingest("migrate", "--check", code=1)
    await ingest("migrate")
    await ingest("migrate", "--check")
    await ingest("run", "--once")


async def test_a_dry_run_changes_nothing(api: FakeApi, engine: Engine, tmp_path: Path) -> None:
    source = unique("shop")
    api.serve("orders", numbered(25), page_size=10)
    configured(tmp_path, api, source)
    ingest = Ingest(tmp_path, engine)
    done = (await ingest("run", "--once", "--dry-run", "--json")).json[0]
    assert (done["events"], done["outcome"]) == (25, "complete")
    assert (await ingest("checkpoints", "list", "--json")).json == []
    assert (await ingest("run", "--once", "--json")).json[0]["events"] == 25


async def test_checkpoints_can_be_seen_moved_and_forgotten(api: FakeApi, engine: Engine, tmp_path: Path) -> None:
    source = unique("shop")
    records = numbered(25)
    api.serve("orders", records, page_size=10)
    configured(tmp_path, api, source, incremental="{type: timestamp, field: updated_at, since: {param: since}}")
    ingest = Ingest(tmp_path, engine)
    await ingest("run", "--once")
    assert (await ingest("checkpoints", "list", "--json")).json[0]["cursor"]["high_water"] == records[24]["updated_at"]
    await ingest("checkpoints", "set", f"{source}/orders", records[20]["updated_at"])
    shown = json.loads((await ingest("checkpoints", "show", f"{source}/orders")).out)
    assert shown["high_water"] == records[20]["updated_at"]
    again = (await ingest("run", "--once", "--json")).json[0]
    assert (again["pages"], again["events"] + again["unchanged"]) == (1, 5)
    await ingest("checkpoints", "reset", f"{source}/orders", "--yes")
    assert (await ingest("run", "--once", "--json")).json[0]["events"] == 25
    notes = [entry["note"] for entry in (await ingest("checkpoints", "history", f"{source}/orders", "--json")).json]
    assert any("set by hand" in note for note in notes)
    assert any("forgotten" in note for note in notes)
    await ingest("consume", "warehouse", "--once")
    assert await ids(ingest) == up_to(25)


async def test_a_mark_that_fits_no_cursor_and_a_stream_that_does_not_exist_are_refused(
    api: FakeApi, tmp_path: Path
) -> None:
    api.serve("orders", numbered(3))
    configured(tmp_path, api, incremental="{type: timestamp, field: updated_at, since: {param: since}}")
    ingest = Ingest(tmp_path, EMBEDDED)
    await ingest("run", "--once")
    before = (await ingest("checkpoints", "show", "shop/orders")).out
    for mark in ("yesterday", "5", "2026-11-31T00:00:00Z", "2099-01-01T00:00:00Z"):
        assert mark in (await ingest("checkpoints", "set", "shop/orders", mark, code=2)).err
    assert (await ingest("checkpoints", "show", "shop/orders")).out == before
    await ingest("checkpoints", "set", "shop/nope", "2026-01-01T00:00:00Z", code=2)
    await ingest("checkpoints", "reset", "shop/nope", "--yes", code=2)


async def test_a_consumer_of_dead_letters_does_not_read_its_own(api: FakeApi, engine: Engine, tmp_path: Path) -> None:
    source = unique("shop")
    records = [dict(record) for record in numbered(2)]
    records[1]["text"] = "x" * 120_000
    api.serve("orders", records)
    configured(tmp_path, api, source)
    path = tmp_path / "ingest.yaml"
    path.write_text(path.read_text().replace(f'["{source}.*"]', f'["{source}.*", "{source}.*.dlq.*"]'))
    ingest = Ingest(tmp_path, engine)
    await ingest("run", "--once")
    for _ in range(3):
        found = (await ingest("consume", "warehouse", "--once", "--json")).json
        assert {tally["topic"] for tally in found} == {f"{source}.orders", f"{source}.orders.dlq.source"}
    assert await ids(ingest) == up_to(2)


async def test_a_topic_that_would_be_unsafe_is_not_even_created(api: FakeApi, servers: Engine, tmp_path: Path) -> None:
    source = unique("shop")
    api.serve("orders", numbered(3))
    configured(tmp_path, api, source)
    path = tmp_path / "ingest.yaml"
    path.write_text(path.read_text().replace("durability: relaxed", "durability: production"))
    ingest = Ingest(tmp_path, servers)
    assert "not safe for production" in (await ingest("run", "--once", code=2)).err
    assert "no topic" in (await ingest("topics", "describe", f"{source}.orders", code=1)).err


async def test_topics_describe_shows_what_is_there(api: FakeApi, engine: Engine, tmp_path: Path) -> None:
    source = unique("shop")
    api.serve("orders", numbered(25))
    configured(tmp_path, api, source)
    ingest = Ingest(tmp_path, engine)
    await ingest("run", "--once")
    found = (await ingest("topics", "describe", f"{source}.orders", f"{source}.orders.dlq.source", "--json")).json
    assert {t["name"]: (t["partitions"], sum(t["end_offsets"])) for t in found} == {
        f"{source}.orders": (3, 25), f"{source}.orders.dlq.source": (3, 0),
    }  # fmt: skip
    missing = await ingest("topics", "describe", f"{source}.nothing", code=1)
    assert "no topic" in missing.err


async def test_a_record_too_large_for_its_topic_is_set_aside_and_its_neighbours_arrive(
    api: FakeApi, engine: Engine, tmp_path: Path
) -> None:
    source = unique("shop")
    records = [dict(record) for record in numbered(4)]
    records[1]["text"] = "x" * 120_000  # fits into the dead-letter topic
    records[2]["text"] = "y" * 400_000  # fits nowhere
    api.serve("orders", records)
    configured(tmp_path, api, source)
    ingest = Ingest(tmp_path, engine)
    done = (await ingest("run", "--once", "--json")).json[0]
    assert (done["outcome"], done["dead_letters"]) == ("complete", 2)
    await ingest("consume", "warehouse", "--once")
    assert await ids(ingest) == [records[0]["id"], records[3]["id"]]


async def test_init_writes_a_file_that_check_accepts_and_does_not_overwrite(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path, EMBEDDED)
    assert "ingest check" in (await ingest("init")).out
    await ingest("check")
    await ingest("init", code=2)


async def test_schema_and_version_print_what_they_say(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path, EMBEDDED)
    assert (await ingest("schema")).json["properties"]["sources"]
    assert (await ingest("version")).out.startswith("ingest ")


async def test_what_was_published_to_another_topic_does_not_count_as_published(
    api: FakeApi, engine: Engine, tmp_path: Path
) -> None:
    source = unique("shop")
    api.serve("orders", numbered(12))
    configured(tmp_path, api, source)
    ingest = Ingest(tmp_path, engine)
    assert (await ingest("run", "--once", "--json")).json[0]["events"] == 12
    configured(tmp_path, api, source, topic=f"{source}.moved")
    assert (await ingest("run", "--once", "--json")).json[0]["events"] == 12
    assert (await ingest("run", "--once", "--json")).json[0]["unchanged"] == 12


async def test_check_says_what_would_keep_it_from_running_here_and_still_accepts_the_file(tmp_path: Path) -> None:
    (tmp_path / "ingest.yaml").write_text(
        """
        version: 1
        log: kafka://localhost:9092
        sources:
          shop:
            base_url: https://api.example.com
            auth: {bearer: "${env:SHOP_TOKEN}"}
            streams: {orders: {path: /orders, records: $.data}}
        """
    )
    checked = await Ingest(tmp_path, EMBEDDED)("check")
    assert "good" in checked.out
    assert "every 5m  next: " in checked.out
    assert "ingest.yaml:7:" in checked.err and "SHOP_TOKEN is not set" in checked.err
    assert "the log is Kafka, but the store is sqlite:///" in checked.err
    silent = await Ingest(
        tmp_path, EMBEDDED, SHOP_TOKEN="x", INGEST_STORE_URL="postgresql://localhost/db"
    )("check")
    assert silent.err == ""


async def test_a_path_with_a_name_in_braces_is_told_how_a_parent_is_named(tmp_path: Path) -> None:
    (tmp_path / "ingest.yaml").write_text(
        """
        version: 1
        sources: {shop: {base_url: https://api.example.com, streams: {lines: {path: "/orders/{id}/lines", records: $}}}}
        """
    )
    said = "ingest.yaml:3:85: `{id}` is sent as it is; a field of a parent's record is `{parent.id}`\n"
    assert (await Ingest(tmp_path, EMBEDDED)("check")).err == said


async def test_a_consumer_whose_topics_are_misspelt_is_told_those_that_there_are(tmp_path: Path) -> None:
    file = tmp_path / "ingest.yaml"
    file.write_text(
        """
        version: 1
        sources: {shop: {base_url: https://api.example.com, streams: {orders: {path: /orders, records: $.data}}}}
        consumers: {warehouse: {kind: store, topics: ["shp.*", "*.dlq.*"]}}
        """
    )
    ingest = Ingest(tmp_path, EMBEDDED)
    said = "ingest.yaml:4:55: `shp.*` fits no topic of this file; there are shop.orders\n"
    assert (await ingest("check")).err == said
    assert "no topic matches shp.*, *.dlq.* yet" in (await ingest("consume", "--once")).err
    file.write_text(file.read_text().split("consumers:")[0])
    assert 'topics: ["shop.*"]' in (await ingest("consume", "--once", code=2)).err


async def test_check_warns_of_pages_from_which_rows_slip_and_the_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "ingest.yaml").write_text(
        """version: 1
sources:
  api:
    base_url: https://api.example.com
    defaults: {records: $.data, id: id, incremental: {type: timestamp, field: at, since: {param: from}, order: asc}}
    streams:
      moving:
        path: /a
        paginate: {type: page, size_param: n, size: 50}
      links: {path: /b, paginate: link}
      swept: {path: /c, paginate: page, deletes: {sweep: {every: 1d}}}
      whole: {path: /d, paginate: page, incremental: snapshot}
consumers:
  warehouse: {kind: store, topics: ["api.*"]}
"""
    )
    checked = await Ingest(tmp_path, EMBEDDED)("check")
    assert "ingest.yaml: good" in checked.out
    [line] = checked.err.splitlines()
    assert line.startswith("ingest.yaml:9:19: warning: pages are counted: ")
    assert line.endswith(
        "; write `paginate: {type: keyset, fields: {at: from}, size_param: n, size: 50}`: each page then begins at the"
        " last value"
    )


def test_output_that_finds_no_room_is_no_bug() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ingest.cli", "schema"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left" in done.stderr and "Traceback" not in done.stderr
