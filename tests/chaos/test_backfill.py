"""Slices of a range that workers share, one of whom is killed in the middle, beside a poller that goes on."""

import json
import signal
from collections import Counter
from typing import Any

from checkpoints.jobs import State
from tests.chaos.pipeline import Pipeline
from tests.chaos.processes import HURRY, Process, until
from tests.contract.working import Queue, open_queue
from tests.harness.listings import Request
from tests.harness.processes import tail

HOURS, PAGE = 6, 20
OLD = [
    {"id": n, "updated_at": f"2024-01-01T{n // 60:02}:{n % 60:02}:00Z", "account": f"a{n % 7}"}
    for n in range(HOURS * 60)
]
SLICES = ("backfill", "--from", "2024-01-01", "--to", "2024-01-01T06:00:00Z", "--slices", "6")
NTH = 2  # the request of the first worker, behind a first page, before whose answer it is killed: in two slices


def new(n: int) -> dict[str, Any]:
    return {"id": f"new-{n}", "updated_at": f"2024-06-01T00:{n:02}:00Z", "account": "a"}


class Scene:
    """The pipeline's source, polled from June on; `who` asks is in a header."""

    def __init__(self, pipeline: Pipeline, queue: Queue) -> None:
        self.pipeline, self.queue = pipeline, queue
        self.source = pipeline.place.source
        self.listing = pipeline.api.serve("events", [*OLD, new(0)], page_size=PAGE)
        file = pipeline.folder / "ingest.yaml"
        text = file.read_text().replace("{param: since}", "{param: since, first: '2024-06-01'}")
        text = text.replace("    streams:", '    headers: {X-Who: "${env:WHO}"}\n    streams:', 1)
        text = text.replace("        path: /events", "        path: /events\n        every: 50ms")
        file.write_text(text + "\njobs: {slots: 2}\n")

    def start(self, who: str, *command: str) -> Process:
        env = {**self.pipeline.env, "WHO": who, HURRY: "1"}
        process = Process(who, ("ingest", *command), self.pipeline.folder, env)
        self.pipeline.processes.append(process)
        return process

    async def said(self, who: str, *command: str) -> Any:
        process = self.start(who, *command, "--source", self.source, "--stream", "events", "--json")
        assert await process.ended() == 0, tail(process.output)
        text = process.output.read_text()
        return json.loads(text[text.index("[\n") if command[0] == "run" else 0 :])

    def asked(self, who: str) -> list[Request]:
        return [one for one in self.pipeline.api.requests if one.headers.get("x-who") == who]

    async def jobs(self) -> list[dict[str, Any]]:
        return await self.queue.asks("SELECT id, state, attempts, worker FROM {jobs} ORDER BY id")

    async def time_passes(self, process: Process) -> None:
        """What a process held that is gone is past its time."""
        lost = f"worker LIKE '%:{process.pid}:%'"
        if self.queue.url.startswith("postgres"):  # in a SQLite file they are so at once, by their locks
            past = "clock_timestamp() - interval '1 hour'"
            await self.queue.asks(f"UPDATE {{jobs}} SET lease_until = {past} WHERE state = 'running' AND {lost}")
            held = f"holder LIKE '%:{process.pid}:%'"
            await self.queue.asks(f"UPDATE ingest.leases SET expires_at = {past} WHERE {held}")

    async def all_done(self) -> bool:
        await self.queue.asks("UPDATE {jobs} SET run_at = created_at WHERE state = 'pending'")
        return all(job["state"] == State.DONE for job in await self.jobs())

    async def polled(self, live: Process, n: int) -> None:
        """The poller has published the n-th new record, and saved its cursor."""

        async def saved() -> bool:
            cursors = [saved.cursor for saved in await self.pipeline.cursors()]
            return any(b"2024-06-01T00:%02d:00Z" % n in cursor for cursor in cursors)

        await live.reaches(saved)


async def test_slices_are_shared_and_taken_over_and_every_row_is_there_once(pipeline: Pipeline) -> None:
    database = pipeline.place.database
    async with open_queue(database if database.startswith("postgres") else f"sqlite:///{database}") as queue:
        scene = Scene(pipeline, queue)
        assert (await scene.said("live-0", "run", "--once"))[0]["events"] == 1
        found = await scene.said("desk", *SLICES)
        assert [one["state"] for one in found["slices"]] == ["pending"] * 6
        again = await scene.said("desk-again", *SLICES)
        assert [one["job"] for one in again["slices"]] == [one["job"] for one in found["slices"]]

        first = scene.start("first", "worker", "--kind", "backfill", "--ops", "off")

        def kill_it_in_the_middle(request: Request) -> None:
            further = [one for one in scene.asked("first") if "token" in one.query]
            if len(further) == NTH:
                first.send(signal.SIGKILL)

        pipeline.api.arrived = kill_it_in_the_middle
        assert await first.ended() == -signal.SIGKILL
        pipeline.api.arrived = lambda request: None
        scene.listing.add(new(1))
        assert (await scene.said("live-1", "run", "--once"))[0]["events"] == 1  # whatever becomes of the slices
        await scene.time_passes(first)
        second = scene.start("second", "worker", "--kind", "backfill", "--ops", "off")
        live = scene.start("live", "run", "--ops", "off")  # takes slices too
        await until(scene.all_done, lambda: "\n".join(tail(one.output) for one in (second, live)))
        scene.listing.add(new(2))
        await scene.polled(live, 2)
        for process in (second, live):
            process.send(signal.SIGTERM)
            assert await process.ended() == 0, tail(process.output)
        await _proves(scene)


async def _proves(scene: Scene) -> None:
    outcomes = [row["outcome"] for row in await scene.queue.asks("SELECT outcome FROM {attempts}")]
    assert outcomes.count("done") == 6
    assert outcomes.count("lost") == 2  # what the first one had in hand
    expected = {str(row["id"]) for row in [*OLD, *map(new, range(3))]}
    consumed = await scene.pipeline.consume()
    assert consumed["inserted"] == len(expected)
    history = await scene.pipeline.history()
    counts = Counter(one.event_id.removeprefix(history.prefix).partition("@")[0] for one in history.log)
    assert set(counts) == expected
    assert counts.total() - len(counts) <= 2 * PAGE  # the pages in flight, once more
    table = "checkpoints" if scene.queue.url.startswith("sqlite") else "ingest.checkpoints"
    assert await scene.queue.asks(f"SELECT stream FROM {table}") == [{"stream": "events"}]
