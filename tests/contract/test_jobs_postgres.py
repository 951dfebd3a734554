"""What only Postgres does to a queue: commits of unknown outcome, rows that two want at once, LISTEN."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from checkpoints.jobs import Cap, Ended, NewJob, Outcome, Want, postgres_bell
from checkpoints.jobs.postgres import PostgresJobs, open_jobs
from checkpoints.jobs.postgres_bell import PostgresBell
from checkpoints.jobs.postgres_rows import CHANNEL
from ingest.errors import StoreUnavailable
from ingest.postgres import Postgres, open_postgres
from tests.contract.states import LONG, PATIENCE, eventually
from tests.harness.forwarder import forwarding

if TYPE_CHECKING:
    from ingest.postgres import Connection

FAR = 86_400.0  # seconds: longer than any test
WANT = Want(2, ttl=LONG)
A, B = "host:1:a", "host:2:b"


@pytest_asyncio.fixture
async def server(postgres_url: str) -> AsyncIterator[Postgres]:
    async with open_postgres(postgres_url) as opened:
        yield opened


class Unsure(Postgres):
    """A server whose answer to the next COMMIT does not arrive; nor does the COMMIT, where it is `before`."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self.fails = ""

    @asynccontextmanager
    async def transaction(self, first: str = "") -> AsyncIterator["Connection"]:
        fails, self.fails = self.fails, ""
        async with self._postgres.transaction(first) as connection:
            yield connection
            if fails == "before":
                raise StoreUnavailable("no answer")
        if fails == "after":
            raise StoreUnavailable("no answer")


class Waiting(Postgres):
    """Its transactions stand still between their last statement and COMMIT."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self.there, self.go_on = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def transaction(self, first: str = "") -> AsyncIterator["Connection"]:
        async with self._postgres.transaction(first) as connection:
            yield connection
            self.there.set()
            await self.go_on.wait()


@pytest.mark.parametrize(("where", "wanted"), [("before", WANT), ("after", WANT), ("after", None)])
async def test_an_exchange_whose_answer_was_lost_is_repeated_and_nothing_happens_twice(
    server: Postgres, postgres_url: str, where: str, wanted: Want | None
) -> None:
    unsure = Unsure(server)
    jobs = PostgresJobs(unsure)
    await jobs.enqueue([NewJob("sync", "shop") for _ in range(6)])
    first = (await jobs.exchange(A, (), WANT)).jobs
    ended = [Ended(first[0].id, first[0].fence, Outcome.DONE), Ended(first[1].id, first[1].fence, Outcome.DEAD)]
    unsure.fails = where
    with pytest.raises(StoreUnavailable):
        await jobs.exchange(A, ended, WANT)
    lost, died, second = await jobs.exchange(A, ended, wanted)
    assert (list(lost), list(died)) == ([], [first[1].id])
    if wanted is None:
        second = (await jobs.exchange(A, (), WANT)).jobs
    assert [(job.attempt, job.fence) for job in second] == [(1, 1)] * 2  # what was claimed is not left lying about
    assert {job.id for job in first}.isdisjoint(job.id for job in second)
    connection = await asyncpg.connect(postgres_url)
    assert [tuple(row) for row in await connection.fetch(
        "SELECT state, count(*) FROM ingest.jobs GROUP BY state ORDER BY state"
    )] == [("dead", 1), ("done", 1), ("pending", 2), ("running", 2)]  # fmt: skip
    assert [tuple(row) for row in await connection.fetch("SELECT done, failed FROM ingest.tallies")] == [(1, 1)]
    await connection.close()


async def claimed_with_a_lease_that_ended(server: Postgres) -> Ended:
    """A job whose worker may be too late, and what it is about to say."""
    jobs = PostgresJobs(server)
    await jobs.enqueue([NewJob("sync", "shop")])
    [job] = (await jobs.exchange(A, (), WANT)).jobs
    await jobs.leave(A)
    return Ended(job.id, job.fence, Outcome.DONE)


async def test_a_worker_that_finishes_while_it_is_rescued_wins_if_it_was_first(server: Postgres) -> None:
    late = await claimed_with_a_lease_that_ended(server)
    finishing = Waiting(server)
    async with asyncio.TaskGroup() as group:
        said = group.create_task(PostgresJobs(finishing).exchange(A, [late], None))
        await finishing.there.wait()
        assert list(await PostgresJobs(server).rescue(0.0)) == []
        finishing.go_on.set()
    assert list(said.result().lost) == []
    assert list(await PostgresJobs(server).rescue(0.0)) == []


async def test_a_worker_that_finishes_while_it_is_rescued_loses_if_it_was_second(server: Postgres) -> None:
    late = await claimed_with_a_lease_that_ended(server)
    rescuing = Waiting(server)
    async with asyncio.TaskGroup() as group:
        rescued = group.create_task(PostgresJobs(rescuing).rescue(0.0))
        await rescuing.there.wait()
        said = group.create_task(PostgresJobs(server).exchange(A, [late], None))
        await eventually(lambda: lock_is_waited_for(server))
        rescuing.go_on.set()
    assert [one.id for one in rescued.result()] == [late.id]
    assert list(said.result().lost) == [late.id]


async def lock_is_waited_for(server: Postgres) -> bool | None:
    query = "SELECT true FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with server.transaction() as connection:
        found: bool | None = await connection.fetchval(query)
    return found


async def test_a_claim_that_is_not_committed_counts_for_the_cap_of_its_source(server: Postgres) -> None:
    jobs, claiming = PostgresJobs(server), Waiting(server)
    await jobs.limit([Cap("shop", 1)], [])
    await jobs.enqueue([NewJob("sync", "shop"), NewJob("backfill", "shop")])
    async with asyncio.TaskGroup() as group:
        first = group.create_task(PostgresJobs(claiming).exchange(A, (), Want(1, kinds=["sync"])))
        await claiming.there.wait()
        second = group.create_task(jobs.exchange(B, (), Want(1, kinds=["backfill"])))
        await eventually(lambda: lock_is_waited_for(server))
        claiming.go_on.set()
    assert len(first.result().jobs) == 1
    assert list(second.result().jobs) == []


async def test_a_claim_that_is_not_committed_counts_for_the_cap_of_its_queue(server: Postgres) -> None:
    jobs, claiming = PostgresJobs(server), Waiting(server)
    await jobs.limit([], [Cap("sync", 1)])
    await jobs.enqueue([NewJob("sync", source, queue="sync") for source in ("shop", "bank")])
    async with asyncio.TaskGroup() as group:
        first = group.create_task(PostgresJobs(claiming).exchange(A, (), Want(1, sources=["shop"])))
        await claiming.there.wait()
        assert list((await jobs.exchange(B, (), Want(1, sources=["bank"]))).jobs) == []
        claiming.go_on.set()
    assert len(first.result().jobs) == 1
    assert list((await jobs.exchange(B, (), Want(1, sources=["bank"]))).jobs) == []


async def test_who_waits_is_told_of_a_job_and_does_not_have_to_look(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_EVERY", "DEAF_LOOK_EVERY"):
        monkeypatch.setattr(postgres_bell, name, FAR)
    async with open_jobs(server) as jobs:
        waiting = asyncio.create_task(jobs.wait(FAR))
        await eventually(lambda: listening(server))
        await PostgresJobs(server).enqueue([NewJob("sync", "shop")])
        await asyncio.wait_for(waiting, PATIENCE)


async def listening(server: Postgres) -> bool | None:
    async with server.transaction() as connection:
        found: bool | None = await connection.fetchval(
            """SELECT true FROM pg_stat_activity WHERE datname = current_database()
               AND query LIKE 'LISTEN%' AND state = 'idle'"""
        )
    return found


async def test_a_job_for_later_and_an_equal_one_wake_nobody(postgres_url: str, server: Postgres) -> None:
    heard: list[str] = []
    connection = await asyncpg.connect(postgres_url)
    await connection.add_listener(CHANNEL, lambda *said: heard.append(said[3]))
    jobs = PostgresJobs(server)
    await jobs.enqueue([NewJob("sync", "shop", run_at=4e9, dedupe_key="k")])
    await jobs.enqueue([NewJob("sync", "shop", dedupe_key="k")])
    await connection.fetchval("SELECT pg_notify($1, 'the end')", CHANNEL)
    assert heard == ["the end"]
    await connection.close()


async def test_behind_a_pooler_it_says_that_it_cannot_hear_and_looks_instead(
    pooled_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_bell, "DEAF_LOOK_EVERY", 0.001)
    async with open_postgres(pooled_postgres_url) as server, open_jobs(server) as jobs:
        with capture_logs() as logs:
            for _ in range(3):
                await jobs.wait(FAR)
    assert [(one["log_level"], one["reason"]) for one in logs] == [("warning", postgres_bell.POOLED)]


class Forgotten(Postgres):
    """Its `session` goes by another way."""

    def __init__(self, server: Postgres, way: Postgres) -> None:
        super().__init__(server._pool)
        self.session = way.session  # type: ignore[method-assign]


async def test_a_connection_that_went_deaf_without_a_word_is_found_out_and_replaced(
    server: Postgres, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LOOK_EVERY", 0.001), ("DEAF_LOOK_EVERY", 0.001), ("PROBE_EVERY", 0.1), ("LISTEN_AGAIN", 0.0)):
        monkeypatch.setattr(postgres_bell, name, value)
    parts = urlsplit(postgres_url)
    async with forwarding(parts.port or 5432) as way:
        through = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{way.port}"))
        async with open_postgres(through) as forwarded, PostgresBell(Forgotten(server, forwarded)) as bell:
            with capture_logs() as logs:

                async def said(level: str) -> bool | None:
                    await bell.wait(FAR)
                    return any(one["log_level"] == level for one in logs) or None

                while not bell.hears:
                    await bell.wait(FAR)
                way.forget()
                monkeypatch.setattr(postgres_bell, "PROBE_WAIT", 0.1)
                await eventually(lambda: said("warning"))
                assert REGISTRY.get_sample_value("ingest_notify_degraded") == 1
                await eventually(lambda: said("info"))
                assert REGISTRY.get_sample_value("ingest_notify_degraded") == 0
            way.cut()
    assert [one["event"] for one in logs] == [
        "notify degraded: new jobs are looked for every second", "notify works again",
    ]  # fmt: skip
