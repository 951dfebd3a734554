"""A pool of Postgres connections, and what each SQLSTATE means for the caller.

No prepared statement and no session state outlives a transaction, so PgBouncer may stand in between (transaction mode).
All tables are in the schema `ingest` and named with it.

A connection that failed is never asked again, not even to roll back: the server does that when its client is gone. The
ones that stood beside it are given up too, so that after a restart or a failover of the server each call fails at most
once for it. Every statement has a deadline on both sides: ours, should the server be silent; the server's own, should
we be, so that a frozen process does not keep its rows locked.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import asyncpg

from ingest.config.urls import PostgresAddress
from ingest.errors import BadRecord, ConfigError, IngestError, StoreUnavailable
from ingest.tls import HOST_MISMATCH, UnfitFile, tls_context

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[asyncpg.Record]
    Connect = Callable[[], Awaitable[asyncpg.Connection[asyncpg.Record]]]

CONNECT_TIMEOUT = 10.0  # seconds, shared by the hosts of the URL
STATEMENT_TIMEOUT = 60.0  # seconds, by the client's clock and by the server's
ROLLBACK_TIMEOUT = 5.0  # seconds
POOL_SIZE = 8

# PostgreSQL documentation, appendix A, "Error Codes"; the longest prefix that matches decides.
# What a server says while it restarts, fails over, is full or overloaded, or while others hold what we want:
# 08 connection, 25006 read only (a standby, or a primary that steps down), 25P03 and 25P04 a session that was cut off
# for being idle or slow, 40 conflict, 53 resources, 55 not in the state for it, 57 shutdown, start, timeout,
# 58 system, XX internal.
OUTAGE = ("08", "25006", "25P03", "25P04", "40", "53", "55", "57", "58", "XX")
# data exception, limit exceeded, not null, check, type
BAD_ROW = ("22", "54", "23502", "23514", "42804")
# everything else (42 no such table, 28 authorisation, 3D no such database …) is for a person
CUT_OFF = ("08", "25006", "25P03", "25P04", "57P")
"""After these the connection is of no use, even where it is open still: another one may reach another server."""
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
HINTS = {
    "25006": "the server is a standby or is being failed over; name all servers in the URL, with"
    " `?target_session_attrs=read-write`, where the address does not follow the primary",
    "42P01": "run `ingest migrate`",
    "3F000": "run `ingest migrate`",
    "42703": "run `ingest migrate`",
}


def translated(exc: BaseException) -> IngestError | None:
    """What a driver's error means, or None when it is none of the driver's. `raise … from exc` is the caller's."""
    if isinstance(exc, asyncpg.PostgresError):
        state = exc.sqlstate or ""
        text = f"{type(exc).__name__} ({state}): {exc}"
        if state.startswith(BAD_ROW):
            return BadRecord(text, stage="write", code=state)
        kind = StoreUnavailable if state.startswith(OUTAGE) else ConfigError
        return kind(f"Postgres: {text}{': ' if state in HINTS else ''}{HINTS.get(state, '')}")
    if isinstance(exc, asyncpg.InterfaceError) and isinstance(exc, ValueError):  # an argument that has no wire form
        return BadRecord(f"{type(exc).__name__}: {exc}", stage="write", code="argument")
    if isinstance(exc, (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)):
        return StoreUnavailable(f"Postgres: {type(exc).__name__}: {str(exc) or 'no answer in time'}")
    return None


def _is_cut_off(exc: BaseException) -> bool:
    """Whether the connection must not be used again: nobody knows what it is in the middle of."""
    if isinstance(exc, asyncpg.PostgresError):
        return (exc.sqlstate or "").startswith(CUT_OFF)
    if isinstance(exc, asyncpg.InterfaceError) and isinstance(exc, ValueError):
        return False
    return isinstance(exc, (*_FAILURES, asyncio.CancelledError))


class Postgres:
    """Made by `open_postgres`."""

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        statement_timeout: float = STATEMENT_TIMEOUT,
        connect: "Connect | None" = None,
    ) -> None:
        self._pool = pool
        self._connect = connect
        limit = f"{statement_timeout:.0f}s"
        # Limits that an administrator has set stay. Compiling a statement (jit) takes longer than any of ours runs, and
        # tables without statistics look as if it were worth it. One message, so one round trip.
        limits = "ISOLATION LEVEL READ COMMITTED" + "".join(
            f"; SELECT set_config('{name}', '{limit}', true) WHERE current_setting('{name}') = '0'"
            for name in ("statement_timeout", "idle_in_transaction_session_timeout")
        )
        limits += "; SET LOCAL jit = off"
        self._begin, self._only = f"BEGIN {limits}", f"SET TRANSACTION {limits}"

    @asynccontextmanager
    async def transaction(self, first: str = "") -> AsyncIterator["Connection"]:
        """A connection inside one transaction; drivers' errors leave it as ours. READ COMMITTED.

        `first`: statements that go out with BEGIN, without a round trip of their own; as in `write_at_once` their
        values are part of them. When StoreUnavailable comes out, the transaction may have been committed or not."""
        async with self._in_use() as connection:
            try:
                await connection.execute(f"{self._begin}; {first}" if first else self._begin)
                yield connection
            except BaseException as exc:
                if not _is_cut_off(exc):
                    await _roll_back(connection)
                raise
            await connection.execute("COMMIT")

    async def write_at_once(self, statement: str) -> int:
        """Run a statement that is a whole transaction, like those of `transaction`, in one round trip. Its values are
        part of it (`literal`): several statements in one message have no parameters, and a message of its own for
        the parameters would not find its statement behind PgBouncer. Returns how many rows it wrote."""
        async with self._in_use() as connection:
            # Statements in one message are one transaction (PostgreSQL documentation, "Multiple Statements in a Simple
            # Query"); the status is that of the last one.
            return int((await connection.execute(f"{self._only}; {statement}")).rpartition(" ")[2])

    @asynccontextmanager
    async def session(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        """A connection of its own, for what outlives a transaction: LISTEN. Behind PgBouncer it is nobody's, and what
        it was told in one transaction another server session knows nothing of: who uses it finds that out.

        Drivers' errors leave it as ours."""
        assert self._connect is not None
        connection = None
        try:
            connection = await self._connect()
            yield connection
        except Exception as exc:
            meaning = translated(exc)
            if meaning is None:
                raise
            raise meaning from exc
        finally:
            if connection is not None:
                connection.terminate()

    @asynccontextmanager
    async def _in_use(self) -> AsyncIterator["Connection"]:
        """A connection that is given up when it fails; drivers' errors leave it as ours."""
        async with self._acquired() as connection:
            try:
                yield connection
            except BaseException as exc:
                if _is_cut_off(exc):
                    _drop(connection)
                    if not isinstance(exc, asyncio.CancelledError):
                        await self._pool.expire_connections()
                meaning = translated(exc)
                if meaning is None:
                    raise
                raise meaning from exc

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator["Connection"]:
        """Raises StoreUnavailable or ConfigError when there is no connection to be had."""
        try:
            connection = await self._pool.acquire(timeout=CONNECT_TIMEOUT)
        except Exception as exc:
            meaning = translated(exc)
            if meaning is None:
                raise
            raise _of_connecting(meaning) from exc
        try:
            yield connection
        finally:
            with suppress(*_FAILURES):  # what was committed is committed; a connection that cannot be closed is dropped
                await self._pool.release(connection)


def literal(value: str | int | None) -> str:
    """A value as a part of a statement. An escape string means the same whatever standard_conforming_strings says.

    Raises BadRecord for a text that Postgres has no form for."""
    if value is None:
        return "NULL"
    if isinstance(value, int):  # true and false are keywords, of any case
        return str(value)
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise BadRecord(f"a text that is not UTF-8: {exc}", stage="write", code="argument") from exc
    if "\0" in value:
        raise BadRecord("a text with a NUL character", stage="write", code="argument")
    return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


async def _roll_back(connection: "Connection") -> None:
    try:
        await connection.execute("ROLLBACK", timeout=ROLLBACK_TIMEOUT)
    except _FAILURES:
        _drop(connection)


def _drop(connection: "Connection") -> None:
    """The server rolls back when its client is gone."""
    with suppress(asyncpg.InterfaceError):  # it is gone already
        connection.terminate()


def _of_connecting(meaning: IngestError) -> IngestError:
    """No row is to blame while there is no connection: a setting in the URL is."""
    return ConfigError(str(meaning)) if isinstance(meaning, BadRecord) else meaning


async def _no_reset(_: object) -> None:
    """Nothing outlives a transaction, so there is nothing to reset: a round trip less per use."""


class _Hosts:
    """Connects to the first host of a URL that is fit, beginning with the one that was so last.

    Each host has its share of the time: one that swallows packets must not use up that of those behind it.
    """

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls

    async def connect(self, *_: Any, **settings: Any) -> "asyncpg.Connection[asyncpg.Record]":
        failure: BaseException | None = None
        for url in [*self._urls]:
            try:
                return await asyncpg.connect(url, **settings, timeout=CONNECT_TIMEOUT / len(self._urls))
            except _FAILURES as exc:
                if isinstance(translated(exc), ConfigError):  # as libpq: another host would not mend that
                    raise
                failure = exc
                self._urls.remove(url)
                self._urls.append(url)
        assert failure is not None
        raise failure


@asynccontextmanager
async def open_postgres(
    url: str, *, size: int = POOL_SIZE, statement_timeout: float = STATEMENT_TIMEOUT
) -> AsyncIterator[Postgres]:
    """Raises StoreUnavailable or ConfigError when no connection can be made; the message names host and database."""
    address = PostgresAddress(url)
    query = parse_qs(urlsplit(url).query)
    hosts = _Hosts(address.hosts())
    settings: dict[str, Any] = {
        "command_timeout": statement_timeout,
        "statement_cache_size": 0,
        "server_settings": {"application_name": "ingest"},
    }
    pool = asyncpg.create_pool(
        url,
        # A pool that keeps some open makes them anew in the background, with a traceback for every failure.
        min_size=0,
        max_size=size,
        reset=_no_reset,
        connect=hosts.connect,
        **settings,
    )
    try:
        await pool
        _check_files(query)
        async with pool.acquire(timeout=CONNECT_TIMEOUT):
            pass
    except Exception as exc:
        pool.terminate()
        raise _no_connection(exc, address, "sslcert" in query) from exc
    try:
        yield Postgres(pool, statement_timeout, partial(hosts.connect, **settings))
    finally:
        try:
            await asyncio.wait_for(pool.close(), CONNECT_TIMEOUT)
        except TimeoutError:
            pool.terminate()


def _check_files(query: Mapping[str, Sequence[str]]) -> None:
    """Whether the certificates fit that the URL names. Raises UnfitFile."""
    ca, cert, key = (query.get(name, [None])[0] for name in ("sslrootcert", "sslcert", "sslkey"))
    if ca or cert or key:
        tls_context(ca, cert, key)


def _no_connection(exc: Exception, address: PostgresAddress, certified: bool) -> IngestError:
    """Why there is none, and what to change where it will not pass by itself. `certified`: we show a certificate."""
    doing = f"cannot connect to Postgres at {address}"
    if isinstance(exc, UnfitFile):
        name = {"ca": "sslrootcert", "cert": "sslcert", "key": "sslkey"}[exc.key]
        return ConfigError(f"{doing}: {name}: {exc}")
    if isinstance(exc, ssl.SSLCertVerificationError):
        what = f"the server's certificate is not accepted: {exc.verify_message}"
        hint = "`sslrootcert` must name the file with the certificate of who signed it"
        if exc.verify_code in HOST_MISMATCH:
            hint = "write the host name that it holds, or sslmode=verify-ca to take any"
        return ConfigError(f"{doing}: {what}; {hint}")
    if isinstance(exc, ConnectionError) and "rejected SSL upgrade" in str(exc):
        return ConfigError(f"{doing}: the server speaks no TLS; sslmode=disable does without")
    if isinstance(exc, asyncpg.ClientConfigurationError):
        return ConfigError(f"{doing}: {exc}")
    meaning = translated(exc)
    if meaning is None:
        return ConfigError(f"{doing}: {type(exc).__name__}")
    hint = ""
    if "no encryption" in str(exc):
        hint = "; it takes connections with TLS only: write sslmode=verify-full"
    elif certified and isinstance(exc, asyncpg.ConnectionDoesNotExistError | ConnectionError | ssl.SSLError):
        hint = "; does the server trust `sslcert`? Its log says why it hung up"
    return type(_of_connecting(meaning))(f"{doing}: {exc}{hint}")
