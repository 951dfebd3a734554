"""`verify` finds what is missing, left over or different, and says nothing where all is well."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi
from tests.harness.names import unique
from tests.unit.sources import reply

EMBEDDED = Engine("embedded", {})


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        yield server


def serve(api: FakeApi, *records: dict[str, Any]) -> None:
    api.routes["/orders"] = reply(json.dumps({"data": records}, separators=(",", ":")))


def order(n: int, **more: Any) -> dict[str, Any]:
    return {"id": f"{n}@shop", "v": 1, "at": f"2024-01-0{n}T00:00:00Z", **more}


def configured(folder: Path, api: FakeApi, engine: Engine, source: str, *, version: str = "v", **more: str) -> Ingest:
    keys = "".join(f", {name}: {value}" for name, value in more.items())
    (folder / "ingest.yaml").write_text(f"""
version: 1
sources:
  {source}:
    base_url: {api.url}
    streams:
      orders: {{path: /orders, records: $.data, id: id, version: {version}{keys}}}
consumers:
  warehouse: {{kind: store, topics: ["{source}.*"]}}
topics: {{partitions: 3, replication: 1, min_insync: 1, durability: relaxed}}
""")
    return Ingest(folder, engine)


async def filled(ingest: Ingest) -> None:
    await ingest("run", "--once")
    await ingest("consume", "warehouse", "--once")


def kinds(found: Any) -> dict[tuple[str, str], list[str]]:
    [one] = found
    return {(finding["where"], finding["kind"]): finding["names"] for finding in one["findings"]}


async def test_what_was_polled_and_consumed_is_right_on_every_engine(
    api: FakeApi, engine: Engine, tmp_path: Path
) -> None:
    source = unique("shop")
    ingest = configured(tmp_path, api, engine, source)
    serve(api, order(1), order(2), order(3))
    await filled(ingest)
    done = await ingest("verify", "--json")
    assert done.json == [
        {"source": source, "stream": "orders", "listed": 3, "dead_letters": 0, "right": True, "findings": []}
    ]
    serve(api, order(1), order(2, amount=5), order(4))
    found = kinds((await ingest("verify", "--json", code=1)).json)
    assert found == {
        (side, kind): [f"{source}:orders:{name}@1"]
        for side in ("log", "store")
        for kind, name in (("missing", "4@shop"), ("extra", "3@shop"), ("differing", "2@shop"))
    }


async def test_what_is_published_and_not_consumed_is_missing_in_the_store_alone(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api, EMBEDDED, "shop")
    serve(api, order(1))
    await ingest("run", "--once")
    done = await ingest("verify", code=1)
    assert "shop/orders: missing in the store: shop:orders:1@shop@1" in done.out
    assert "missing in the log" not in done.out


async def test_what_was_deleted_is_not_left_over_until_it_lives_again(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api, EMBEDDED, "shop", version="none", deletes="{sweep: {every: 1d}}")
    for records in ([order(1), order(2)], [order(1)]):
        serve(api, *records)
        await filled(ingest)
        assert (await ingest("verify", "--json")).json[0]["right"]
    serve(api)
    assert kinds((await ingest("verify", "--json", code=1)).json) == {
        ("log", "extra"): ["shop:orders:1@shop"], ("store", "extra"): ["shop:orders:1@shop"]
    }  # fmt: skip


async def test_an_event_that_a_crash_published_twice_is_noted_and_right(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api, EMBEDDED, "shop")
    serve(api, order(1))
    await filled(ingest)
    await ingest("checkpoints", "reset", "shop/orders", "--yes")
    await filled(ingest)
    done = await ingest("verify")
    assert "repeated in the log: shop:orders:1@shop@1" in done.out


@pytest.mark.parametrize(
    ("arguments", "missing"), [((), 3), (("--from", "2024-01-02"), 2), (("--to", "2024-01-02"), 1)]
)
async def test_a_range_is_compared_alone(
    api: FakeApi, tmp_path: Path, arguments: tuple[str, ...], missing: int
) -> None:
    incremental = "{type: timestamp, field: at, since: {param: since}}"
    ingest = configured(tmp_path, api, EMBEDDED, "shop", incremental=incremental)
    serve(api, order(9))
    await filled(ingest)
    serve(api, order(1), order(2), order(3), *([] if arguments else [order(9)]))
    found = kinds((await ingest("verify", "--json", *arguments, code=1)).json)
    assert {where: len(names) for where, names in found.items()} == {
        ("log", "missing"): missing, ("store", "missing"): missing
    }  # fmt: skip
    assert ("since=2024-01-02" in api.requests[-1].target) is ("--from" in arguments)


async def test_a_listing_that_fails_verifies_nothing(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api, EMBEDDED, "shop")
    api.routes["/orders"] = reply("{}", status=403)
    assert "403" in (await ingest("verify", code=1)).err


async def test_a_record_that_a_filter_leaves_out_now_is_no_leftover(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api, EMBEDDED, "shop", transform="[{filter: \"state == 'open'\"}]")
    serve(api, order(1, state="open"), order(2, state="open"))
    await filled(ingest)
    serve(api, order(1, state="open"), order(2, state="shut", v=2), order(3, state="shut"))
    [found] = (await ingest("verify", "--json")).json
    assert (found["listed"], found["right"], found["findings"]) == (1, True, [])
    serve(api, order(1, state="open"))
    gone = kinds((await ingest("verify", "--json", code=1)).json)
    assert gone[("log", "extra")] == gone[("store", "extra")] == ["shop:orders:2@shop@1"]


async def test_what_lies_before_the_first_value_is_not_left_over(api: FakeApi, tmp_path: Path) -> None:
    """A backfill may have read it; a listing from the first value on does not have it."""
    incremental = "{type: timestamp, field: at, since: {param: since%s}}"
    await filled(_serving(api, tmp_path, incremental % "", order(1), order(5)))
    ingest = _serving(api, tmp_path, incremental % ", first: 2024-01-03", order(5))
    [found] = (await ingest("verify", "--json")).json
    assert (found["right"], found["findings"]) == (True, [])


def _serving(api: FakeApi, folder: Path, incremental: str, *records: dict[str, Any]) -> Ingest:
    serve(api, *records)
    return configured(folder, api, EMBEDDED, "shop", incremental=incremental)
