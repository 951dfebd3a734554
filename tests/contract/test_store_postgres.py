"""What only Postgres can do to a write: other sessions between its statements, limits of its types, a lost server."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio

from consumers.store import Written
from consumers.store.postgres import FILTERED_BATCHES, PostgresStore
from ingest.errors import BadRecord, StoreUnavailable, Superseded
from ingest.event import Event
from ingest.postgres import Postgres, open_postgres
from tests.contract.test_store import CONSUMER, EVERYTHING, TOPIC, event, payloads, span

if TYPE_CHECKING:
    from ingest.postgres import Connection

    Session = asyncpg.Connection[asyncpg.Record]

PATIENCE = 20.0  # seconds
INSERT = """
    INSERT INTO ingest.events (event_id, source, stream, key, type, topic, partition, "offset", payload)
    VALUES ($1, '', '', '', '', '', 0, 0, '"theirs"')
"""
WAITING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Counting(Postgres):
    """The same pool; counts the transactions begun on it."""

    def __init__(self, postgres: Postgres) -> None:
        super().__init__(postgres._pool)
        self.begun = 0

    @asynccontextmanager
    async def transaction(self, first: str = "") -> AsyncIterator["Connection"]:
        self.begun += 1
        async with super().transaction(first) as connection:
            yield connection

    async def during(self, work: Awaitable[object]) -> int:
        before = self.begun
        await work
        return self.begun - before


@pytest_asyncio.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with open_postgres(postgres_url) as postgres:
        yield PostgresStore(postgres)


@pytest_asyncio.fixture
async def other(postgres_url: str) -> AsyncIterator["Session"]:
    """A session of someone else."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def watcher(postgres_url: str) -> AsyncIterator["Session"]:
    """A session that sees who waits."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def who_waits(watcher: "Session") -> int:
    """The process of the session that waits for a lock, as soon as there is one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (pid := await watcher.fetchval(WAITING)) is not None:
            return int(pid)
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits for a lock")


@pytest.mark.parametrize("looks_up_first", [False, True])
async def test_rows_that_another_writer_commits_meanwhile_are_left_alone(
    store: PostgresStore,
    other: "Session",
    watcher: "Session",
    looks_up_first: bool,
) -> None:
    if looks_up_first:  # as it does after a duplicate
        for _ in range(2):
            await store.write(CONSUMER, [event("0")], [])
    theirs = other.transaction()
    await theirs.start()
    await other.execute(INSERT, "b")
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(store.write(CONSUMER, [event(id, b'"ours"') for id in "abc"], [span(0, 3)]))
        await who_waits(watcher)
        await theirs.commit()
    assert writing.result() == Written(2, 1)
    stored = await payloads(store)
    assert {id: stored[id] for id in "abc"} == {"a": b'"ours"', "b": b'"theirs"', "c": b'"ours"'}
    assert await store.offsets(CONSUMER, TOPIC) == {0: 3}


async def test_rows_that_another_writer_gives_up_are_inserted(
    store: PostgresStore,
    other: "Session",
    watcher: "Session",
) -> None:
    theirs = other.transaction()
    await theirs.start()
    await other.execute(INSERT, "b")
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(store.write(CONSUMER, [event(id, b'"ours"') for id in "abc"], [span(0, 3)]))
        await who_waits(watcher)
        await theirs.rollback()
    assert writing.result() == Written(3, 0)
    assert (await payloads(store))["b"] == b'"ours"'


async def test_ids_are_taken_in_their_order_so_that_writers_never_wait_for_each_other_in_a_ring(
    store: PostgresStore, other: "Session", watcher: "Session"
) -> None:
    theirs = other.transaction()
    await theirs.start()
    await other.execute(INSERT, "a")
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(store.write(CONSUMER, [event("b"), event("a")], []))
        await who_waits(watcher)
        await other.execute(INSERT, "b")
        await theirs.commit()
    assert writing.result() == Written(0, 2)


async def test_a_duplicate_costs_a_second_transaction_once_and_then_rows_are_looked_up_for_a_while(
    postgres_url: str,
) -> None:
    async with open_postgres(postgres_url) as postgres:
        counting = Counting(postgres)
        store = PostgresStore(counting)
        assert await counting.during(store.write(CONSUMER, [event("0")], [])) == 1
        assert await counting.during(store.write(CONSUMER, [event("0"), event("1")], [])) == 2
        for _ in range(3):
            assert await counting.during(store.write(CONSUMER, [event("0")], [])) == 1
        for n in range(FILTERED_BATCHES):
            assert await counting.during(store.write(CONSUMER, [event(f"new{n}")], [])) == 1
        assert await counting.during(store.write(CONSUMER, [event("0")], [])) == 2


async def test_a_consumer_that_lost_its_partition_waits_for_the_owner_and_stores_nothing(
    store: PostgresStore,
    other: "Session",
    watcher: "Session",
) -> None:
    await store.write(CONSUMER, [], [span(0, 5)])
    owner = other.transaction()
    await owner.start()
    await other.execute("UPDATE ingest.offsets SET next_offset = 6 WHERE partition = 0")

    async def zombie() -> None:
        with pytest.raises(Superseded, match="is 6"):
            await store.write(CONSUMER, [event()], [span(5, 8)])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(zombie())
        await who_waits(watcher)
        await owner.commit()
    assert await store.count(EVERYTHING) == 0
    assert await store.offsets(CONSUMER, TOPIC) == {0: 6}


async def test_a_connection_that_is_cut_leaves_nothing_and_the_next_write_succeeds(
    store: PostgresStore,
    other: "Session",
    watcher: "Session",
) -> None:
    theirs = other.transaction()
    await theirs.start()
    await other.execute(INSERT, "b")
    batch = [event(id, b'"ours"') for id in "abc"]

    async def cut() -> None:
        with pytest.raises(StoreUnavailable):
            await store.write(CONSUMER, batch, [span(0, 3)])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cut())
        await watcher.execute("SELECT pg_terminate_backend($1)", await who_waits(watcher))
    await theirs.rollback()
    assert await store.count(EVERYTHING) == 0
    assert await store.offsets(CONSUMER, TOPIC) == {}
    assert await store.write(CONSUMER, batch, [span(0, 3)]) == Written(3, 0)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (event(secrets.token_hex(4000)), "54000"),
        (event("deep", b"[" * 20_000 + b"]" * 20_000), "54001"),
        (event("nul\0"), "22021"),
        (event("key", key="\0"), "22021"),
        (event("no json", b"hello"), "22P02"),
        (event("\ud800"), "not_utf8"),
    ],
    ids=["an id too long for the index", "JSON too deep", "NUL in an id", "NUL in a key", "no JSON", "lone surrogate"],
)
@pytest.mark.parametrize("looks_up_first", [False, True])
async def test_a_value_beyond_what_postgres_holds_is_a_bad_record_with_its_code(
    store: PostgresStore, bad: Event, code: str, looks_up_first: bool
) -> None:
    if looks_up_first:
        for _ in range(2):
            await store.write(CONSUMER, [event("0")], [])
    before = await store.count(EVERYTHING)
    with pytest.raises(BadRecord) as caught:
        await store.write(CONSUMER, [event("good1"), bad, event("good2")], [span(0, 3)])
    assert (caught.value.stage, caught.value.code) == ("write", code)
    assert await store.count(EVERYTHING) == before
    assert await store.offsets(CONSUMER, TOPIC) == {}
