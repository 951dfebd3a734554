"""Servers that nobody here wrote, read to the end, and again after records were changed and deleted there: what came
out is compared with what each of them holds, id by id and field by field."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import readings
from tests.e2e.command import Engine
from tests.e2e.pipeline import EMBEDDED, Pipeline, as_it_is
from tests.e2e.readings import Reading
from tests.harness.apis import Api, Record, couch, json_server, kinto, odata, pocketbase, relay, synapse
from tests.harness.apis.orders import Clerk, orders


class Case(NamedTuple):
    api: Callable[..., Api]
    read: Callable[..., Reading]
    says_what_is_deleted: bool
    picked: Callable[[Record], Record] = as_it_is  # what `held` shows of a record


CASES = {
    "Kinto": Case(kinto.start, readings.with_kinto, True),
    "PocketBase": Case(pocketbase.start, readings.with_pocketbase, False),
    "json-server by links": Case(json_server.start, readings.with_links, False),
    "json-server by offsets": Case(json_server.start, readings.with_offsets, False),
    "json-server by its last row": Case(json_server.start, readings.with_keyset, False),
    "CouchDB's protocol": Case(couch.start, readings.with_couch, True, lambda payload: payload["doc"]),
}
READ_BY_PLACES_THAT_STAY = [name for name in CASES if name != "json-server by links"]
CASES_OVER_POSTGRES = {
    "OData": Case(odata.start, readings.with_odata, False),
    "GraphQL with Relay's cursors": Case(relay.start, readings.with_relay, False),
}


@pytest.mark.parametrize("name", CASES)
async def test_what_a_server_holds_is_what_the_store_has_after_changes_and_deletes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with closing(case.api(tmp_path)) as api:
        await compared(api, case, Pipeline(tmp_path, EMBEDDED, case.read(api)))


@pytest.mark.parametrize(
    ("name", "sweeps"), [("PocketBase", 2), ("json-server by links", 2), ("json-server by its last row", 1)]
)
async def test_what_is_deleted_without_a_trace_is_found_by_sweeps(name: str, sweeps: int, tmp_path: Path) -> None:
    case = CASES[name]
    with closing(case.api(tmp_path)) as api:
        api.put(orders(1, 120))
        pipeline = Pipeline(tmp_path, EMBEDDED, case.read(api).sweeping("10ms"))
        await pipeline.sync()
        api.put(orders(116, 125, "changed"))
        api.delete(orders(1, 3))
        found = []
        for _ in range(2):
            await pipeline.sync()
            found.append(await pipeline.deleted())
        assert found == [set() if n < sweeps else set(orders(1, 3)) for n in (1, 2)]
        assert await pipeline.newest() == api.held()
        assert await pipeline.differences() == []


async def test_records_of_all_collections_of_all_buckets_are_read_and_what_has_not_changed_is_not_sent(
    tmp_path: Path,
) -> None:
    with closing(kinto.start(tmp_path)) as api:
        held = {path: held_in(api, path, count) for path, count in (("a/x", 7), ("a/y", 2), ("b/x", 0))}
        pipeline = Pipeline(tmp_path, EMBEDDED, readings.with_buckets(api))
        first = await pipeline.runs()
        assert (first["buckets"]["events"], first["collections"]["events"], first["orders"]["events"]) == (3, 4, 9)
        held["b/x"] = held_in(api, "b/x", 3)
        api.ask("DELETE", "/v1/buckets/a/collections/x/records/n1")
        second = await pipeline.runs()
        assert (second["orders"]["events"], second["orders"]["deletes"]) == (3 + 1, 1)
        assert (second["buckets"]["reason"], second["collections"]["unchanged"]) == ("nothing new (304)", 0)
        await pipeline.ingest("consume", "warehouse", "--once")
        newest = await pipeline.newest()
        there = {f"{path.replace('/', '|')}|n{n}": n for path, numbers in held.items() for n in numbers}
        assert {key: record["n"] for key, record in newest.items()} == {k: n for k, n in there.items() if k != "a|x|n1"}
        assert await pipeline.deleted() == {"a|x|n1"}


async def test_what_a_feed_of_changes_says_is_gone_is_gone_from_the_list_of_all(tmp_path: Path) -> None:
    with closing(couch.start(tmp_path)) as api:
        api.put(orders(1, 60))
        pipeline = Pipeline(tmp_path, EMBEDDED, readings.with_feed(api))
        await pipeline.sync("--stream", "orders")
        api.put(orders(59, 62, "changed"))
        gone = list(orders(1, 3))
        api.delete(gone)
        second = await pipeline.sync("--stream", "orders")
        assert second.inserted == 4 + 3
        assert await pipeline.deleted() == set(gone)
        assert await pipeline.newest(picked=lambda payload: payload["doc"]) == api.held()
        api.put(orders(1, 1, "back"))
        third = await pipeline.sync("--stream", "orders")
        assert (third.inserted, third.unchanged) == (1, 59)
        assert await pipeline.newest(picked=lambda payload: payload["doc"]) == api.held()


def held_in(api: kinto.Kinto, path: str, count: int) -> range:
    """The numbers of as many records in BUCKET/COLLECTION, which are made."""
    bucket, collection = path.split("/")
    api.make(f"/v1/buckets/{bucket}")
    api.make(f"/v1/buckets/{bucket}/collections/{collection}")
    for n in range(1, count + 1):
        api.ask("PUT", f"/v1/buckets/{bucket}/collections/{collection}/records/n{n}", json={"data": {"n": n}})
    return range(1, count + 1)


@pytest.mark.parametrize("name", CASES_OVER_POSTGRES)
async def test_what_a_server_over_postgres_holds_goes_through_kafka_into_postgres(
    name: str, bare_postgres_url: str, servers: Engine, tmp_path: Path
) -> None:
    case = CASES_OVER_POSTGRES[name]
    with closing(case.api(tmp_path, bare_postgres_url)) as api:
        await compared(api, case, Pipeline(tmp_path, servers, case.read(api)))


@pytest.mark.parametrize("name", READ_BY_PLACES_THAT_STAY)
async def test_what_changes_while_it_is_read_arrives_with_the_next_run_at_the_latest(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with closing(case.api(tmp_path)) as api:
        clerk = Clerk(api, 200)
        pipeline = Pipeline(tmp_path, EMBEDDED, case.read(api, size=5))
        for _ in range(2):
            running = asyncio.create_task(pipeline.sync())
            while not running.done():
                await asyncio.to_thread(clerk.work)
            assert (await running).inserted > 0
        await pipeline.sync()
        if case.says_what_is_deleted:
            assert await pipeline.deleted() == clerk.deleted
        newest = await pipeline.newest(picked=case.picked)
        assert {id: record for id, record in newest.items() if id not in clerk.deleted} == api.held()


async def test_a_timeline_that_grows_is_read_to_its_end_and_says_what_was_taken_back(tmp_path: Path) -> None:
    with closing(synapse.start(tmp_path)) as api:
        pipeline = Pipeline(tmp_path, EMBEDDED, readings.with_synapse(api))
        api.add_users(f"guest{n}" for n in range(1, 25))
        said = [api.say(f"Nº {n}: \u2028 🚲") for n in range(1, 51)]
        first = await pipeline.sync()
        shown = {event: api.shown(event) for event in said}
        assert await pipeline.newest("said", synapse.picked) == shown
        assert (await pipeline.newest("users")).keys() == {"@clerk:local.test"} | {
            f"@guest{n}:local.test" for n in range(1, 25)
        }

        said_later = [api.say("later"), api.redact(said[0]), api.say("last")]
        api.add_users(["guest25"])
        second = await pipeline.sync()
        assert (first.inserted, second.inserted) == (50 + 25, 3 + 1)
        newest = await pipeline.newest("said", synapse.picked)
        assert newest == {**shown, **{event: api.shown(event) for event in said_later}}
        assert newest[said_later[1]]["content"]["redacts"] == said[0]


async def compared(api: Api, case: Case, pipeline: Pipeline) -> None:
    api.put(orders(1, 120))
    first = await pipeline.sync()
    assert (first.inserted, first.duplicates) == (120, 0)
    assert await pipeline.newest(picked=case.picked) == api.held()

    api.put(orders(116, 125, "changed"))
    deleted = list(orders(1, 3))
    api.delete(deleted)
    second = await pipeline.sync()
    newest = await pipeline.newest(picked=case.picked)
    assert {id: record for id, record in newest.items() if id not in deleted} == api.held()
    assert await pipeline.deleted() == (set(deleted) if case.says_what_is_deleted else set())
    assert (second.inserted, second.duplicates) == (10 + (3 if case.says_what_is_deleted else 0), 0)

    third = await pipeline.sync()
    assert (third.inserted, third.duplicates) == (0, 0)
    assert third.unchanged < 10  # what was written last, where the API reads the bound as included
    left = [] if case.says_what_is_deleted else [("log", "extra", 3), ("store", "extra", 3)]
    assert await pipeline.differences() == left
