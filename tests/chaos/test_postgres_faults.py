"""Postgres restarts, dies, fails over, falls silent and refuses: nothing is lost or stored twice, nobody is restarted.

The real commands, as processes, on a real Kafka and a Postgres of this module's own, which is stopped, killed, copied
and promoted.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import pytest_asyncio

from checkpoints import Save, StreamId
from checkpoints.postgres import PostgresCheckpoints, PostgresLeases
from ingest.errors import StoreUnavailable, Superseded
from ingest.postgres import open_postgres
from migrations.runner import migrate
from tests.chaos import commits
from tests.chaos.configuration import CONSUMER
from tests.chaos.history import History, complaints
from tests.chaos.pipeline import PAGE, PAGES, RECORDS, Pipeline, prepare
from tests.chaos.processes import Process, until
from tests.harness import postgres as postgres_server
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.faults import ok, slow
from tests.harness.forwarder import Forwarder, forwarding
from tests.harness.names import unique
from tests.harness.postgres import Postgres
from tests.harness.processes import tail

HALF = RECORDS // 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    server = postgres_server.start(tmp_path_factory.mktemp("own-postgres"), local=True)
    try:
        yield server
    finally:
        server.close()


@pytest_asyncio.fixture
async def database(server: Postgres) -> AsyncIterator[str]:
    """Migrated, on the server that may be killed; whatever became of that, it runs again afterwards."""
    name = unique("faults")
    url = await server.create_database(name)
    await migrate(url)
    yield url
    server.revive()
    await server.drop_database(name)


@asynccontextmanager
async def piped(folder: Path, database: str, kafka_url: str) -> AsyncIterator[Pipeline]:
    async with FakeApi(log_path=folder / "served.jsonl") as api:
        pipeline = await prepare(folder, api, database, kafka_url.removeprefix("kafka://"))
        text = (folder / "ingest.yaml").read_text()
        (folder / "ingest.yaml").write_text(text.replace("      events:\n", "      events:\n        every: 1s\n"))
        try:
            yield pipeline
        finally:
            for process in pipeline.processes:
                process.kill()


def at(url: str, port: int) -> str:
    """The same database through another port."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{port}"))


def says(process: Process, words: str) -> Callable[[], Awaitable[bool]]:
    async def said() -> bool:
        return process.output.exists() and words in process.output.read_text()

    return said


def stores(pipeline: Pipeline, count: int) -> Callable[[], Awaitable[bool]]:
    async def stored() -> bool:
        return await pipeline.stored() == count

    return stored


async def stopped(*processes: Process) -> None:
    """They were well, and say so; whatever they met is one line, and no traceback."""
    for process in processes:
        process.send(signal.SIGTERM)
    for process in processes:
        assert await process.ended() == 0, tail(process.output)
        assert "Traceback" not in process.output.read_text()


async def exact(pipeline: Pipeline, *, repeats: int) -> History:
    """Nothing is wrong, and nothing was dead-lettered. A cursor whose commit had no answer may be saved once more."""
    history = await pipeline.history()
    cursors = [next(again) for _, again in groupby(history.cursors, lambda saved: (saved.fence, saved.cursor))]
    assert complaints(replace(history, cursors=cursors), repeats=repeats, drained=True) == []
    assert history.dead == frozenset()
    return history


# Restarts


@pytest.mark.parametrize("how", ["fast", "immediate", "killed"])
async def test_postgres_may_restart_under_load(
    server: Postgres, database: str, kafka_url: str, tmp_path: Path, how: str
) -> None:
    async with piped(tmp_path, database, kafka_url) as pipeline:
        pipeline.api.misbehave([ok, ok, *[slow(0.5)] * (PAGES - 2)])
        consumer, poller = pipeline.start("consume", CONSUMER), pipeline.start("run")

        async def under_way() -> bool:
            return len(await pipeline.cursors()) >= 2 and await pipeline.stored() > 0

        await poller.reaches(under_way)
        if how == "killed":
            server.kill()
        else:
            server.stop("fast" if how == "fast" else "immediate")
        await poller.reaches(says(poller, "cannot save the cursor yet"))
        await consumer.reaches(says(consumer, "paused: cannot write yet"))
        server.restart()
        await consumer.reaches(stores(pipeline, RECORDS))
        await stopped(poller, consumer)
        await exact(pipeline, repeats=PAGE)


# Commits without an answer


@asynccontextmanager
async def commits_unanswered(observer: "asyncpg.Connection[asyncpg.Record]", database: str) -> AsyncIterator[None]:
    """Commits wait for a standby that does not exist: they are on the disk, and their clients do not know it."""
    probe = await asyncpg.connect(database)

    async def commit_again_and_again() -> None:
        while True:
            await probe.execute("SELECT pg_logical_emit_message(true, 'probe', '')")

    async def one_waits() -> bool:
        return bool(await observer.fetchval("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))

    await observer.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    await observer.execute("SELECT pg_reload_conf()")
    probing = asyncio.create_task(commit_again_and_again())
    try:
        await until(one_waits, lambda: "commits wait for a standby")
        yield
    finally:
        await observer.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await observer.execute("SELECT pg_reload_conf()")
        probing.cancel()
        await asyncio.wait([probing])
        await probe.close()


COMMITS = {
    "run": ("ingest.checkpoints", "NEW.cursor #>> '{listing,n}' = '3'"),
    "consume": ("ingest.offsets", f"NEW.next_offset > {PAGE}"),
}


@pytest.mark.parametrize("fate", ["undone", "done"])
@pytest.mark.parametrize("command", COMMITS)
async def test_a_commit_whose_answer_never_comes_is_neither_lost_nor_repeated(
    server: Postgres, database: str, kafka_url: str, tmp_path: Path, command: str, fate: str
) -> None:
    """The backend is terminated in the middle of COMMIT: before it is on the disk, or behind."""
    async with piped(tmp_path, database, kafka_url) as pipeline:
        if command == "consume":
            await pipeline.run()
        observer = await asyncpg.connect(server.url)
        try:
            async with commits.held(database, *COMMITS[command]) as held:
                process = pipeline.start(*(("run",) if command == "run" else ("consume", CONSUMER)), "--once", "--json")
                await process.reaches(held.one_waits)
                pid = await observer.fetchval("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
                if fate == "undone":
                    assert await observer.fetchval("SELECT pg_terminate_backend($1, 10000)", pid)
                    await held.go_on()
                else:
                    async with commits_unanswered(observer, database):
                        await held.go_on()

                        async def on_the_disk(pid: int = pid) -> bool:
                            waits = "SELECT wait_event FROM pg_stat_activity WHERE pid = $1"
                            return bool(await observer.fetchval(waits, pid) == "SyncRep")

                        await process.reaches(on_the_disk)
                        assert await observer.fetchval("SELECT pg_terminate_backend($1, 10000)", pid)
        finally:
            await observer.close()
        assert await process.ended() == 0, tail(process.output)
        said = process.said()
        if command == "run":
            assert (said["outcome"], said["pages"], said["events"]) == ("complete", PAGES, RECORDS)
            await pipeline.consume()
        else:
            assert (said["duplicates"], said["dead_letters"]) == (0, 0)
        await exact(pipeline, repeats=0)


# Refusals


@asynccontextmanager
async def full_disk(database: str, table: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """The file of an empty table is /dev/full while the body runs, or until it calls what it is given: every attempt
    to extend it is answered with ENOSPC, by the kernel."""
    observer = await asyncpg.connect(database)
    folder = Path(await observer.fetchval("SHOW data_directory"))
    file = folder / await observer.fetchval("SELECT pg_relation_filepath($1::text::regclass)", table)
    await observer.execute("CHECKPOINT")
    assert file.stat().st_size == 0
    aside = file.with_name(f"{file.name}.aside")

    async def make_room() -> None:
        """Whoever has the file open is cut off."""
        if aside.exists():
            aside.replace(file)
            await observer.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'ingest'"
            )

    file.rename(aside)
    file.symlink_to("/dev/full")
    try:
        yield make_room
    finally:
        await make_room()
        await observer.close()


@pytest.mark.parametrize("command", ["run", "consume"])
async def test_a_full_disk_moves_nothing_and_everything_goes_on_when_there_is_room(
    database: str, kafka_url: str, tmp_path: Path, command: str
) -> None:
    async with piped(tmp_path, database, kafka_url) as pipeline:
        if command == "consume":
            await pipeline.run()
        table = "ingest.checkpoints" if command == "run" else "ingest.events"
        async with full_disk(database, table) as make_room:
            process = pipeline.start(*(("run",) if command == "run" else ("consume", CONSUMER)), "--once", "--json")
            await process.reaches(says(process, "53100"))
            before = await pipeline.history()
            assert (before.cursors if command == "run" else [*before.offsets, *before.rows]) in ([], {})
            await make_room()
            assert await process.ended() == 0, tail(process.output)
        if command == "run":
            assert process.said()["outcome"] == "complete"
            await pipeline.consume()
        await exact(pipeline, repeats=0)


async def test_who_is_not_let_in_for_a_while_says_so_and_goes_on_by_himself(
    server: Postgres, kafka_url: str, tmp_path: Path
) -> None:
    """As while a password is changed, or an address leads to another server: for a person, and no reason to end."""
    name = unique("app").replace("-", "_")
    admin = await asyncpg.connect(server.url)
    try:
        await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        await admin.execute(f"CREATE DATABASE {name} OWNER {name}")
        url = f"postgresql://{name}:secret@127.0.0.1:{server.port}/{name}"
        await migrate(url)
        async with piped(tmp_path, url, kafka_url) as pipeline:
            pipeline.listing.replace(numbered(HALF))
            consumer, poller = pipeline.start("consume", CONSUMER), pipeline.start("run")
            await consumer.reaches(stores(pipeline, HALF))
            await admin.execute(f"ALTER ROLE {name} NOLOGIN")
            cut_off = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = $1"
            await admin.execute(cut_off, name)
            pipeline.listing.replace(numbered(RECORDS))
            await poller.reaches(says(poller, "not permitted to log in"))
            await consumer.reaches(says(consumer, "not permitted to log in"))
            await admin.execute(f"ALTER ROLE {name} LOGIN")
            await consumer.reaches(stores(pipeline, RECORDS))
            await stopped(poller, consumer)
            await exact(pipeline, repeats=PAGE)
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()


# Failover


@asynccontextmanager
async def failing_over(server: Postgres, folder: Path) -> AsyncIterator[Postgres]:
    """A standby that has all of the server. The server is dead afterwards."""
    standby = server.standby(folder / "standby")
    try:
        yield standby
    finally:
        standby.close()


async def caught_up(server: Postgres, standby: Postgres) -> None:
    """The standby has all that is committed, and gets no more: what comes now is lost with the server."""
    primary, copy = await asyncpg.connect(server.url), await asyncpg.connect(standby.url)
    try:
        end = await primary.fetchval("SELECT pg_current_wal_lsn()::text")

        async def replayed() -> bool:
            return bool(await copy.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", end))

        async def alone() -> bool:
            return bool(await copy.fetchval("SELECT count(*) = 0 FROM pg_stat_wal_receiver"))

        await until(replayed, lambda: "the standby catches up")
        await copy.execute("ALTER SYSTEM SET primary_conninfo = ''")
        await copy.execute("SELECT pg_reload_conf()")
        await until(alone, lambda: "the standby no longer follows")
    finally:
        await primary.close()
        await copy.close()


async def fails_over(server: Postgres, standby: Postgres, address: Forwarder) -> None:
    server.kill()
    await asyncio.to_thread(standby.promote)
    address.switch(standby.port)


@pytest.mark.parametrize("consumer", ["goes on", "is new"])
async def test_after_a_failover_that_loses_the_last_transactions_rows_come_back_and_stay_single(
    server: Postgres, database: str, kafka_url: str, tmp_path: Path, consumer: str
) -> None:
    """Neither what the consumer remembers nor what Kafka remembers of the group counts: the store does. Nothing new
    comes, so no write could tell. The poller publishes again what its old cursor does not know."""
    async with (
        failing_over(server, tmp_path) as standby,
        forwarding(server.port) as address,
        piped(tmp_path, at(database, address.port), kafka_url) as pipeline,
    ):
        pipeline.listing.replace(numbered(HALF))
        running = pipeline.start("consume", CONSUMER)
        await pipeline.run()
        await running.reaches(stores(pipeline, HALF))
        await caught_up(server, standby)
        pipeline.listing.replace(numbered(RECORDS))
        await pipeline.run()
        await running.reaches(stores(pipeline, RECORDS))
        if consumer == "is new":
            await stopped(running)
        await fails_over(server, standby, address)
        assert await pipeline.stored() == HALF
        if consumer == "is new":
            running = pipeline.start("consume", CONSUMER)
        await running.reaches(stores(pipeline, RECORDS))
        assert (await pipeline.run())["events"] >= HALF
        await stopped(running)
        assert (await pipeline.consume())["inserted"] == 0
        history = await exact(pipeline, repeats=HALF + 1)
        assert history.repeated() >= HALF


async def test_an_address_with_several_hosts_finds_the_new_primary_and_a_lease_that_it_does_not_know_moves_nothing(
    server: Postgres, database: str, tmp_path: Path
) -> None:
    stream = StreamId("billing", "invoices")
    async with failing_over(server, tmp_path) as standby:
        hosts = f"127.0.0.1:{standby.port},127.0.0.1:{server.port}"
        parts = urlsplit(database)
        netloc = f"{parts.netloc.rpartition('@')[0]}@{hosts}"
        both = urlunsplit(parts._replace(netloc=netloc, query="target_session_attrs=read-write"))
        async with open_postgres(both) as postgres:
            checkpoints, leases = PostgresCheckpoints(postgres), PostgresLeases(postgres)
            first = await checkpoints.claim(stream, "here:1:first", 600.0)
            assert first is not None
            await checkpoints.save(first, Save(b'{"n":1}'))
            await leases.release(first.lease)
            await caught_up(server, standby)
            lost = await checkpoints.claim(stream, "here:2:lost", 600.0)
            assert lost is not None
            await checkpoints.save(lost, Save(b'{"n":2}'))

            server.kill()
            with pytest.raises(StoreUnavailable):
                await checkpoints.list()
            await asyncio.to_thread(standby.promote)

            other = await checkpoints.claim(stream, "here:3:other", 600.0)
            assert other is not None
            assert (other.cursor, other.lease.fence) == (b'{"n":1}', lost.lease.fence)
            await checkpoints.save(other, Save(b'{"n":3}'))
            with pytest.raises(Superseded, match="forgot that it gave us the fence 2"):
                await checkpoints.save(lost, Save(b'{"n":4}'))
            with pytest.raises(Superseded):
                await leases.renew(lost.lease, 600.0)
            await leases.release(lost.lease)
            assert await leases.holder(lost.lease.name) == "here:3:other"
            assert [saved.cursor for saved in await checkpoints.list()] == [b'{"n":3}']
