"""A consumer that is killed at any instant stores nothing twice, misses nothing, and goes on where the store stands."""

import signal

import pytest

from tests.chaos import commits, kafka_groups
from tests.chaos.configuration import CONSUMER
from tests.chaos.history import History
from tests.chaos.pipeline import RECORDS, Pipeline
from tests.chaos.processes import until
from tests.harness.fake_api import numbered

NTH = 3  # the batch at which it dies, of at least 8

# How many batches the store has then; None: the batch before may have been on its way at that instant.
STORED: dict[str, int | None] = {
    "after_fetch": None,
    "before_write": NTH - 1,
    "mid_write": NTH - 1,
    "before_commit": NTH - 1,
    "after_commit": NTH,
    "before_offset_commit": NTH,
    "after_offset_commit": NTH,
}
BATCH = 100  # records, on SQLite exactly so many while there are as many


async def crashed(pipeline: Pipeline) -> History:
    """What a crash has left, before anyone touches it: some rows, and the offsets that go with them."""
    await pipeline.time_passes()
    history = await pipeline.proves(repeats=0, drained=False)
    assert 0 < len(history.rows) < RECORDS
    return history


async def goes_on(pipeline: Pipeline, before: History) -> None:
    """Restart everything, twice."""
    tally = await pipeline.consume()
    assert (tally["inserted"], tally["duplicates"]) == (RECORDS - len(before.rows), 0), "from where the store stands"
    await pipeline.proves(repeats=0, drained=True)
    await pipeline.nothing_is_new()


@pytest.mark.parametrize("point", STORED)
async def test_a_consumer_killed_at_a_batch_goes_on_at_that_batch(pipeline: Pipeline, point: str) -> None:
    await pipeline.run()
    await pipeline.killed("consume", point, str(NTH))
    before = await crashed(pipeline)
    batches = STORED[point]
    if batches is not None and pipeline.place.bootstrap is None:
        assert len(before.rows) == batches * BATCH
    await goes_on(pipeline, before)


@pytest.mark.parametrize("servers", ["kafka"], indirect=True)
async def test_a_consumer_killed_while_its_commit_is_on_the_way_does_not_repeat_the_batch(pipeline: Pipeline) -> None:
    await pipeline.run()
    async with commits.held(pipeline.place.database, "ingest.offsets", f"NEW.next_offset > {BATCH}") as held:
        consumer = pipeline.start("consume", CONSUMER, "--once")
        await consumer.reaches(held.one_waits)
        rows = await pipeline.stored()
        consumer.kill()
        await held.go_on()

        async def committed() -> bool:
            return await pipeline.stored() > rows

        await until(committed, lambda: "the dead consumer's commit")
    await goes_on(pipeline, await crashed(pipeline))


async def test_a_consumer_killed_again_and_again_stores_every_event_once(pipeline: Pipeline) -> None:
    await pipeline.run()
    for point in ("after_commit", "before_commit", "before_offset_commit"):
        await pipeline.killed("consume", point, "2")
        before = await crashed(pipeline)
    await goes_on(pipeline, before)


async def test_a_consumer_told_to_stop_commits_the_batch_in_hand_and_is_not_complete(pipeline: Pipeline) -> None:
    await pipeline.run()
    consumer = pipeline.start("victim", "consume", "after_commit", str(NTH), "SIGTERM")
    assert await consumer.ended() == 1
    before = await pipeline.proves(repeats=0, drained=False)
    assert 0 < len(before.rows) < RECORDS
    assert consumer.said()["inserted"] == len(before.rows)
    await goes_on(pipeline, before)


async def test_a_consumer_frozen_before_its_write_is_refused_when_another_was_faster(pipeline: Pipeline) -> None:
    await pipeline.run()
    frozen = pipeline.start("victim", "consume", "before_write", str(NTH), "SIGSTOP")
    await frozen.frozen()
    await pipeline.leases_end()
    before = await crashed(pipeline)
    tally = await pipeline.consume()
    assert (tally["inserted"], tally["duplicates"]) == (RECORDS - len(before.rows), 0)
    frozen.send(signal.SIGCONT)
    assert await frozen.ended() == 0, "what it was asked for is done, by another"
    tally = frozen.said()
    assert (tally["inserted"], tally["duplicates"]) == (len(before.rows), 0), "its late write was refused"
    await pipeline.proves(repeats=0, drained=True)


@pytest.mark.parametrize("servers", ["kafka"], indirect=True)
async def test_the_second_consumer_of_a_group_takes_over_from_one_that_is_killed(pipeline: Pipeline) -> None:
    """Both are members before there is anything to read, so that each has partitions of its own."""
    bootstrap = str(pipeline.place.bootstrap)
    pipeline.listing.replace([])
    await pipeline.run()  # makes the topic

    async def members(count: int) -> bool:
        group = await kafka_groups.describe(bootstrap, pipeline.group)
        return group.state == "Stable" and len(group.members) == count

    doomed = pipeline.start("victim", "consume", "before_offset_commit", "2", "SIGKILL", "--forever")
    await doomed.reaches(lambda: members(1))
    [its_id] = (await kafka_groups.describe(bootstrap, pipeline.group)).members
    second = pipeline.start("consume", CONSUMER)
    await second.reaches(lambda: members(2))

    pipeline.listing.replace(numbered(RECORDS))
    await pipeline.run()
    assert await doomed.ended() == -signal.SIGKILL
    await kafka_groups.evict(bootstrap, pipeline.group, [its_id])

    async def all_there() -> bool:
        return await pipeline.stored() == RECORDS

    await second.reaches(all_there)
    second.send(signal.SIGTERM)
    assert await second.ended() == 0
    await pipeline.proves(repeats=0, drained=True)
