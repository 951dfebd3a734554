"""A source is asked as fast as is configured by all who poll it together, and what it asked of one holds for all."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from checkpoints import SHARED_FOR, Demand, Hold, Slots
from ingest.sqlite import path_of
from tests.contract.states import State, open_state

LONG = 1_000.0  # seconds between slots: no test lasts so long
SOON = LONG / 2  # what happened within a test is less than this ago


@pytest.fixture(params=["sqlite", "pooled_postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[State]:
    async with open_state(url) as state:
        yield state


def demand(*, interval: float = LONG, credit: float = 0.0, ahead: float = 0.0, few: int = 1) -> Demand:
    return Demand(interval, credit, ahead, few)


def near(slots: Slots) -> int:
    """Which slot the first is, counted from now."""
    return round((slots.first - slots.now) / LONG)


async def set_clock_back(url: str, seconds: float) -> None:
    """What the row looks like afterwards."""
    moments = ("next_slot", "taken_at", "shared_at", "held_at", "held_until")
    if url.startswith("sqlite"):
        connection = sqlite3.connect(path_of(url))
        with connection:
            connection.execute(f"UPDATE rates SET {', '.join(f'{m} = {m} + {seconds}' for m in moments)}")
        connection.close()
    else:
        server = await asyncpg.connect(url, statement_cache_size=0)
        shifted = ", ".join(f"{m} = {m} + make_interval(secs => {seconds})" for m in moments)
        await server.execute(f"UPDATE ingest.rates SET {shifted}")
        await server.close()


async def test_the_first_who_comes_gets_a_slot_at_once(state: State) -> None:
    slots = await state.rates.take("api", "host:1:x", demand())
    assert (slots.number, near(slots), slots.shared, slots.hold) == (1, 0, False, None)


async def test_no_slot_is_taken_twice_and_none_is_left_out(state: State) -> None:
    taken = [await state.rates.take("api", f"host:{n % 2}:x", demand(few=3)) for n in range(5)]
    assert [(near(slots), slots.number, slots.shared) for slots in taken] == [
        (0, 1, False), (1, 3, True), (4, 3, True), (7, 3, True), (10, 3, True),
    ]  # fmt: skip


async def test_the_clock_is_the_one_that_slots_are_counted_by(state: State) -> None:
    before = await state.rates.clock()
    slots = await state.rates.take("api", "host:1:x", demand())
    assert before <= slots.now <= await state.rates.clock()


async def test_sources_do_not_meet(state: State) -> None:
    await state.rates.take("api", "host:1:x", demand())
    slots = await state.rates.take("other", "host:2:y", demand())
    assert (near(slots), slots.shared) == (0, False)


async def test_who_is_alone_takes_all_that_come_soon_and_who_is_not_takes_few(state: State) -> None:
    many = demand(ahead=10 * LONG, few=2)
    assert (await state.rates.take("api", "host:1:x", many)).number == 10
    assert (await state.rates.take("api", "host:1:x", many)).number == 1
    assert [(await state.rates.take("api", f"host:{n}:x", many)).number for n in (2, 1, 1, 2)] == [2, 2, 2, 2]


async def test_who_is_alone_again_after_a_while_takes_all(state: State) -> None:
    many = demand(ahead=10 * LONG, few=2)
    for n in (1, 2):
        await state.rates.take("api", f"host:{n}:x", many)
    await set_clock_back(state.url, -(2 * SHARED_FOR + 20 * LONG))
    slots = await state.rates.take("api", "host:1:x", many)
    assert (near(slots), slots.number, slots.shared) == (0, 10, False)


async def test_slots_that_nobody_took_are_kept_up_to_the_credit(state: State) -> None:
    slots = await state.rates.take("api", "host:1:x", demand(credit=4 * LONG))
    assert (near(slots), slots.number) == (-4, 4)
    later = await state.rates.take("api", "host:1:x", demand(credit=4 * LONG))
    assert (near(later), later.number) == (0, 1)


async def test_a_clock_that_was_set_back_delays_nobody(state: State) -> None:
    await state.rates.take("api", "host:1:x", demand())
    await state.rates.hold("api", Hold(LONG, "429"))
    await set_clock_back(state.url, 100 * LONG)
    slots = await state.rates.take("api", "host:1:x", demand())
    assert slots.hold is not None
    assert (near(slots), round(slots.hold.seconds / LONG)) == (1, 1)
    await state.rates.hold("api", Hold(2 * LONG, "again"))
    held = await state.rates.held("api")
    assert held is not None
    assert (round(held.seconds / LONG), held.reason) == (2, "again")


async def test_of_twenty_who_take_at_once_each_has_slots_of_its_own(state: State) -> None:
    async with open_state(state.url) as other:
        found = await asyncio.gather(
            *((state, other)[n % 2].rates.take("api", f"host:{n}:x", demand(few=2)) for n in range(20))
        )
    taken = [near(slots) + n for slots in found for n in range(slots.number)]
    assert sorted(taken) == list(range(39))  # the first who came was alone


async def test_nobody_is_held_back_before_an_api_asked_for_it(state: State) -> None:
    assert await state.rates.held("api") is None
    await state.rates.take("api", "host:1:x", demand())
    assert await state.rates.held("api") is None


async def test_what_an_api_asked_of_one_is_told_to_all(state: State) -> None:
    await state.rates.hold("api", Hold(LONG, "charges: 429"))
    async with open_state(state.url) as other:
        held = await other.rates.held("api")
        slots = await other.rates.take("api", "host:2:y", demand())
    assert held is not None
    assert (SOON < held.seconds <= LONG, held.reason) == (True, "charges: 429")
    assert slots.hold is not None
    assert (SOON < slots.hold.seconds <= LONG, slots.hold.reason) == (True, "charges: 429")
    assert (near(slots), slots.number, slots.shared) == (0, 1, False)
    assert await state.rates.held("other") is None


async def test_the_end_of_a_hold_is_never_brought_forward(state: State) -> None:
    for seconds in (2 * LONG, LONG, 0.0):
        await state.rates.hold("api", Hold(seconds, f"{seconds:.0f}"))
        held = await state.rates.held("api")
        assert held is not None
        assert (LONG < held.seconds <= 2 * LONG, held.reason) == (True, "2000")


async def test_a_hold_ends_by_itself(state: State) -> None:
    await state.rates.hold("api", Hold(0.0, "now"))
    assert await state.rates.held("api") is None
