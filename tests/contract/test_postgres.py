"""What Postgres may answer, and what it means; what happens when it does not answer at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import pytest_asyncio

from checkpoints.keeping import keep
from checkpoints.postgres import PostgresLeases
from consumers.store import Written
from consumers.store.postgres import PostgresStore
from ingest import postgres as adapter
from ingest.errors import BadRecord, ConfigError, IngestError, StoreUnavailable, Superseded
from ingest.postgres import POOL_SIZE, Postgres, literal, open_postgres
from tests.contract.test_store import CONSUMER, EVERYTHING, TOPIC, event, span
from tests.harness.forwarder import Forwarder, forwarding
from tests.harness.names import unique
from tests.harness.postgres import Postgres as Server

LONG = 30.0  # seconds: far below the deadline of a statement, far above what anything here takes
SHORT = 0.5  # seconds: a deadline that a test waits for

OUTAGES = {
    "08006": "a broken connection",
    "25006": "a read-only server",
    "25P03": "a session that was idle in its transaction for too long",
    "40001": "a serialization failure",
    "40P01": "a deadlock",
    "53100": "a full disk",
    "53200": "no memory",
    "53300": "too many connections",
    "55000": "a database that takes no connections",
    "55P03": "a lock that is not to be had",
    "57014": "a statement timeout",
    "57P01": "a shutdown",
    "57P03": "a server that starts",
    "58030": "an I/O error",
    "XX000": "an internal error",
}
FOR_A_PERSON = {
    "42P01": "a table that is missing",
    "42703": "a column that is missing",
    "42501": "a permission that is missing",
    "P0001": "a trigger that refuses",
}
BAD_ROWS = {
    "22P02": "a text that is no JSON",
    "22003": "a number out of range",
    "23514": "a check",
    "54000": "a value beyond a limit",
}


@pytest_asyncio.fixture
async def admin(postgres_url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        *((code, StoreUnavailable) for code in OUTAGES),
        *((code, ConfigError) for code in FOR_A_PERSON),
        *((code, BadRecord) for code in BAD_ROWS),
    ],
)
async def test_every_sqlstate_is_an_outage_a_bad_row_or_a_matter_for_a_person(
    postgres_url: str, admin: "asyncpg.Connection[asyncpg.Record]", code: str, meaning: type[IngestError]
) -> None:
    """Raised by the server in the middle of a write. Nothing of it is stored, and the next write succeeds."""
    await admin.execute(
        f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE SQLSTATE '{code}'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON ingest.events FOR EACH ROW EXECUTE FUNCTION refuse();
        """
    )
    async with open_postgres(postgres_url) as postgres:
        store = PostgresStore(postgres)
        with pytest.raises(meaning, match=code) as caught:
            await store.write(CONSUMER, [event()], [span(0, 1)])
        assert caught.type is meaning
        assert await store.offsets(CONSUMER, TOPIC) == {}
        await admin.execute("DROP TRIGGER refuse ON ingest.events")
        assert await store.write(CONSUMER, [event()], [span(0, 1)]) == Written(1, 0)


@asynccontextmanager
async def role(admin: "asyncpg.Connection[asyncpg.Record]", url: str, options: str) -> AsyncIterator[str]:
    """The address of the database as a new role with these options."""
    name = unique("role").replace("-", "_")
    await admin.execute(f"CREATE ROLE {name} PASSWORD 'secret' {options}")
    await admin.execute(f"GRANT ALL ON SCHEMA ingest TO {name}; GRANT ALL ON ALL TABLES IN SCHEMA ingest TO {name}")
    parts = urlsplit(url)
    try:
        yield urlunsplit(parts._replace(netloc=f"{name}:secret@{parts.netloc.rpartition('@')[2]}"))
    finally:
        await admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def refusal(url: str) -> IngestError:
    with pytest.raises(IngestError) as caught:
        async with open_postgres(url) as postgres:
            await PostgresStore(postgres).write(CONSUMER, [event()], [span(0, 1)])
    return caught.value


@pytest.mark.parametrize(
    ("options", "password", "meaning", "code"),
    [
        ("LOGIN CONNECTION LIMIT 0", "secret", StoreUnavailable, "too many connections for role"),
        ("NOLOGIN", "secret", ConfigError, "not permitted to log in"),
        ("LOGIN", "wrong", ConfigError, "password authentication failed"),
    ],
)
async def test_a_server_that_lets_us_not_in_is_full_or_a_matter_for_a_person(
    postgres_url: str,
    admin: "asyncpg.Connection[asyncpg.Record]",
    options: str,
    password: str,
    meaning: type[IngestError],
    code: str,
) -> None:
    async with role(admin, postgres_url, options) as url:
        error = await refusal(url.replace(":secret@", f":{password}@"))
        assert type(error) is meaning
        assert code in str(error)
        assert "secret" not in str(error)


async def test_a_database_that_is_missing_is_for_a_person_and_one_that_is_being_maintained_is_waited_for(
    postgres: Server, postgres_url: str, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    assert type(await refusal(f"{postgres_url}-not")) is ConfigError
    name = urlsplit(postgres_url).path[1:]
    other = await asyncpg.connect(postgres.url)
    await admin.close()
    await other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    error = await refusal(postgres_url)
    await other.close()
    assert type(error) is StoreUnavailable
    assert "not currently accepting connections" in str(error)


async def test_a_setting_in_the_address_that_makes_no_sense_is_for_a_person_and_no_bad_record(
    postgres_url: str,
) -> None:
    for setting in ("statement_timeout=soon", "no_such_setting=1"):
        assert type(await refusal(f"{postgres_url}?{setting}")) is ConfigError


async def test_a_read_only_server_is_waited_for_and_the_message_says_what_to_do(
    postgres_url: str, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """As a primary that steps down, and comes back: the connection that met it is not used again."""
    name = urlsplit(postgres_url).path[1:]
    await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    async with open_postgres(postgres_url) as postgres:
        store = PostgresStore(postgres)
        with pytest.raises(StoreUnavailable, match=r"25006.*target_session_attrs=read-write"):
            await store.write(CONSUMER, [event()], [span(0, 1)])
        await admin.execute("SET default_transaction_read_only = off")
        await admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        assert await store.write(CONSUMER, [event()], [span(0, 1)]) == Written(1, 0)


async def test_limits_of_an_administrator_stay_and_ours_stand_in_where_there_are_none(
    postgres_url: str, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    show = "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')"
    async with open_postgres(postgres_url) as postgres, postgres.transaction() as connection:
        assert tuple(await connection.fetchrow(show) or ()) == ("1min", "1min")
    async with (
        role(admin, postgres_url, "LOGIN") as url,
        open_postgres(f"{url}?statement_timeout=7000") as postgres,
        postgres.transaction() as connection,
    ):
        assert tuple(await connection.fetchrow(show) or ()) == ("7s", "1min")


@pytest.mark.parametrize("conforming", ["on", "off"])
async def test_a_value_that_is_part_of_a_statement_arrives_as_it_is(postgres_url: str, conforming: str) -> None:
    texts = ["", "a'b", "''", "\\", "\\'", "'); DROP SCHEMA ingest; --", "$1", "a\nb\t\r", "名😀", "E'x'", "\\x41"]
    url = f"{postgres_url}?standard_conforming_strings={conforming}"
    async with open_postgres(url) as postgres, postgres.transaction() as connection:
        for value in (*texts, None, True, False, 0, -(2**63), 2**63 - 1):
            assert await connection.fetchval(f"SELECT {literal(value)}") == value
    for value in ("a\0b", "\ud800"):
        with pytest.raises(BadRecord):
            literal(value)


async def test_a_write_at_once_is_a_transaction_like_the_others(postgres_url: str) -> None:
    """It has their limits and their isolation, and where it fails nothing of it stays."""
    shown = """INSERT INTO ingest.offsets (consumer, topic, partition, next_offset)
               SELECT current_setting('transaction_isolation'), current_setting('statement_timeout'), 0, {}"""
    async with open_postgres(f"{postgres_url}?default_transaction_isolation=serializable") as postgres:
        assert await postgres.write_at_once(shown.format("1 WHERE false")) == 0
        assert await postgres.write_at_once(shown.format("1")) == 1
        with pytest.raises(BadRecord):
            await postgres.write_at_once(shown.format("1 UNION ALL SELECT 'x', 'x', 1, 1 / 0"))
        async with postgres.transaction() as connection:
            rows = await connection.fetch("SELECT consumer, topic FROM ingest.offsets")
    assert [tuple(row) for row in rows] == [("read committed", "1min")]


@pytest.mark.parametrize(("limit", "code"), [("statement_timeout", "57014"), ("lock_timeout", "55P03")])
async def test_a_write_that_a_lock_keeps_for_too_long_is_an_outage(
    postgres_url: str, admin: "asyncpg.Connection[asyncpg.Record]", limit: str, code: str
) -> None:
    async with open_postgres(f"{postgres_url}?{limit}=200") as postgres:
        store = PostgresStore(postgres)
        await store.write(CONSUMER, [], [span(0, 1)])
        async with admin.transaction():
            await admin.execute("UPDATE ingest.offsets SET next_offset = 1")
            with pytest.raises(StoreUnavailable, match=code):
                await store.write(CONSUMER, [event()], [span(1, 2)])
        assert await store.write(CONSUMER, [event()], [span(1, 2)]) == Written(1, 0)


async def test_a_deadlock_is_an_outage_and_no_bad_record(
    postgres_url: str, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await admin.execute(
        """
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_advisory_xact_lock(1); PERFORM pg_advisory_xact_lock(2); RETURN NEW; END $$;
        CREATE TRIGGER wait BEFORE INSERT ON ingest.events FOR EACH ROW EXECUTE FUNCTION wait();
        """
    )
    other = await asyncpg.connect(postgres_url, server_settings={"deadlock_timeout": "10min"})  # it does not find out
    async with open_postgres(f"{postgres_url}?deadlock_timeout=100") as postgres:
        store = PostgresStore(postgres)
        await store.write(CONSUMER, [], [span(0, 1)])
        await admin.execute("SELECT pg_advisory_lock(1)")
        async with other.transaction():
            await other.execute("SELECT pg_advisory_xact_lock(2)")
            writing = asyncio.create_task(store.write(CONSUMER, [event()], [span(1, 2)]))
            await waiting(admin, 1)
            taking = asyncio.create_task(other.execute("UPDATE ingest.offsets SET next_offset = 1"))
            await waiting(admin, 2)
            await admin.execute("SELECT pg_advisory_unlock(1)")
            with pytest.raises(StoreUnavailable, match="40P01"):
                await writing
            await taking
        await other.close()
        assert await store.write(CONSUMER, [event()], [span(1, 2)]) == Written(1, 0)


async def waiting(admin: "asyncpg.Connection[asyncpg.Record]", count: int) -> None:
    """Until so many sessions wait for a lock."""
    sessions = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'"""
    async with asyncio.timeout(LONG):
        while await admin.fetchval(sessions) < count:  # noqa: ASYNC110 - a database is asked
            await asyncio.sleep(0.02)


# No answer


@pytest_asyncio.fixture
async def address(postgres: Server) -> AsyncIterator[Forwarder]:
    async with forwarding(postgres.port) as forwarder:
        yield forwarder


@asynccontextmanager
async def through(address: Forwarder, url: str, deadline: float = SHORT) -> AsyncIterator[Postgres]:
    parts = urlsplit(url)
    netloc = f"{parts.netloc.rpartition(':')[0]}:{address.port}"
    async with open_postgres(urlunsplit(parts._replace(netloc=netloc)), statement_timeout=deadline) as postgres:
        yield postgres


async def used(postgres: Postgres, count: int) -> None:
    """So many connections at once: each waits until the last one has come."""
    ready = asyncio.Barrier(count)

    async def one() -> None:
        async with postgres.transaction() as connection:
            await connection.execute("SELECT 1")
            await ready.wait()

    await asyncio.gather(*(one() for _ in range(count)))


async def test_a_silent_server_is_an_outage_by_our_clock_and_costs_no_connection_of_the_pool(
    address: Forwarder, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "CONNECT_TIMEOUT", SHORT)
    async with through(address, postgres_url) as postgres:
        store = PostgresStore(postgres)
        await used(postgres, 3)
        address.silence()
        async with asyncio.timeout(LONG):
            for _ in range(POOL_SIZE + 1):
                with pytest.raises(StoreUnavailable):
                    await store.write(CONSUMER, [event()], [span(0, 1)])
        monkeypatch.setattr(adapter, "CONNECT_TIMEOUT", LONG)
        address.speak()
        assert await store.write(CONSUMER, [event()], [span(0, 1)]) == Written(1, 0)
        await used(postgres, POOL_SIZE)


async def test_connections_from_before_are_given_up_with_the_first_of_them_that_fails(
    address: Forwarder, postgres_url: str
) -> None:
    async with through(address, postgres_url, deadline=2.0) as postgres:
        await used(postgres, 4)
        address.forget()
        with pytest.raises(StoreUnavailable):
            await PostgresStore(postgres).count(EVERYTHING)
        await used(postgres, 4)


async def test_who_is_cancelled_does_not_wait_for_a_silent_server(address: Forwarder, postgres_url: str) -> None:
    async with through(address, postgres_url, deadline=600.0) as postgres:
        await used(postgres, 1)
        address.silence()
        async with asyncio.timeout(LONG):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SHORT):
                    await PostgresStore(postgres).write(CONSUMER, [event()], [span(0, 1)])
        address.speak()


async def test_a_lease_is_given_up_in_time_although_its_renewal_has_no_answer(
    address: Forwarder, postgres_url: str
) -> None:
    async with through(address, postgres_url, deadline=600.0) as postgres:
        leases = PostgresLeases(postgres)
        lease = await leases.acquire("stream:a/b", "here:1:x", 3.0)
        assert lease is not None
        address.silence()
        async with asyncio.timeout(LONG):
            with pytest.raises(Superseded, match="could not be renewed in time"):
                async with keep(leases, lease, 3.0):
                    await asyncio.Event().wait()
        address.speak()


async def test_who_freezes_inside_a_transaction_does_not_keep_others_from_its_rows(
    postgres_url: str,
) -> None:
    """As a process that was stopped, or a machine that is gone without a word: the server ends its transaction."""
    async with open_postgres(postgres_url, statement_timeout=1.0) as frozen, open_postgres(postgres_url) as other:
        await PostgresStore(other).write(CONSUMER, [], [span(0, 1)])
        with pytest.raises(StoreUnavailable):
            async with frozen.transaction() as connection:
                await connection.execute("UPDATE ingest.offsets SET next_offset = 5")
                assert await PostgresStore(other).write(CONSUMER, [event()], [span(1, 2)]) == Written(1, 0)
        assert await PostgresStore(frozen).offsets(CONSUMER, TOPIC) == {0: 2}


# Several hosts


async def test_a_host_that_swallows_packets_does_not_hide_the_ones_behind_it(
    postgres: Server, address: Forwarder, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(postgres_url)
    user = parts.netloc.rpartition("@")[0]
    hosts = f"127.0.0.1:{address.port},127.0.0.1:{postgres.port}"
    address.silence()
    monkeypatch.setattr(adapter, "CONNECT_TIMEOUT", 4.0)
    async with open_postgres(urlunsplit(parts._replace(netloc=f"{user}@{hosts}"))) as opened:
        assert await PostgresStore(opened).count(EVERYTHING) == 0
    address.speak()


async def test_where_no_host_is_fit_the_message_names_them_all_and_no_password(
    postgres: Server, postgres_url: str
) -> None:
    parts = urlsplit(postgres_url)
    netloc = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:1,127.0.0.1:{postgres.port}"
    error = await refusal(urlunsplit(parts._replace(netloc=netloc, query="target_session_attrs=standby")))
    assert f"127.0.0.1:1,127.0.0.1:{postgres.port}" in str(error)
    assert str(parts.password) not in str(error)
