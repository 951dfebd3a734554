"""A sealed token is replaced only by one who knew it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from checkpoints import Sealed
from tests.contract.states import State, open_state

NAME = "oauth2/0123456789abcdef"


@pytest.fixture(params=["sqlite", "pooled_postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[State]:
    async with open_state(url) as state:
        yield state


async def test_there_is_no_token_before_one_is_saved(state: State) -> None:
    assert await state.tokens.load(NAME) is None


async def test_a_token_comes_back_byte_for_byte_and_its_version_grows(state: State) -> None:
    assert await state.tokens.replace(NAME, 0, bytes(range(256)))
    assert await state.tokens.load(NAME) == Sealed(1, bytes(range(256)))
    assert await state.tokens.replace(NAME, 1, b"\0")
    assert await state.tokens.load(NAME) == Sealed(2, b"\0")
    assert await state.tokens.load("oauth2/another") is None


@pytest.mark.parametrize("version", [0, 1, 3])
async def test_who_does_not_know_the_token_saved_last_saves_nothing(state: State, version: int) -> None:
    await state.tokens.replace(NAME, 0, b"first")
    await state.tokens.replace(NAME, 1, b"second")
    assert not await state.tokens.replace(NAME, version, b"late")
    assert await state.tokens.load(NAME) == Sealed(2, b"second")


async def test_a_first_token_follows_no_version_but_zero(state: State) -> None:
    assert not await state.tokens.replace(NAME, 1, b"late")
    assert await state.tokens.load(NAME) is None


@pytest.mark.parametrize("version", [0, 1])
async def test_of_many_who_replace_at_once_one_does(state: State, version: int) -> None:
    if version:
        await state.tokens.replace(NAME, 0, b"first")
    async with open_state(state.url) as other:
        answers = await asyncio.gather(
            *((state, other)[n % 2].tokens.replace(NAME, version, b"%d" % n) for n in range(20))
        )
    [winner] = [n for n, saved in enumerate(answers) if saved]
    assert await state.tokens.load(NAME) == Sealed(version + 1, b"%d" % winner)
