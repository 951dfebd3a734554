"""Composition root: the only place that knows every adapter.

Each part is opened when it is first asked for, and all are closed in reverse order. A URL decides which adapter it is;
no other is imported, since a driver takes longer to import than a short run takes.
"""

import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import structlog

from checkpoints import Checkpoints, Leases, Rates, Tokens
from checkpoints.jobs import Jobs, Schedules
from checkpoints.jobs.desk import JobDesk
from checkpoints.jobs.incidents import Incidents
from consumers.store import EventStore
from ingest.config import addresses
from ingest.config.addresses import KafkaAddress, PostgresAddress, SqliteAddress
from ingest.config.credentials import credentials
from ingest.config.loader import Loaded
from ingest.errors import ConfigError
from ingest.eventlog import Admin, EventLog, Publisher, Reader
from ingest.imports import lightly
from ingest.redaction import Redactor
from migrations.runner import migrate, pending

if TYPE_CHECKING:
    from ingest.postgres import Postgres
    from ingest.sqlite import Database

log = structlog.get_logger()


def holder() -> str:
    """Who we are to leases: host, process and a part that no other process shares."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"


class App:
    """What a command needs, opened on demand. Raises ConfigError and StoreUnavailable where a part cannot be had."""

    def __init__(self, loaded: Loaded, redactor: Redactor) -> None:
        self.loaded, self.redactor = loaded, redactor
        self.config = loaded.config
        self.holder = holder()
        self._stack = AsyncExitStack()
        self._databases: dict[Path, Database] = {}
        self._postgres: dict[str, Postgres] = {}
        self._log: EventLog | None = None
        self._publisher: Publisher | None = None
        self._admin: Admin | None = None
        self._jobs: Jobs | None = None
        self._warned: set[str] = set()

    async def __aenter__(self) -> "App":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def replicated(self) -> bool:
        """The log has brokers that can be lost one by one."""
        return isinstance(addresses.log(self.config, self.redactor, self.loaded.where), KafkaAddress)

    async def log(self) -> EventLog:
        address = addresses.log(self.config, self.redactor, self.loaded.where)
        if isinstance(address, KafkaAddress):
            return self._kafka(address)
        with lightly():
            from checkpoints.sqlite import SqliteLeases
            from ingest.eventlog.sqlite import SqliteLog

        database = await self._sqlite(address)
        return SqliteLog(database, SqliteLeases(database), self.holder)

    def _kafka(self, address: KafkaAddress) -> EventLog:
        if self._log is None:
            with lightly():
                from ingest.eventlog.kafka import KafkaLog

            security = None if self.config.log is None else self.config.log.security
            if security is not None and security.exposed is not None:
                log.warning(security.exposed)
            where = self.loaded.within("log.security")
            self._log = KafkaLog(address.bootstrap, credentials(security, self.redactor, where))
        return self._log

    async def publisher(self) -> Publisher:
        if self._publisher is None:
            self._publisher = await self._stack.enter_async_context((await self.log()).publisher())
        return self._publisher

    async def admin(self) -> Admin:
        if self._admin is None:
            self._admin = await self._stack.enter_async_context((await self.log()).admin())
        return self._admin

    async def reader(self) -> Reader:
        return await self._stack.enter_async_context((await self.log()).reader())

    async def store(self) -> EventStore:
        address = addresses.store(self.config, self.redactor, self.loaded.where)
        self._warn("store", address)
        if isinstance(address, PostgresAddress):
            with lightly():
                from consumers.store.postgres import PostgresStore

            return PostgresStore(await self._pool(address))
        with lightly():
            from consumers.store.sqlite import SqliteStore

        return SqliteStore(await self._sqlite(address))

    async def state(self) -> tuple[Checkpoints, Leases]:
        address = addresses.state(self.config, self.redactor, self.loaded.where)
        self._warn("state", address)
        if isinstance(address, PostgresAddress):
            with lightly():
                from checkpoints.postgres import PostgresCheckpoints, PostgresLeases

            postgres = await self._pool(address)
            return PostgresCheckpoints(postgres), PostgresLeases(postgres)
        with lightly():
            from checkpoints.sqlite import SqliteCheckpoints, SqliteLeases

        database = await self._sqlite(address)
        return SqliteCheckpoints(database), SqliteLeases(database)

    async def tokens(self) -> tuple[Tokens, Leases]:
        """In the state store."""
        address = addresses.state(self.config, self.redactor, self.loaded.where)
        if isinstance(address, PostgresAddress):
            from checkpoints.postgres import PostgresLeases
            from checkpoints.postgres_tokens import PostgresTokens

            postgres = await self._pool(address)
            return PostgresTokens(postgres), PostgresLeases(postgres)
        from checkpoints.sqlite import SqliteLeases
        from checkpoints.sqlite_tokens import SqliteTokens

        database = await self._sqlite(address)
        return SqliteTokens(database), SqliteLeases(database)

    async def rates(self) -> Rates:
        address = addresses.state(self.config, self.redactor, self.loaded.where)
        if isinstance(address, PostgresAddress):
            from checkpoints.postgres_rates import PostgresRates

            return PostgresRates(await self._pool(address))
        from checkpoints.sqlite_rates import SqliteRates

        return SqliteRates(await self._sqlite(address))

    async def jobs(self) -> Jobs:
        """The queue, in the state store: one for the process, so that who enqueues wakes who waits."""
        if self._jobs is None:
            address = addresses.state(self.config, self.redactor, self.loaded.where)
            self._warn("state", address)
            if isinstance(address, PostgresAddress):
                self._jobs = await self._stack.enter_async_context(_postgres_jobs(await self._pool(address)))
            else:
                self._jobs = _sqlite_jobs(await self._sqlite(address))
        return self._jobs

    async def schedules(self) -> Schedules:
        """In the state store, beside the jobs that their ticks make."""
        address = addresses.state(self.config, self.redactor, self.loaded.where)
        if isinstance(address, PostgresAddress):
            with lightly():
                from checkpoints.jobs.postgres_schedules import PostgresSchedules

            return PostgresSchedules(await self._pool(address))
        with lightly():
            from checkpoints.jobs.sqlite_schedules import SqliteSchedules

        return SqliteSchedules(await self._sqlite(address))

    @asynccontextmanager
    async def jobs_apart(self) -> AsyncIterator[Jobs]:
        """The same queue by connections of its own, for a thread with an event loop of its own."""
        address = addresses.state(self.config, self.redactor, self.loaded.where)
        if isinstance(address, PostgresAddress):
            from ingest.postgres import open_postgres

            async with open_postgres(address.url, size=1) as postgres, _postgres_jobs(postgres) as jobs:
                yield jobs
        else:
            from ingest.sqlite import open_database

            async with open_database(address.path.absolute()) as database:
                yield _sqlite_jobs(database)

    async def desk(self) -> JobDesk:
        """Jobs as people see them; in the state store."""
        address = addresses.state(self.config, self.redactor, self.loaded.where)
        if isinstance(address, PostgresAddress):
            from checkpoints.jobs.postgres_desk import PostgresDesk

            return PostgresDesk(await self._pool(address))
        from checkpoints.jobs.sqlite_desk import SqliteDesk

        return SqliteDesk(await self._sqlite(address))

    async def incidents(self) -> Incidents:
        address = addresses.state(self.config, self.redactor, self.loaded.where)
        if isinstance(address, PostgresAddress):
            from checkpoints.jobs.postgres_incidents import PostgresIncidents

            return PostgresIncidents(await self._pool(address))
        from checkpoints.jobs.sqlite_incidents import SqliteIncidents

        return SqliteIncidents(await self._sqlite(address))

    def _warn(self, what: str, address: SqliteAddress | PostgresAddress) -> None:
        odd = addresses.alone_beside_kafka(
            addresses.log(self.config, self.redactor, self.loaded.where), what, address
        )
        if odd is not None and what not in self._warned:
            self._warned.add(what)
            log.warning(odd)

    async def _sqlite(self, address: SqliteAddress) -> "Database":
        """One Database per file; the embedded default migrates by itself."""
        with lightly():
            from ingest.sqlite import open_database

        path = address.path.absolute()
        if path not in self._databases:
            await migrate(f"sqlite:///{path}")
            self._databases[path] = await self._stack.enter_async_context(open_database(path))
        return self._databases[path]

    async def _pool(self, address: PostgresAddress) -> "Postgres":
        with lightly():
            from ingest.postgres import open_postgres

        if address.url not in self._postgres:
            missing = await pending(address.url)
            if missing:
                raise ConfigError(f"{address} is not migrated ({', '.join(missing)}): run `ingest migrate`")
            self._postgres[address.url] = await self._stack.enter_async_context(open_postgres(address.url))
        return self._postgres[address.url]


def _postgres_jobs(postgres: "Postgres") -> AbstractAsyncContextManager[Jobs]:
    with lightly():
        from checkpoints.jobs.postgres import open_jobs

    return open_jobs(postgres)


def _sqlite_jobs(database: "Database") -> Jobs:
    with lightly():
        from checkpoints.jobs.sqlite import SqliteJobs

    return SqliteJobs(database)
