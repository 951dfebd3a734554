"""A chaos run: real processes over real servers, faults from a schedule; then all is healed, drained and checked.

    python -m tests.chaos --engine sqlite --seed 7 --minutes 3

Two pollers compete for one stream, consumers share its topic, and the API keeps producing. Whatever happened stays in
the run's folder: `operations.jsonl` (what was done, tests/chaos/oplog.py), `made.jsonl` and `served.jsonl` (the truth),
and the output of every process.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import endurance, evidence, feed, servers, strike_between, strike_processes, strike_servers
from tests.chaos.fleet import Fleet, Member
from tests.chaos.oplog import OperationLog
from tests.chaos.scene import NoEffect, Scene
from tests.chaos.schedule import Engine, Fault, struck
from tests.chaos.servers import DISK, DISK_PER_MINUTE, PAGE, Servers
from tests.chaos.strike_processes import CONSUMERS
from tests.chaos.watch import ACKNOWLEDGED, INSERTED, Watch

GROW_EVERY = 0.05  # seconds
TRICKLE = 2  # versions each time
BURSTS, BURST = 0.02, 500  # share of the times at which several pages come at once; versions, at most
DRAIN = 60.0  # seconds from the last healing until nothing is left to do
OVERTIME = 240.0  # seconds more, to say how long it took
FIRST_ROWS = 60.0  # seconds until the first rows are there
RECOVERS = 180.0  # seconds until rows flow again in a run that goes fault by fault
LEAVES = 40.0  # seconds to end after SIGTERM
CALM = 300  # versions that are made at the end, undisturbed, and counted

STRIKES = {**strike_processes.STRIKES, **strike_between.STRIKES, **strike_servers.STRIKES}


@dataclass
class Result:
    """`complaints`: what is wrong; empty when nothing is."""

    folder: Path
    complaints: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Floor:
    """A run in which less happened says nothing, and fails."""

    records: int
    faults: int
    kills: int
    recoveries: int


async def run(
    folder: Path,
    engine: Engine,
    seed: int,
    faults: Sequence[Fault],
    floor: Floor,
    *,
    one_by_one: bool = False,
    drain: float = DRAIN,
) -> Result:
    """`one_by_one`: each fault begins when the store has recovered from the one before; else when its time has come.
    `drain`: seconds from the last healing until everything is recovered, and then until all is drained."""
    result = Result(folder)
    log = OperationLog(folder / "operations.jsonl")
    log.write("begins", engine=engine, seed=seed, one_by_one=one_by_one)
    for fault in faults:
        log.write("drawn", **fault._asdict())
    with ExitStack() as stack:
        stack.callback(log.close)
        minutes = max((fault.at for fault in faults), default=0.0) / 60
        fills = "file_full" in {fault.kind for fault in faults}
        disk = round(DISK + DISK_PER_MINUTE * minutes) if fills else None
        system = servers.start(folder, engine, seed, stack, disk=disk)
        await servers.prepare(system)
        chaos = _Chaos(folder, system, log, seed, result, drain)
        stack.callback(chaos.fleet.kill)
        await chaos.goes_through(faults, one_by_one=one_by_one)
        await chaos.is_checked(faults, floor)
        log.write("over", complaints=result.complaints, summary=result.summary)
        if result.complaints and system.disk is not None:
            evidence.copy_file(Path(system.place.database), folder / "ingest.db")
    return result


class _Chaos:
    def __init__(
        self, folder: Path, system: Servers, log: OperationLog, seed: int, result: Result, drain: float
    ) -> None:
        self._folder, self._system, self._log, self._seed, self._result = folder, system, log, seed, result
        self._drain = drain

        def member(name: str, verb: Sequence[str], role: str) -> Member:
            return Member(name, verb, folder, system.env[role], log, seed)

        self.fleet = Fleet(member, pollers=2, consumers=CONSUMERS if system.kafka else 2)
        self._watch = Watch(system.place, self.fleet)
        self._scene = Scene(system, self.fleet, log, self._watch.active)
        self._locks = {target: asyncio.Lock() for target in _TARGETS}
        self._growing = True
        self._active = 0  # faults in force
        self._quiet_since = 0.0  # time.monotonic() when the last of them was healed
        self._recoveries: list[asyncio.Task[None]] = []
        self._recovered: list[float] = []  # seconds with nothing wrong any more until rows flowed
        self._began = time.monotonic()

    async def goes_through(self, faults: Sequence[Fault], *, one_by_one: bool) -> None:
        """All faults, until everything is drained, the calm burst is counted, and every process has left."""
        async with AsyncExitStack() as stack:
            growing = await stack.enter_async_context(_beside(self._grow()))
            watching = await stack.enter_async_context(_beside(self._watch.go_on()))
            self.fleet.start()
            await self._until(self._rows_flow, FIRST_ROWS, "the first rows")
            self._began = time.monotonic()
            if one_by_one:
                for fault in faults:
                    await self._inflict(fault)
                    await self._until(self._all_recovered, RECOVERS, f"rows flow again after {fault}")
            else:
                async with asyncio.TaskGroup() as group:
                    for fault in faults:
                        group.create_task(self._inflict_in_time(fault))
            self._log.write("all is healed")
            await self._until(self._all_recovered, self._drain, "every fault is recovered from")
            for recovery in self._recoveries:
                recovery.cancel()
            self._growing = False
            await growing
            await self._drains()
            await self._counts_right()
            watching.cancel()
            await self._leaves()

    # ---- what happens

    async def _grow(self) -> None:
        chance = random.Random(self._seed)
        while self._growing:
            self._system.feed.grow(TRICKLE + (chance.randrange(BURST) if chance.random() < BURSTS else 0))
            await asyncio.sleep(GROW_EVERY)

    async def _inflict_in_time(self, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, self._began + fault.at - time.monotonic()))
        await self._inflict(fault)

    async def _inflict(self, fault: Fault) -> None:
        async with AsyncExitStack() as stack:
            for target in struck(fault.target):
                await stack.enter_async_context(self._locks[target])
            self._active += 1
            self._log.write("begins to strike", n=fault.n, kind=fault.kind)
            try:
                async with STRIKES[fault.kind](self._scene, fault):
                    await asyncio.sleep(fault.seconds)
                self._log.write("healed", n=fault.n, kind=fault.kind)
            except NoEffect as exc:
                self._result.complaints.append(f"the fault {fault} had no effect: {exc}")
            finally:
                self._active -= 1
                self._quiet_since = time.monotonic()
            self._recoveries.append(asyncio.create_task(self._recover(fault)))
            if fault.target == "brokers":
                await strike_servers.whole(self._scene)

    async def _recover(self, fault: Fault) -> None:
        """Something that was made after the healing is in the store."""
        healed = time.time()
        while self._watch.fresh < healed * 1e6:  # noqa: ASYNC110 - other processes do it
            await asyncio.sleep(0.1)
        took = 0.0 if self._active else time.monotonic() - self._quiet_since
        self._recovered.append(took)
        self._log.write("recovered", n=fault.n, kind=fault.kind, seconds=round(time.time() - healed, 2), quiet=took)

    async def _rows_flow(self) -> bool:
        return self._watch.fresh > 0

    async def _all_recovered(self) -> bool:
        return all(recovery.done() for recovery in self._recoveries)

    # ---- the end

    async def _drains(self) -> None:
        """The cursor is at the head, the store at the end of the log, and Kafka knows."""
        began = time.monotonic()
        await self._until(self._is_drained, self._drain + OVERTIME, "everything is drained")
        took = time.monotonic() - began
        self._result.summary["drained after"] = round(took, 1)
        if took > self._drain:
            self._result.complaints.append(f"it took {took:.0f} s to drain after all was healed, {self._drain} may be")

    async def _is_drained(self) -> bool:
        watch = self._watch
        if await watch.head() < self._system.feed.head:
            return False
        ends = dict(enumerate(await evidence.ends(self._system.place)))
        if await watch.offsets() != ends:
            return False
        return self._system.kafka is None or await watch.group_offsets() == ends

    async def _counts_right(self) -> None:
        """Nothing disturbs what comes now: so all that is made is counted once, by whoever did it."""
        await self._until(self._all_answer, FIRST_ROWS, "every process shows its metrics")
        rows, log = await evidence.stored(self._system.place), sum(await evidence.ends(self._system.place))
        inserted, acknowledged = self._watch.total(INSERTED), self._watch.total(ACKNOWLEDGED)
        self._system.feed.grow(CALM)
        await self._until(self._is_drained, self._drain, "the calm burst is drained")
        await self._watch.scrape()
        new_rows = await evidence.stored(self._system.place) - rows
        new_log = sum(await evidence.ends(self._system.place)) - log
        told = (self._watch.total(INSERTED) - inserted, self._watch.total(ACKNOWLEDGED) - acknowledged)
        self._log.write("calm", rows=new_rows, log=new_log, inserted=told[0], acknowledged=told[1])
        if told != (new_rows, new_log):
            self._result.complaints.append(f"there are {new_rows} new rows and {new_log} records; told were {told}")

    async def _all_answer(self) -> bool:
        await self._watch.scrape()
        names = {member.process.name for member in self.fleet.members if member.up and member.process is not None}
        return names <= self._watch.counts.keys()

    async def _leaves(self) -> None:
        await self.fleet.release()
        last = [(member, member.process) for member in self.fleet.members if member.running]
        for member, _ in last:
            member.ask_to_stop()

        async def gone() -> bool:
            return not any(member.running for member, _ in last)

        await self._until(gone, LEAVES, "every process ends when asked to")
        for member, process in last:
            if process is not None:
                member.write_end(process)

    async def _until(self, ready: Any, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if await ready():
                    return
            except evidence.OUTAGES:
                pass
            if time.monotonic() > deadline:
                self._result.complaints.append(f"not within {seconds:.0f} s: {what}")
                return
            await asyncio.sleep(0.2)

    # ---- the verdict

    async def is_checked(self, faults: Sequence[Fault], floor: Floor) -> None:
        place = self._system.place
        history = await evidence.gather(place, self._folder / "served.jsonl")
        operations = self._log.read()
        outputs = {path.name: path.read_text(errors="replace") for path in sorted(self._folder.glob("*.out"))}
        pages = {f"metrics of {process}": page for process, page in self._watch.pages.items()}
        cursors = {"cursors": "\n".join(saved.cursor.decode() for saved in history.cursors)}
        checked = endurance.Run(
            history=history,
            made=feed.made(self._folder / "made.jsonl"),
            moved=await evidence.moved_offsets(place),
            committed=self._watch.committed,
            sizes=self._watch.sizes,
            outputs={**outputs, **pages, **cursors},
            secrets=(servers.TOKEN, servers.PASSWORD),
            inserted=self._watch.total(INSERTED),
            starts=sum(1 for line in operations if line["what"] == "started"),
            faults=len(faults),
            page=PAGE,
        )
        self._result.complaints += endurance.complaints(checked)
        self._result.complaints += endurance.operations_complaints(operations, faults)
        self._summarise(checked, operations, floor)

    def _summarise(self, checked: endurance.Run, operations: Sequence[dict[str, Any]], floor: Floor) -> None:
        ended = [line for line in operations if line["what"] == "ended"]
        struck_kinds = Counter(line["kind"] for line in operations if line["what"] == "struck")
        kills = sum(1 for line in ended if line["code"] == -signal.SIGKILL)
        sizes = [size for looks in self._watch.sizes.values() for size in looks]
        reached = Floor(len(checked.history.rows), sum(struck_kinds.values()), kills, len(self._recovered))
        for name in ("records", "faults", "kills", "recoveries"):
            if getattr(reached, name) < getattr(floor, name):
                self._result.complaints.append(
                    f"too little happened: {getattr(reached, name)} {name}, {getattr(floor, name)} are the least"
                )
        self._result.summary |= {
            "seed": self._seed,
            "minutes": round((time.monotonic() - self._began) / 60, 1),
            "faults": dict(sorted(struck_kinds.items())),
            "records": reached.records,
            "repeated in the log": checked.history.repeated(),
            "processes started": checked.starts,
            "kills": kills,
            "takeovers": len({saved.fence for saved in checked.history.cursors}),
            "rebalances": self._watch.rebalances,
            "recoveries": reached.recoveries,
            "slowest recovery": round(max(self._recovered, default=0.0), 1),
            "max RSS MB": round(max((size.memory for size in sizes), default=0) / 1e6),
            "max files": max((size.files for size in sizes), default=0),
            "offset samples": len(checked.committed),
        }


_TARGETS = ("pollers", "consumers", "api", "file", "net", "brokers", "postgres")


@asynccontextmanager
async def _beside(work: Any) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])

