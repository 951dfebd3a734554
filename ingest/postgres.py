"""A pool of Postgres connections, and what each SQLSTATE means for the caller.

No prepared statement and no session state outlives a transaction, so PgBouncer may stand in between (transaction mode).
All tables are in the schema `ingest` and named with it.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import asyncpg

from ingest.errors import BadRecord, ConfigError, IngestError, StoreUnavailable
from ingest.tls import HOST_MISMATCH, UnfitFile, tls_context

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[asyncpg.Record]

CONNECT_TIMEOUT = 10.0  # seconds
STATEMENT_TIMEOUT = 60.0  # seconds, by the client's clock
POOL_SIZE = 8

# PostgreSQL documentation, appendix A, "Error Codes"; the longest prefix that matches decides.
# connection, resources, shutdown, timeout, conflict, lock, internal, I/O
OUTAGE = ("08", "53", "57P", "57014", "40", "55P03", "XX", "58")
# data exception, limit exceeded, not null, check, type
BAD_ROW = ("22", "54", "23502", "23514", "42804")
# everything else (42 no such table, 28 authorisation, 25006 read only, 3D no such database …) is for a person


def translated(exc: BaseException) -> IngestError | None:
    """What a driver's error means, or None when it is none of the driver's. `raise … from exc` is the caller's."""
    if isinstance(exc, asyncpg.PostgresError):
        state = exc.sqlstate or ""
        text = f"{type(exc).__name__} ({state}): {exc}"
        if state.startswith(BAD_ROW):
            return BadRecord(text, stage="write", code=state)
        if state.startswith(OUTAGE):
            return StoreUnavailable(f"Postgres: {text}")
        hint = ": run `ingest migrate`" if state in ("42P01", "3F000", "42703") else ""
        return ConfigError(f"Postgres: {text}{hint}")
    if isinstance(exc, asyncpg.InterfaceError) and isinstance(exc, ValueError):  # an argument that has no wire form
        return BadRecord(f"{type(exc).__name__}: {exc}", stage="write", code="argument")
    if isinstance(exc, (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)):
        return StoreUnavailable(f"Postgres: {type(exc).__name__}: {exc}")
    return None


class Postgres:
    """Made by `open_postgres`."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        self._pool = pool

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Connection"]:
        """A connection inside one transaction; drivers' errors leave it as ours. READ COMMITTED."""
        try:
            async with self._pool.acquire(timeout=CONNECT_TIMEOUT) as connection:
                try:
                    async with connection.transaction():
                        yield connection
                except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                    connection.terminate()  # nobody knows what it was in the middle of: the pool makes a new one
                    raise
        except Exception as exc:
            meaning = translated(exc)
            if meaning is None:
                raise
            raise meaning from exc


async def _no_reset(_: object) -> None:
    """Nothing outlives a transaction, so there is nothing to reset: a round trip less per use."""


@asynccontextmanager
async def open_postgres(url: str, *, size: int = POOL_SIZE) -> AsyncIterator[Postgres]:
    """Raises StoreUnavailable or ConfigError when no connection can be made; the message names host and database."""
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or 5432}{parts.path}"
    try:
        _check_files(parse_qs(parts.query))
        pool = await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=size,
            timeout=CONNECT_TIMEOUT,
            command_timeout=STATEMENT_TIMEOUT,
            statement_cache_size=0,
            server_settings={"application_name": "ingest"},
            reset=_no_reset,
        )
    except Exception as exc:
        raise _no_connection(exc, where, "sslcert=" in parts.query) from exc
    try:
        yield Postgres(pool)
    finally:
        try:
            await asyncio.wait_for(pool.close(), CONNECT_TIMEOUT)
        except TimeoutError:
            pool.terminate()


def _check_files(query: Mapping[str, Sequence[str]]) -> None:
    """Whether the certificates fit that the URL names. Raises UnfitFile."""
    ca, cert, key = (query.get(name, [None])[0] for name in ("sslrootcert", "sslcert", "sslkey"))
    tls_context(ca, cert, key)


def _no_connection(exc: Exception, where: str, certified: bool) -> IngestError:
    """Why there is none, and what to change where it will not pass by itself. `certified`: we show a certificate."""
    doing = f"cannot connect to Postgres at {where}"
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
    if meaning is None or isinstance(meaning, BadRecord):
        return ConfigError(f"{doing}: {type(exc).__name__}")
    hint = ""
    if "no encryption" in str(exc):
        hint = "; it takes connections with TLS only: write sslmode=verify-full"
    elif certified and isinstance(exc, asyncpg.ConnectionDoesNotExistError | ConnectionError | ssl.SSLError):
        hint = "; does the server trust `sslcert`? Its log says why it hung up"
    return type(meaning)(f"{doing}: {exc}{hint}")
