"""A refresh token is used once, by one process at a time, and the next one is saved before anything depends on it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from checkpoints import Sealed, Tokens
from ingest.errors import ConfigError, SourceRefused, StoreUnavailable
from ingest.redaction import Redactor
from ingest.sources.auth import Credentials
from ingest.sources.auth import State as Keeping
from ingest.sources.auth.keyring import open_keyring
from ingest.sources.auth.vault import Kept, Vault
from ingest.sources.clock import SYSTEM, Clock
from ingest.sources.request import Request
from ingest.sources.transport import open_transport
from ingest.sqlite import path_of
from tests.contract.states import State, open_state
from tests.harness.fake_api import FakeApi
from tests.harness.issuer import Issuer
from tests.unit.sources import QUICK, Timeless, configured

ASKED = Request("http://api.example.com/events")
FIRST = "the-first-refresh-token"


@pytest.fixture(params=["sqlite", "pooled_postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[State]:
    async with open_state(url) as state:
        yield state


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


@pytest.fixture
def issuer(server: FakeApi) -> Issuer:
    made = Issuer(refresh_token=FIRST)
    server.routes["/token"] = made.token
    return made


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", FIRST)
    monkeypatch.setenv("CLIENT_SECRET", "client-secret")


@asynccontextmanager
async def process(
    server: FakeApi, state: State, holder: str = "host:1:x", *, tokens: Tokens | None = None, clock: Clock = SYSTEM
) -> AsyncIterator[Credentials]:
    """The credentials of one process, and of all its streams."""
    oauth2: Mapping[str, Any] = {
        "token_url": f"{server.url}/token",
        "grant": "refresh_token",
        "client_id": "client",
        "client_secret": "${env:CLIENT_SECRET}",
        "refresh_token": "${env:FIRST}",
    }
    source, _ = configured(above={"auth": {"oauth2": oauth2}, "retry": QUICK})
    redactor = Redactor()
    keeping = Keeping(tokens or state.tokens, state.leases, holder)
    async with (
        open_transport(source, redactor, clock) as transport,
        open_keyring("api", source, transport, redactor, keeping) as keyring,
    ):
        yield keyring.credentials(source.streams["events"])


async def shown(credentials: Credentials) -> str:
    return (await credentials.prepare(ASKED)).headers["authorization"].removeprefix("Bearer ")


async def expired(credentials: Credentials, issuer: Issuer) -> bool:
    """The API refuses what the credentials have."""
    sent = await credentials.prepare(ASKED)
    issuer.good.clear()
    return await credentials.renew(sent)


def vault(server: FakeApi, state: State) -> Vault:
    return Vault(state.tokens, FIRST, f"{server.url}/token", "client")


async def test_the_first_token_is_used_once_and_the_next_ones_after_it(
    state: State, server: FakeApi, issuer: Issuer
) -> None:
    async with process(server, state) as ours:
        assert await shown(ours) == "access-token-0001"
        assert await expired(ours, issuer)
        assert await expired(ours, issuer)
        assert await shown(ours) == "access-token-0003"
    used = [form["refresh_token"] for form in issuer.forms]
    assert used == [FIRST, "refresh-token-0001", "refresh-token-0002"]


async def test_a_process_that_starts_later_takes_what_was_saved_last(
    state: State, server: FakeApi, issuer: Issuer
) -> None:
    async with process(server, state) as before:
        await expired(before, issuer)
    async with process(server, state, "host:2:y") as ours:
        assert await shown(ours) == "access-token-0002"
        assert len(issuer.asked) == 2
        assert await expired(ours, issuer)
        assert await shown(ours) == "access-token-0003"
    assert issuer.reused == 0


async def test_an_access_token_that_is_about_to_end_is_not_taken_over(
    state: State, server: FakeApi, issuer: Issuer
) -> None:
    time = Timeless()
    async with process(server, state, clock=time.clock) as before:
        await shown(before)
    later = Timeless(time.wall + 3539)
    async with process(server, state, clock=later.clock) as ours:
        assert await shown(ours) == "access-token-0001"
        later.hands += 2
        assert await shown(ours) == "access-token-0002"
    async with process(server, state, clock=Timeless(time.wall + 7080).clock) as ours:
        assert await shown(ours) == "access-token-0002"


async def test_an_issuer_that_keeps_its_refresh_token_is_shown_it_again(
    state: State, server: FakeApi, issuer: Issuer
) -> None:
    issuer.rotates = False
    async with process(server, state) as ours:
        assert await expired(ours, issuer)
        assert await shown(ours) == "access-token-0002"
    assert [form["refresh_token"] for form in issuer.forms] == [FIRST, FIRST]


async def test_processes_that_are_refused_together_never_use_a_token_twice(
    url: str, server: FakeApi, issuer: Issuer
) -> None:
    issuer.pause = 0.005
    async with AsyncExitStack() as stack:
        states = [await stack.enter_async_context(open_state(url)) for _ in range(2)]
        replicas = [await stack.enter_async_context(process(server, states[n % 2], f"host:{n}:{n}")) for n in range(4)]
        for _ in range(5):
            sent = [await ours.prepare(ASKED) for ours in replicas]
            issuer.good.clear()
            assert all(await asyncio.gather(*(ours.renew(one) for ours, one in zip(replicas, sent, strict=True))))
            assert {await shown(ours) for ours in replicas} == issuer.good
    assert issuer.reused == 0
    assert issuer.given == 6  # one for all of them each time


class Fickle:
    """A state store that fails at the calls so numbered. `lost`: it answers nothing, but has saved."""

    def __init__(self, tokens: Tokens, failing: set[int], *, lost: bool = False) -> None:
        self._tokens, self._failing, self._lost = tokens, failing, lost
        self.calls = 0

    async def load(self, name: str) -> Sealed | None:
        return await self._tokens.load(name)

    async def replace(self, name: str, version: int, content: bytes) -> bool:
        self.calls += 1
        if self.calls in self._failing:
            if self._lost:
                await self._tokens.replace(name, version, content)
            raise StoreUnavailable("as ordered")
        return await self._tokens.replace(name, version, content)


@pytest.mark.parametrize("lost", [False, True])
async def test_a_token_is_used_only_once_it_is_saved(state: State, server: FakeApi, issuer: Issuer, lost: bool) -> None:
    tokens = Fickle(state.tokens, {1, 2}, lost=lost)
    async with process(server, state, tokens=tokens) as ours:
        assert await shown(ours) == "access-token-0001"
    assert tokens.calls == 3
    _, kept = await vault(server, state).load()
    assert kept is not None
    assert (kept.refresh, kept.access) == ("refresh-token-0001", "access-token-0001")
    assert len(issuer.asked) == 1


async def test_a_token_that_could_not_be_saved_is_saved_later_and_not_asked_for_again(
    state: State, server: FakeApi, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.sources.auth.refresh.SAVE_TRIES", 2)
    tokens = Fickle(state.tokens, {1, 2})
    async with process(server, state, tokens=tokens) as ours:
        with pytest.raises(StoreUnavailable):
            await shown(ours)
        assert await shown(ours) == "access-token-0001"
    assert len(issuer.asked) == 1


THEIRS = Kept("their-refresh-token", "their-access-token")


async def test_what_another_process_saved_while_ours_stood_still_is_not_overwritten(
    state: State, server: FakeApi, issuer: Issuer
) -> None:
    class Late(Fickle):
        async def replace(self, name: str, version: int, content: bytes) -> bool:
            assert await vault(server, state).replace(version, THEIRS)
            return await super().replace(name, version, content)

    async with process(server, state, tokens=Late(state.tokens, set())) as ours:
        assert await shown(ours) == "their-access-token"
    assert await vault(server, state).load() == (1, THEIRS)


async def test_a_refused_refresh_token_is_looked_up_again_as_another_may_have_been_saved(
    state: State, server: FakeApi, issuer: Issuer
) -> None:
    class Early(Fickle):
        async def load(self, name: str) -> Sealed | None:
            found = await super().load(name)
            await vault(server, state).replace(0, THEIRS)  # by one that had asked before us, and lost its lease
            return found

    issuer.refresh_token = THEIRS.refresh
    async with process(server, state, tokens=Early(state.tokens, set())) as ours:
        assert await shown(ours) == "their-access-token"
    assert len(issuer.asked) == 1


async def test_a_refresh_token_that_has_ended_says_what_to_do(state: State, server: FakeApi, issuer: Issuer) -> None:
    issuer.refresh_token = "another"
    async with process(server, state) as ours:
        with pytest.raises(SourceRefused, match=r"invalid_grant.*look at `refresh_token`: it has ended, was revoked"):
            await shown(ours)
        assert len(issuer.asked) == 1
    assert await state.leases.holder(vault(server, state).name) is None


async def test_a_new_first_token_makes_a_new_beginning_and_a_new_client_secret_does_not(
    state: State, server: FakeApi, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process(server, state) as ours:
        await shown(ours)
    monkeypatch.setenv("CLIENT_SECRET", "rotated-secret")
    issuer.client_secret = "rotated-secret"
    async with process(server, state) as ours:
        assert await expired(ours, issuer)
    assert issuer.forms[-1]["refresh_token"] == "refresh-token-0001"
    monkeypatch.setenv("FIRST", "a-refresh-token-of-a-new-login")
    issuer.refresh_token = "a-refresh-token-of-a-new-login"
    async with process(server, state) as ours:
        await shown(ours)
    assert issuer.forms[-1]["refresh_token"] == "a-refresh-token-of-a-new-login"


async def everything(url: str) -> bytes:
    """All that is saved, as bytes."""
    if url.startswith("sqlite"):
        folder = path_of(url).parent
        return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())
    connection = await asyncpg.connect(url)
    rows = [
        *await connection.fetch("SELECT * FROM ingest.tokens"),
        *await connection.fetch("SELECT * FROM ingest.leases"),
    ]
    await connection.close()
    return b"".join(value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row)


async def test_who_reads_the_state_reads_no_token(url: str, state: State, server: FakeApi, issuer: Issuer) -> None:
    async with process(server, state) as ours:
        await expired(ours, issuer)
    saved = await everything(url)
    assert vault(server, state).name.encode() in saved
    for secret in (FIRST, "refresh-token-0001", "refresh-token-0002", "access-token-0002", "client-secret"):
        assert secret.encode() not in saved


async def test_a_saved_token_that_is_damaged_is_no_token(state: State, server: FakeApi, issuer: Issuer) -> None:
    async with process(server, state) as ours:
        await shown(ours)
    name = vault(server, state).name
    sealed = await state.tokens.load(name)
    assert sealed is not None
    await state.tokens.replace(name, sealed.version, sealed.content[:-1] + bytes([sealed.content[-1] ^ 1]))
    async with process(server, state) as ours:
        with pytest.raises(ConfigError, match="is damaged: delete its row from the table `tokens`"):
            await shown(ours)
