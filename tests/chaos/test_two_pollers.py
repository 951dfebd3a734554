"""Two pollers of one source: one at a time moves the cursor, and one that was frozen past its lease moves nothing."""

import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from checkpoints import Checkpoints, Save, StreamId
from checkpoints.postgres import PostgresCheckpoints
from checkpoints.sqlite import SqliteCheckpoints
from ingest.errors import Superseded
from ingest.postgres import open_postgres
from ingest.sqlite import open_database
from tests.chaos.history import Logged
from tests.chaos.pipeline import PAGE, PAGES, RECORDS, Pipeline
from tests.chaos.processes import Process
from tests.harness.fake_api import numbered
from tests.harness.faults import slow
from tests.harness.processes import tail

NTH = 3  # the page at which a poller is frozen, of 8
CHANGED = 250  # number of a record on that page that changes meanwhile
TTL = "4"  # seconds; short enough to wait for


async def test_two_pollers_at_once_take_turns_and_the_second_finds_nothing_new(pipeline: Pipeline) -> None:
    pipeline.api.misbehave([slow(2.0)])
    first = pipeline.start("run", "--once", "--json")

    async def listing() -> bool:
        return len(pipeline.api.requests) > 0

    await first.reaches(listing)
    second = await pipeline.run()
    assert await first.ended() == 0, tail(first.output)
    assert (first.said()["outcome"], first.said()["events"]) == ("complete", RECORDS)
    assert (second["outcome"], second["events"]) == ("complete", 0)
    await pipeline.consume()
    await pipeline.proves(repeats=0, drained=True)


async def test_a_poller_that_does_not_get_the_lease_says_who_has_it_and_may_be_tried_again(pipeline: Pipeline) -> None:
    pipeline.api.misbehave([slow(600.0)])
    first = pipeline.start("run", "--once")

    async def listing() -> bool:
        return len(pipeline.api.requests) > 0

    await first.reaches(listing)
    second = pipeline.start("victim", "run", "never", "1", "SIGKILL", "--lease-ttl", "1")
    assert await second.ended() == 3
    assert second.said()["outcome"] == "unavailable"
    assert "another poller holds the stream" in second.said()["reason"]
    first.kill()


async def test_a_poller_waits_for_the_lease_of_one_that_was_killed_and_goes_on(pipeline: Pipeline) -> None:
    await pipeline.killed("run", "all_acknowledgements", str(NTH), "--lease-ttl", TTL)
    assert (await pipeline.run())["outcome"] == "complete"
    assert pipeline.asked(len(pipeline.api.requests) - (PAGES - NTH + 1))[0] == f"t{(NTH - 1) * PAGE}"
    await pipeline.consume()
    assert (await pipeline.proves(repeats=PAGE, drained=True)).repeated() == PAGE


async def test_a_poller_frozen_past_its_lease_notices_and_its_cursor_is_not_saved(pipeline: Pipeline) -> None:
    frozen = pipeline.start("victim", "run", "all_acknowledgements", str(NTH), "SIGSTOP", "--lease-ttl", TTL)
    await frozen.frozen()
    await takes_over(pipeline)
    assert await wakes_up(pipeline, frozen) == "superseded"
    await pipeline.consume()
    after = await pipeline.proves(repeats=PAGE, drained=True)
    assert after.repeated() == PAGE - 1, "all of the page but the record that had changed"
    await pipeline.nothing_is_new()


async def test_a_poller_that_does_not_know_its_lease_is_over_publishes_late_and_is_refused(pipeline: Pipeline) -> None:
    """Its own clock says that the lease lasts, so only the fence helps. In the log its old page stands behind the newer
    one, under a lower fence."""
    command = ("victim", "run", "before_publish", str(NTH), "SIGSTOP", "--lease-ttl", "600", "--claim-ttl", TTL)
    frozen = pipeline.start(*command)
    await frozen.frozen()
    await takes_over(pipeline)
    assert await wakes_up(pipeline, frozen) == "superseded"
    assert "our fence 1 is superseded by fence 2" in frozen.said()["reason"]
    await pipeline.consume()
    after = await pipeline.proves(repeats=PAGE, drained=True, zombie=True)
    old, new = sorted(versions(after.log), key=lambda record: record.fence)
    assert (old.fence, new.fence) == (1, 2), "the fence tells which is newer"
    assert old.offset > new.offset, "the place in the log does not"
    await pipeline.nothing_is_new()


async def takes_over(pipeline: Pipeline) -> None:
    """While the first is frozen a record of its page changes, and a second poller lists the rest."""
    records = numbered(RECORDS)
    [changed] = numbered(1, first=RECORDS + 1)
    changed = {**changed, "id": records[CHANGED - 1]["id"], "account": records[CHANGED - 1]["account"]}
    pipeline.listing.replace([*records[: CHANGED - 1], *records[CHANGED:], changed])
    assert (await pipeline.run())["outcome"] == "complete"


async def wakes_up(pipeline: Pipeline, frozen: Process) -> str:
    """How its run ended; the cursor is what it was."""
    before = await pipeline.cursors()
    assert "listing" not in json.loads(before[-1].cursor), "the second poller is done"
    frozen.send(signal.SIGCONT)
    assert await frozen.ended() == 1
    assert await pipeline.cursors() == before
    return str(frozen.said()["outcome"])


def versions(log: Sequence[Logged]) -> list[Logged]:
    """The records of the log with the id that changed."""
    id = str(numbered(1, first=CHANGED)[0]["id"])
    return [record for record in log if f":{id}@" in record.event_id]


@pytest.mark.parametrize("point", ["save", "forget", "keep"])
async def test_every_write_under_an_old_fence_is_refused(pipeline: Pipeline, point: str) -> None:
    stream = StreamId(pipeline.place.source, "events")
    async with checkpoints(pipeline) as old, checkpoints(pipeline) as new:
        late = await old.claim(stream, "here:1:late", 600.0)
        assert late is not None
        await old.save(late, Save(b'{"n":1}'))
        await pipeline.leases_end()
        newer = await new.claim(stream, "here:2:newer", 600.0)
        assert newer is not None
        assert newer.lease.fence > late.lease.fence
        await new.save(newer, Save(b'{"n":2}'))
        with pytest.raises(Superseded, match="fence 1 is superseded by fence 2"):
            match point:
                case "save":
                    await old.save(late, Save(b'{"n":3}'))
                case "forget":
                    await old.forget(late)
                case _:
                    await old.keep(late, "billing:events:1", b"{}", b"")
        [checkpoint] = await new.list()
        assert (checkpoint.cursor, checkpoint.fence) == (b'{"n":2}', newer.lease.fence)
    assert [saved.fence for saved in await pipeline.cursors()] == [1, 2]


@asynccontextmanager
async def checkpoints(pipeline: Pipeline) -> AsyncIterator[Checkpoints]:
    """As one process opens them."""
    if pipeline.place.bootstrap is None:
        async with open_database(pipeline.folder / "ingest.db") as database:
            yield SqliteCheckpoints(database)
    else:
        async with open_postgres(pipeline.place.database) as postgres:
            yield PostgresCheckpoints(postgres)
