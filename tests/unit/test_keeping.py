"""A holder keeps its lease while it works, and works no longer than it has it."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from checkpoints import Lease, Leases
from checkpoints.keeping import keep
from checkpoints.sqlite import SqliteLeases
from ingest.errors import ConfigError, IngestError, SourceUnavailable, StoreUnavailable, Superseded
from ingest.sqlite import open_database
from migrations.runner import migrate

TTL = 3.0  # seconds; renewed every second, and lost when that fails for two
BRIEF = 0.3  # seconds: a lease that a test sees lost
FOREVER = 60.0  # seconds that a test waits for what must come


class Failing:
    """Leases whose renewals fail with the errors given, one after the other; what comes after them is passed on."""

    def __init__(self, leases: Leases, errors: Sequence[IngestError | None]) -> None:
        self._leases, self._errors = leases, list(errors)
        self.renewed = asyncio.Semaphore(0)

    async def renew(self, lease: Lease, ttl: float) -> None:
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        await self._leases.renew(lease, ttl)
        self.renewed.release()

    async def acquire(self, name: str, holder: str, ttl: float) -> Lease | None:
        return await self._leases.acquire(name, holder, ttl)

    async def release(self, lease: Lease) -> None:
        await self._leases.release(lease)

    async def holder(self, name: str) -> str | None:
        return await self._leases.holder(name)


@pytest_asyncio.fixture
async def leases(sqlite_path: Path) -> AsyncIterator[Leases]:
    await migrate(f"sqlite:///{sqlite_path}")
    async with open_database(sqlite_path) as database:
        yield SqliteLeases(database)


@pytest_asyncio.fixture
async def lease(leases: Leases) -> Lease:
    lease = await leases.acquire("a", "host:1:x", TTL)
    assert lease is not None
    return lease


async def wait_forever() -> None:
    await asyncio.wait_for(asyncio.Event().wait(), FOREVER)


async def test_a_kept_lease_is_renewed_while_its_holder_works(leases: Leases, lease: Lease) -> None:
    counted = Failing(leases, [])
    async with keep(counted, lease, TTL) as kept:
        for _ in range(3):  # the third comes when the lease as it was acquired ends
            await asyncio.wait_for(counted.renewed.acquire(), FOREVER)
        assert not kept.lost
        kept.ensure()
        assert await leases.holder("a") == "host:1:x"


async def test_keeping_a_lease_does_not_release_it(leases: Leases, lease: Lease) -> None:
    await leases.renew(lease, FOREVER)
    async with keep(leases, lease, FOREVER):
        pass
    assert await leases.holder("a") == "host:1:x"


async def test_a_holder_whose_lease_was_taken_is_stopped(leases: Leases, lease: Lease) -> None:
    with pytest.raises(Superseded, match="our fence 1 is superseded by fence 2 of host:2:y"):
        async with keep(leases, lease, BRIEF) as kept:
            await leases.release(lease)
            assert await leases.acquire("a", "host:2:y", FOREVER)
            await wait_forever()
    assert kept.lost
    with pytest.raises(Superseded):
        kept.ensure()


async def test_an_outage_shorter_than_the_lease_is_borne(leases: Leases, lease: Lease) -> None:
    failing = Failing(leases, [StoreUnavailable("down")])
    async with keep(failing, lease, TTL) as kept:
        await asyncio.wait_for(failing.renewed.acquire(), FOREVER)
        assert not kept.lost


async def test_an_outage_longer_than_the_lease_stops_the_holder(leases: Leases, lease: Lease) -> None:
    with pytest.raises(Superseded, match="could not be renewed in time"):
        async with keep(Failing(leases, [StoreUnavailable("down")] * 1000), lease, BRIEF) as kept:
            await wait_forever()
    assert kept.lost


async def test_the_time_of_a_lease_counts_from_before_it_was_asked_for(leases: Leases, lease: Lease) -> None:
    with pytest.raises(Superseded, match="could not be renewed in time"):
        async with keep(leases, lease, BRIEF, asked_at=time.monotonic() - BRIEF):
            await wait_forever()


async def test_a_process_that_was_frozen_past_its_lease_knows_before_it_asks(leases: Leases, lease: Lease) -> None:
    def freeze() -> None:
        time.sleep(BRIEF)  # holds up the whole event loop, as SIGSTOP would

    with pytest.raises(Superseded, match="could not be renewed in time"):
        async with keep(leases, lease, BRIEF) as kept:
            freeze()
            kept.ensure()


async def test_a_cancellation_from_outside_stays_one(leases: Leases, lease: Lease) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with keep(leases, lease, TTL):
            inside.set()
            await wait_forever()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_body_s_own_error_passes_through(leases: Leases, lease: Lease) -> None:
    with pytest.raises(SourceUnavailable, match="no answer"):
        async with keep(leases, lease, TTL):
            raise SourceUnavailable("no answer")


async def test_a_renewal_that_a_person_must_mend_is_borne_for_as_long_as_the_lease_lasts(
    leases: Leases, lease: Lease
) -> None:
    """The password that is being changed, the database that is being moved: whoever writes meanwhile says so."""
    with pytest.raises(Superseded, match=r"could not be renewed in time .*: no table"):
        async with keep(Failing(leases, [ConfigError("no table")] * 1000), lease, BRIEF):
            await wait_forever()
    mended = Failing(leases, [ConfigError("no table")])
    async with keep(mended, lease, TTL):
        await asyncio.wait_for(mended.renewed.acquire(), FOREVER)


async def test_a_timeout_around_a_kept_lease_works_as_ever(leases: Leases, lease: Lease) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            async with keep(leases, lease, TTL):
                await wait_forever()


async def test_a_holder_that_was_stopped_can_go_on_with_other_work(leases: Leases, lease: Lease) -> None:
    with pytest.raises(Superseded):
        async with keep(leases, lease, BRIEF, asked_at=time.monotonic() - BRIEF):
            await wait_forever()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0)
