"""The real commands, with one difference: the process is signalled at a chosen instant.

    python -m tests.chaos.victim run POINT N SIGNAL [--lease-ttl S] [--claim-ttl S] [--forever]
    python -m tests.chaos.victim consume POINT N SIGNAL [--forever] [--session S]

What is configured, opened and run is what `ingest run` and `ingest consume warehouse` would, with `--once` or without;
the adapters are wrapped (tests/chaos/fate.py). Prints what `--json` prints, and ends with the same exit codes.
"""

import argparse
import asyncio
import dataclasses
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from checkpoints import Checkpoints, Leases
from checkpoints.keeping import LEASE_TTL
from checkpoints.postgres import PostgresCheckpoints
from checkpoints.sqlite import SqliteCheckpoints
from consumers.run import Runner as ConsumerRunner
from consumers.store import EventStore
from consumers.store.postgres import PostgresStore
from consumers.store.sqlite import SqliteStore
from ingest import topics
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import REDACTOR, loaded
from ingest.cli.run import names, open_streams, select
from ingest.config import addresses
from ingest.config.addresses import KafkaAddress, PostgresAddress
from ingest.config.loader import Loaded
from ingest.eventlog import EventLog
from ingest.eventlog.kafka import KafkaLog
from ingest.eventlog.kafka.watchdog import Times
from ingest.eventlog.place import located
from ingest.report import exit_code
from ingest.run import Runner
from ingest.signals import stopping
from tests.chaos.fate import (
    DoomedCheckpoints,
    DoomedDatabase,
    DoomedLog,
    DoomedPostgres,
    DoomedSource,
    DoomedStore,
    Fate,
)

CONSUMER = "warehouse"


def quick(session: float) -> Times:
    """Of a group whose members are missed after `session` seconds, and wait for a write no longer than half of it."""
    return Times(session=session, heartbeat=session / 10, revoke_wait=session / 2, look_every=session)


class DoomedApp(App):
    """The application whose every part may be the last that its process uses."""

    def __init__(self, loaded: Loaded, fate: Fate, claim_ttl: float | None, session: float | None) -> None:
        super().__init__(loaded, REDACTOR)
        self._fate, self._claim_ttl, self._session = fate, claim_ttl, session

    async def log(self) -> EventLog:
        log = await super().log()
        if self._session is not None:
            address = addresses.log(self.config, self.redactor, self.loaded.where)
            assert isinstance(address, KafkaAddress)
            log = KafkaLog(address.bootstrap, times=quick(self._session))
        return DoomedLog(log, self._fate)

    async def store(self) -> EventStore:
        address = addresses.store(self.config, self.redactor, self.loaded.where)
        if isinstance(address, PostgresAddress):
            return DoomedStore(PostgresStore(DoomedPostgres(await self._pool(address), self._fate)), self._fate)
        return DoomedStore(SqliteStore(DoomedDatabase(await self._sqlite(address), self._fate)), self._fate)

    async def state(self) -> tuple[Checkpoints, Leases]:
        _, leases = await super().state()
        address = addresses.state(self.config, self.redactor, self.loaded.where)
        checkpoints: Checkpoints
        if isinstance(address, PostgresAddress):
            checkpoints = PostgresCheckpoints(DoomedPostgres(await self._pool(address), self._fate))
        else:
            checkpoints = SqliteCheckpoints(DoomedDatabase(await self._sqlite(address), self._fate))
        return DoomedCheckpoints(checkpoints, self._fate, self._claim_ttl), leases


async def run(app: App, fate: Fate, lease_ttl: float, *, once: bool) -> int:
    """`ingest run [--once] --json`."""
    async with AsyncExitStack() as stack:
        streams = [
            dataclasses.replace(stream, source=DoomedSource(stream.source, fate))
            for stream in await open_streams(app, select(app, [], []), stack)
        ]
        stop = (await stack.enter_async_context(stopping())).stop
        admin = await app.admin()
        await topics.ensure(admin, names(streams), app.config.topics, replicated=app.replicated)
        checkpoints, leases = await app.state()
        locate = partial(located, admin)
        runner = Runner(await app.publisher(), checkpoints, leases, app.holder, locate, lease_ttl=lease_ttl)
        reports = await (runner.once(streams, stop) if once else runner.forever(streams, stop))
    show.reports(reports, as_json=True, scrub=REDACTOR.scrub)
    return exit_code(reports) if once else 0


async def consume(app: App, *, once: bool) -> int:
    """`ingest consume warehouse [--once] --json`."""
    consumer = app.config.consumers[CONSUMER]
    async with stopping() as stopped:
        admin = await app.admin()

        async def prepare(found: Sequence[str]) -> None:
            await topics.ensure(admin, found, app.config.topics, replicated=app.replicated)

        runner = ConsumerRunner(
            name=CONSUMER, batch=consumer.batch, log=await app.log(), admin=admin, store=await app.store(),
            publisher=await app.publisher(), prepare=prepare,
        )  # fmt: skip
        work = runner.once if once else runner.forever
        tallies = await work(consumer.topics, stopped.stop)
    show.tallies(tallies, as_json=True)
    return 1 if once and stopped.stop.is_set() else 0


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.victim")
    parser.add_argument("command", choices=["run", "consume"])
    parser.add_argument("point")
    parser.add_argument("nth", type=int)
    parser.add_argument("signal", type=signal.Signals.__getitem__)
    parser.add_argument("--lease-ttl", type=float, default=LEASE_TTL)
    parser.add_argument("--claim-ttl", type=float, default=None)
    parser.add_argument("--session", type=float, default=None)
    parser.add_argument("--forever", action="store_true")
    arguments = parser.parse_args()
    fate = Fate(arguments.point, arguments.nth, arguments.signal)
    async with DoomedApp(loaded(None), fate, arguments.claim_ttl, arguments.session) as app:
        if arguments.command == "run":
            return await run(app, fate, arguments.lease_ttl, once=not arguments.forever)
        return await consume(app, once=not arguments.forever)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
