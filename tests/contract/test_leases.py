"""A lease has one holder at a time, and its fence only grows."""

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from ingest.errors import Superseded
from tests.contract.states import LONG, SHORT, State, eventually, open_state


@pytest.fixture(params=["sqlite", "pooled_postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[State]:
    async with open_state(url) as state:
        yield state


async def test_a_free_lease_is_acquired_with_the_first_fence(state: State) -> None:
    lease = await state.leases.acquire("stream:a/b", "host:1:x", LONG)
    assert lease is not None
    assert (lease.name, lease.holder, lease.fence, lease.clean) == ("stream:a/b", "host:1:x", 1, True)


async def test_a_held_lease_is_refused_to_others(state: State) -> None:
    await state.leases.acquire("a", "host:1:x", LONG)
    assert await state.leases.acquire("a", "host:2:y", LONG) is None
    assert await state.leases.holder("a") == "host:1:x"


async def test_leases_of_different_names_do_not_meet(state: State) -> None:
    assert await state.leases.acquire("a", "host:1:x", LONG)
    assert await state.leases.acquire("b", "host:2:y", LONG)


async def test_the_holder_itself_cannot_acquire_again(state: State) -> None:
    await state.leases.acquire("a", "host:1:x", LONG)
    assert await state.leases.acquire("a", "host:1:x", LONG) is None


async def test_a_released_lease_is_free_at_once_and_the_next_holder_is_told_it_is_clean(state: State) -> None:
    first = await state.leases.acquire("a", "host:1:x", LONG)
    assert first is not None
    await state.leases.release(first)
    assert await state.leases.holder("a") is None
    second = await state.leases.acquire("a", "host:2:y", LONG)
    assert second is not None
    assert (second.fence, second.clean) == (2, True)


async def test_an_expired_lease_goes_to_the_next_who_is_told_it_is_not_clean(state: State) -> None:
    await state.leases.acquire("a", "host:1:x", SHORT)
    second = await eventually(lambda: state.leases.acquire("a", "host:2:y", LONG))
    assert (second.holder, second.fence, second.clean) == ("host:2:y", 2, False)
    assert await state.leases.holder("a") == "host:2:y"


async def test_the_same_holder_gets_a_new_fence_after_its_lease_expired(state: State) -> None:
    await state.leases.acquire("a", "host:1:x", SHORT)
    second = await eventually(lambda: state.leases.acquire("a", "host:1:x", LONG))
    assert (second.fence, second.clean) == (2, False)


async def test_a_lease_is_clean_again_after_an_unclean_one_was_released(state: State) -> None:
    await state.leases.acquire("a", "host:1:x", SHORT)
    second = await eventually(lambda: state.leases.acquire("a", "host:2:y", LONG))
    await state.leases.release(second)
    third = await state.leases.acquire("a", "host:3:z", LONG)
    assert third is not None
    assert (third.fence, third.clean) == (3, True)


async def test_a_renewed_lease_lives_for_its_new_time(state: State) -> None:
    lease = await state.leases.acquire("a", "host:1:x", LONG)
    assert lease is not None
    await state.leases.renew(lease, SHORT)  # shorter, so that the test sees the new end come
    await eventually(lambda: state.leases.acquire("a", "host:2:y", LONG))


async def test_a_renewal_pushes_the_end_out(state: State) -> None:
    lease = await state.leases.acquire("a", "host:1:x", 1.0)
    assert lease is not None
    await state.leases.renew(lease, LONG)
    await state.leases.acquire("clock", "host:3:z", 1.0)
    await eventually(lambda: state.leases.acquire("clock", "host:4:z", LONG))  # the second has passed
    assert await state.leases.acquire("a", "host:2:y", LONG) is None


async def test_an_expired_lease_cannot_be_renewed(state: State) -> None:
    lease = await state.leases.acquire("a", "host:1:x", SHORT)
    assert lease is not None

    async def ended() -> bool | None:
        return True if await state.leases.holder("a") is None else None

    await eventually(ended)
    with pytest.raises(Superseded, match=r"a: not renewed: our lease \(fence 1\) has ended"):
        await state.leases.renew(lease, LONG)


async def test_a_lease_that_was_taken_over_cannot_be_renewed_or_released(state: State) -> None:
    old = await state.leases.acquire("a", "host:1:x", SHORT)
    assert old is not None
    await eventually(lambda: state.leases.acquire("a", "host:2:y", LONG))
    with pytest.raises(Superseded, match="our fence 1 is superseded by fence 2 of host:2:y"):
        await state.leases.renew(old, LONG)
    await state.leases.release(old)
    assert await state.leases.holder("a") == "host:2:y"


async def test_a_released_lease_cannot_be_renewed(state: State) -> None:
    lease = await state.leases.acquire("a", "host:1:x", LONG)
    assert lease is not None
    await state.leases.release(lease)
    with pytest.raises(Superseded):
        await state.leases.renew(lease, LONG)


async def test_a_lease_may_be_released_twice(state: State) -> None:
    lease = await state.leases.acquire("a", "host:1:x", LONG)
    assert lease is not None
    await state.leases.release(lease)
    await state.leases.release(lease)
    assert await state.leases.holder("a") is None


async def test_nobody_holds_a_lease_that_never_was(state: State) -> None:
    assert await state.leases.holder("a") is None


async def test_of_twenty_who_ask_at_once_one_gets_the_lease(state: State) -> None:
    async with open_state(state.url) as other:
        answers = await asyncio.gather(
            *((state, other)[n % 2].leases.acquire("a", f"host:{n}:{n}", LONG) for n in range(20))
        )
    [lease] = [answer for answer in answers if answer is not None]
    assert lease.fence == 1


async def test_of_twenty_who_ask_for_an_expired_lease_one_gets_it(state: State) -> None:
    lease = await state.leases.acquire("a", "host:0:x", LONG)
    assert lease is not None
    await state.leases.release(lease)
    answers = await asyncio.gather(*(state.leases.acquire("a", f"host:{n}:{n}", LONG) for n in range(20)))
    assert [answer.fence for answer in answers if answer is not None] == [2]


def _take_and_give_back(url: str, number: int, times: int) -> list[int]:
    async def run() -> list[int]:
        async with open_state(url) as state:
            fences: list[int] = []
            while len(fences) < times:
                if lease := await state.leases.acquire("a", f"host:{number}:process-{number}", LONG):
                    fences.append(lease.fence)
                    await state.leases.release(lease)
            return fences

    return asyncio.run(run())


async def test_eight_processes_that_hammer_one_file_never_share_a_fence(sqlite_path: Path) -> None:
    url, times = f"sqlite:///{sqlite_path}", 10

    def hammer() -> list[list[int]]:
        with multiprocessing.get_context("spawn").Pool(8) as pool:
            found = pool.starmap(_take_and_give_back, [(url, number, times) for number in range(8)], chunksize=1)
            pool.close()
            pool.join()
            return found

    fences = [fence for found in await asyncio.to_thread(hammer) for fence in found]
    assert sorted(fences) == list(range(1, 8 * times + 1))


@asynccontextmanager
async def holder_process(url: str, holder: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that holds the lease `a` for a long time and does not renew it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.contract.lease_holder", url, "a", holder, str(LONG)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"1\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_holder_on_sqlite_that_was_killed_is_succeeded_at_once(sqlite_path: Path) -> None:
    async with open_state(f"sqlite:///{sqlite_path}") as state, holder_process(state.url, "host:9:killed") as process:
        assert await state.leases.acquire("a", "host:2:y", LONG) is None
        process.kill()
        await process.wait()
        lease = await state.leases.acquire("a", "host:2:y", LONG)
        assert lease is not None
        assert (lease.fence, lease.clean) == (2, False)
        assert not (Path(f"{sqlite_path}.holders") / "killed").exists()


async def test_a_holder_on_sqlite_that_was_only_stopped_keeps_its_lease(sqlite_path: Path) -> None:
    async with open_state(f"sqlite:///{sqlite_path}") as state, holder_process(state.url, "host:9:frozen") as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert await state.leases.acquire("a", "host:2:y", LONG) is None


async def test_a_holder_on_sqlite_that_closed_without_releasing_is_succeeded_at_once(sqlite_path: Path) -> None:
    async with open_state(f"sqlite:///{sqlite_path}") as state:
        async with open_state(state.url) as other:
            assert await other.leases.acquire("a", "host:1:x", LONG)
            assert await state.leases.acquire("a", "host:2:y", LONG) is None
        lease = await state.leases.acquire("a", "host:2:y", LONG)
        assert lease is not None
        assert (lease.fence, lease.clean) == (2, False)


async def test_a_process_that_opened_the_file_twice_is_there_until_both_are_closed(sqlite_path: Path) -> None:
    async with open_state(f"sqlite:///{sqlite_path}") as state:
        async with open_state(state.url) as first:
            assert await first.leases.acquire("a", "host:1:x", LONG)
            async with open_state(state.url) as second:
                assert await second.leases.acquire("b", "host:1:x", LONG)
            assert await state.leases.acquire("a", "host:2:y", LONG) is None
            assert await state.leases.acquire("b", "host:2:y", LONG) is None
        assert await state.leases.acquire("a", "host:2:y", LONG)


async def test_a_clock_set_back_does_not_prolong_a_lease_on_sqlite(sqlite_path: Path) -> None:
    async with open_state(f"sqlite:///{sqlite_path}") as state:
        assert await state.leases.acquire("a", "host:1:x", SHORT)
        hours = 3_600_000 * 5  # what the row looks like when the clock has gone back by so much
        with sqlite3.connect(sqlite_path) as connection:
            connection.execute("UPDATE leases SET renewed_at = renewed_at + ?1, expires_at = expires_at + ?1", (hours,))
        connection.close()
        await eventually(lambda: state.leases.acquire("a", "host:2:y", LONG))
