"""Faults of pollers and consumers: killed, asked to stop, frozen, doomed at a failpoint, scaled."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tests.chaos.fleet import Member
from tests.chaos.scene import NoEffect, Scene, Strike, Strikes
from tests.chaos.schedule import Fault

CONSUMERS = 3  # where nothing is scaled


async def _victim(scene: Scene, fault: Fault, role: str) -> Member:
    """For pollers mostly the one that works: the other one only waits for its lease."""
    members = scene.fleet.pollers if role == "poller" else [c for c in scene.fleet.consumers if c.up]
    if role == "poller" and fault.which < 0.7 and (active := await scene.active()) is not None:
        return active
    return members[int(fault.which * len(members))]


@asynccontextmanager
async def _gone(scene: Scene, fault: Fault, role: str) -> AsyncIterator[None]:
    """Killed, or asked to stop; and not started again before the fault is over."""
    member = await _victim(scene, fault, role)
    await scene.wait_until(lambda: member.running, "it runs")
    process = member.process
    assert process is not None
    member.up = False
    try:
        if fault.kind.endswith("kill"):
            process.send(signal.SIGKILL)
        else:
            member.ask_to_stop()
        await scene.wait_until(lambda: process.exitcode is not None, f"{process.name} ends")
        scene.struck(fault, process=process.name, code=process.exitcode)
        yield
    finally:
        member.up = True


@asynccontextmanager
async def _frozen(scene: Scene, fault: Fault, role: str) -> AsyncIterator[None]:
    member = await _victim(scene, fault, role)
    await scene.wait_until(lambda: member.running, "it runs")
    process = member.process
    assert process is not None
    process.send(signal.SIGSTOP)
    try:
        await scene.wait_until(lambda: process.stands_still() or process.exitcode is not None, "it stands still")
        scene.struck(fault, process=process.name)
        yield
    finally:
        process.send(signal.SIGCONT)


@asynccontextmanager
async def _doomed(scene: Scene, fault: Fault, role: str) -> AsyncIterator[None]:
    """A process that strikes itself at a failpoint takes the place of one. Where one has all the work, the rivals
    are gone meanwhile: it would only stand by."""
    member = await _victim(scene, fault, role)
    alike = scene.fleet.pollers if role == "poller" else scene.fleet.consumers
    shared = role == "consumer" and scene.servers.kafka is not None
    rivals = [] if shared else [m for m in alike if m is not member]
    member.doom = tuple(fault.detail.split())
    for rival in rivals:
        rival.up = False
    try:
        for one in (member, *rivals):
            one.ask_to_stop()
        try:
            await scene.wait_until(lambda: _has_struck(member), f"{member.name} reaches {fault.detail}")
        except NoEffect:
            if not shared:
                raise
            await scene.wait_until(lambda: member.running, "it runs")  # without work for it: it dies where it stands
            assert member.process is not None
            member.process.send(signal.SIGKILL)
        process = member.process
        assert process is not None
        scene.struck(fault, process=process.name, detail=fault.detail)
        member.doom = None
        for rival in rivals:
            rival.up = True
        yield
        process.send(signal.SIGCONT)  # where it is frozen: past its lease by now
        await asyncio.sleep(1.0)
        if member.process is process:
            member.ask_to_stop()  # what comes next is the real command
        await scene.wait_until(lambda: process.exitcode is not None, f"{process.name} ends")
    finally:
        member.doom = None
        for rival in rivals:
            rival.up = True


@asynccontextmanager
async def _everyone_kill(scene: Scene, fault: Fault) -> AsyncIterator[None]:
    members = [member for member in scene.fleet.members if member.running]
    ups = [member.up for member in scene.fleet.members]
    for member in scene.fleet.members:
        member.up = False
    try:
        for member in members:
            member.send(signal.SIGKILL)
        await scene.wait_until(lambda: not any(member.running for member in members), "all are dead")
        scene.struck(fault, processes=len(members))
        yield
    finally:
        for member, up in zip(scene.fleet.members, ups, strict=True):
            member.up = up


@asynccontextmanager
async def _scale_consumers(scene: Scene, fault: Fault) -> AsyncIterator[None]:
    count = int(fault.detail)
    scene.fleet.scale_consumers(count)
    scene.struck(fault, consumers=count)
    try:
        yield
    finally:
        scene.fleet.scale_consumers(CONSUMERS)


def _has_struck(member: Member) -> bool:
    """Its process is a doomed one, and was killed or stopped."""
    process = member.process
    if process is None or member.ops:
        return False
    return process.exitcode == -signal.SIGKILL or process.stands_still()


def _of(role: str, strike: Callable[[Scene, Fault, str], AbstractAsyncContextManager[None]]) -> Strike:
    return lambda scene, fault: strike(scene, fault, role)


STRIKES: Strikes = {
    "everyone_kill": _everyone_kill,
    "scale_consumers": _scale_consumers,
    **{
        f"{role}_{what}": _of(role, strike)
        for role in ("poller", "consumer")
        for what, strike in {
            "kill": _gone, "term": _gone, "freeze": _frozen, "zombie": _frozen, "failpoint": _doomed
        }.items()
    },
}  # fmt: skip
