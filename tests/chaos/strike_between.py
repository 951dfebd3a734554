"""Faults of what lies between: the API's answers, connections, and the SQLite file."""

import asyncio
import itertools
import os
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from tests.chaos.scene import NoEffect, Scene, Strikes
from tests.chaos.schedule import Fault
from tests.harness import faults as wrong
from tests.harness.listings import Answer
from tests.harness.proxy import Mode

BALLAST = bytes(1_000_000)
LOCK_LOOK = 0.05  # seconds between two tries to lock the file
WRONG_ANSWERS = "500:0.2,503:0.3,429:0.1,reset:0.2,truncated:0.1,empty:0.05"  # and how often


def _errors(scene: Scene, fault: Fault) -> AbstractAsyncContextManager[None]:
    return _misbehaving(scene, fault, wrong.by_chance(WRONG_ANSWERS, fault.n))


def _slow(scene: Scene, fault: Fault) -> AbstractAsyncContextManager[None]:
    return _misbehaving(scene, fault, itertools.repeat(wrong.slow(0.5 + fault.which * 2)))


def _gone(scene: Scene, fault: Fault) -> AbstractAsyncContextManager[None]:
    return _through(scene, fault, "poller-api", _mode(fault.detail))


def _delayed(scene: Scene, fault: Fault) -> AbstractAsyncContextManager[None]:
    return _through(scene, fault, fault.detail, "open", 0.02 + fault.which * 0.3)


def _broken(scene: Scene, fault: Fault) -> AbstractAsyncContextManager[None]:
    return _through(scene, fault, fault.detail, _mode(fault.kind.removeprefix("net_")))


@asynccontextmanager
async def _misbehaving(scene: Scene, fault: Fault, ways: Iterable[wrong.Fault]) -> AsyncIterator[None]:
    """Struck as soon as one request got something else than the truth."""
    told: list[Answer] = []

    def counted(way: wrong.Fault) -> wrong.Fault:
        def tell(answer: Answer) -> Answer:
            if (said := way(answer)) is not answer:
                told.append(said)
            return said

        return tell

    scene.servers.api.misbehave(counted(way) for way in ways)
    try:
        await scene.wait_until(lambda: bool(told), "a request is answered wrongly")
        scene.struck(fault)
        yield
    finally:
        scene.servers.api.misbehave(())
        scene.log.write("misbehaved", n=fault.n, answers=len(told))


@asynccontextmanager
async def _through(scene: Scene, fault: Fault, pair: str, mode: Mode, delay: float = 0.0) -> AsyncIterator[None]:
    proxies = scene.servers.proxies[pair]
    for proxy in proxies:
        proxy.set(mode, delay=delay)
    scene.struck(fault, pair=pair, mode=mode, delay=delay)
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.heal()


@asynccontextmanager
async def _file_lock(scene: Scene, fault: Fault) -> AsyncIterator[None]:
    """Someone else writes, and takes their time. Who holds the lock may be frozen by another fault: wait for them."""
    connection = sqlite3.connect(scene.servers.place.database, isolation_level=None, timeout=0.0)
    try:
        while not _begun(connection):  # noqa: ASYNC110 - a file is asked
            await asyncio.sleep(LOCK_LOOK)
        scene.struck(fault)
        yield
    finally:
        connection.close()


def _begun(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


@asynccontextmanager
async def _file_full(scene: Scene, fault: Fault) -> AsyncIterator[None]:
    """No byte of the file system is left."""
    assert scene.servers.disk is not None
    ballast = scene.servers.disk / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):  # it ends with ENOSPC
            while True:
                file.write(BALLAST)
        left = os.statvfs(scene.servers.disk)
        if left.f_bavail > 0:
            raise NoEffect(f"the file system is not full: {left.f_bavail} blocks are free")
        scene.struck(fault)
        yield
    finally:
        ballast.unlink()


def _mode(text: str) -> Mode:
    modes: dict[str, Mode] = {"cut": "cut", "silent": "silent", "deaf": "deaf"}
    return modes[text]


STRIKES: Strikes = {
    "api_errors": _errors,
    "api_slow": _slow,
    "api_gone": _gone,
    "net_delay": _delayed,
    "net_cut": _broken,
    "net_silent": _broken,
    "net_deaf": _broken,
    "file_lock": _file_lock,
    "file_full": _file_full,
}
