"""The queue in the SQLite file, the worker's side. The port is in `checkpoints.jobs`.

Every change is one IMMEDIATE transaction, in which nobody else changes anything: caps, fences and dedupe are looked at
and then written. The clock is read once in it. Who finds nothing to claim only reads: that locks and wakes nobody.
"""

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress

from checkpoints.jobs import Beat, Cap, Ended, Enqueued, Exchanged, Held, NewJob, Rescued, Want, Worker
from checkpoints.jobs.sqlite_claim import claim, ripe
from checkpoints.jobs.sqlite_due import due
from checkpoints.jobs.sqlite_enqueue import enqueue
from checkpoints.jobs.sqlite_finish import finish
from checkpoints.jobs.sqlite_rescue import look, rescue
from checkpoints.jobs.sqlite_rows import array, millis, moment, shown_as
from ingest.sqlite import Database

BY_AGE_EVERY = 8  # claims
LOOK_FIRST, LOOK_LAST, SLOWER = 0.050, 0.200, 1.25  # seconds between two looks at the file's version, and how they grow
LEFT = 0  # lease_until of a claim whose worker has stopped


class SqliteJobs:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._claims = itertools.count(1)
        self._rung = asyncio.Event()
        self._version: int | None = None  # of the file, before the last look for what is due

    async def enqueue(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
        found = await self._database.write(lambda connection: enqueue(connection, jobs)) if jobs else []
        self._rung.set()
        return found

    async def exchange(self, worker: str, ended: Sequence[Ended], want: Want | None) -> Exchanged:
        if want is not None and want.number <= 0:
            want = None
        if not ended and (want is None or not await self._database.read(lambda connection: _any(connection, want))):
            return Exchanged((), (), ())
        by_age = want is not None and next(self._claims) % BY_AGE_EVERY == 0

        def both(connection: sqlite3.Connection) -> Exchanged:
            now = moment(connection)
            lost, died = finish(connection, worker, ended, now) if ended else ((), ())
            if want is None:
                return Exchanged(lost, died, ())
            self._database.presence.show(shown_as(worker))  # before a row names the worker
            return Exchanged(lost, died, claim(connection, worker, want, now, by_age=by_age))

        return await self._database.write(both)

    async def beat(self, worker: Worker, held: Sequence[Held], ttl: float, *, stopping: bool = False) -> Sequence[Beat]:
        def beat(connection: sqlite3.Connection) -> list[Beat]:
            self._database.presence.show(shown_as(worker.name))
            return _beat(connection, worker, held, ttl, stopping)

        return await self._database.write(beat)

    async def leave(self, worker: str) -> None:
        await self._database.write(lambda connection: _leave(connection, worker))

    async def rescue(self, grace: float) -> Sequence[Rescued]:
        presence = self._database.presence
        if not await self._database.read(lambda connection: look(connection, presence, grace)):
            return []
        return await self._database.write(lambda connection: rescue(connection, presence, grace))

    async def limit(self, sources: Sequence[Cap], queues: Sequence[Cap]) -> None:
        if await self._database.read(lambda connection: _limited(connection, sources, queues)):
            await self._database.write(lambda connection: _limit(connection, sources, queues))

    async def hold(self, source: str, seconds: float, reason: str) -> None:
        await self._database.write(lambda connection: _hold(connection, source, seconds, reason))

    async def due(self, want: Want) -> float | None:
        self._version = await self._database.version()  # before the look: what comes after it changes it again
        return await self._database.read(lambda connection: due(connection, want))

    async def wait(self, seconds: float) -> None:
        deadline, pause = time.monotonic() + seconds, LOOK_FIRST
        if self._version is None:
            self._version = await self._database.version()
        while not self._rung.is_set() and (left := deadline - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, left)):
                    await self._rung.wait()
            if await self._database.version() != self._version:
                break
            pause = min(pause * SLOWER, LOOK_LAST)
        self._rung.clear()
        self._version = None


def _any(connection: sqlite3.Connection, want: Want) -> bool:
    return bool(ripe(connection, want, moment(connection)))


def _beat(
    connection: sqlite3.Connection, worker: Worker, held: Sequence[Held], ttl: float, stopping: bool
) -> list[Beat]:
    now = moment(connection)
    beats = []
    for one in held:
        row = connection.execute(
            """UPDATE jobs SET lease_until = ?, progress = coalesce(?, progress)
               WHERE id = ? AND fence = ? AND state = 'running' AND lease_until > ? RETURNING id, cancel_requested""",
            (now + millis(ttl), None if one.progress is None else one.progress.decode(), one.id, one.fence, now),
        ).fetchall()
        beats += [Beat(id, bool(cancel)) for id, cancel in row]
    connection.execute(
        """INSERT INTO workers AS w (name, host, pid, version, slots, kinds, sources, running, stopping, lost,
               started_at, beat_at)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, running = excluded.running,
               stopping = excluded.stopping, lost = w.lost + excluded.lost, beat_at = excluded.beat_at""",
        (
            worker.name, worker.host, worker.pid, worker.version, worker.slots, array(worker.kinds),
            array(worker.sources), len(beats), stopping, len(held) - len(beats), now, now,
        ),
    )  # fmt: skip
    return beats


def _leave(connection: sqlite3.Connection, worker: str) -> None:
    connection.execute("DELETE FROM workers WHERE name = ?", (worker,))
    connection.execute("UPDATE jobs SET lease_until = ? WHERE state = 'running' AND worker = ?", (LEFT, worker))


def _limited(connection: sqlite3.Connection, sources: Sequence[Cap], queues: Sequence[Cap]) -> bool:
    """Whether anything would change."""
    for table, caps in (("sources", sources), ("queues", queues)):
        found = dict(connection.execute(f"SELECT name, max_running FROM {table}").fetchall())
        if any(name not in found or found[name] != limit for name, limit in caps):
            return True
    return False


def _limit(connection: sqlite3.Connection, sources: Sequence[Cap], queues: Sequence[Cap]) -> None:
    for table, caps in (("sources", sources), ("queues", queues)):
        connection.executemany(
            f"""INSERT INTO {table} (name, max_running) VALUES (?, ?)
                ON CONFLICT (name) DO UPDATE SET max_running = excluded.max_running""",
            caps,
        )


def _hold(connection: sqlite3.Connection, source: str, seconds: float, reason: str) -> None:
    connection.execute(
        """INSERT INTO sources AS s (name, paused_until, pause_note) VALUES (?, ?, ?)
           ON CONFLICT (name) DO UPDATE SET paused_until = excluded.paused_until, pause_note = excluded.pause_note
               WHERE s.paused_until IS NULL OR s.paused_until < excluded.paused_until""",
        (source, moment(connection) + millis(seconds), reason),
    )
