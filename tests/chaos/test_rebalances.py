"""Consumers come, go, freeze and die while the database is slow: rows exact, order kept, no offset ever steps back."""

import signal

import pytest

from tests.chaos import kafka_groups, offset_moves
from tests.chaos.pipeline import PARTITIONS, RECORDS, Pipeline
from tests.chaos.processes import Process
from tests.harness.fake_api import numbered
from tests.harness.processes import tail

pytestmark = pytest.mark.parametrize("servers", ["kafka"], indirect=True)

SESSION = 3.0  # seconds
SLOW = 0.15  # seconds that moving one offset takes


def consumer(pipeline: Pipeline, point: str = "never", nth: int = 1, number: str = "SIGSTOP") -> Process:
    """One that is missed soon. `point`: where it is to be frozen or killed."""
    return pipeline.start("victim", "consume", point, str(nth), number, "--forever", "--session", str(SESSION))


async def members(pipeline: Pipeline, count: int) -> bool:
    group = await kafka_groups.describe(str(pipeline.place.bootstrap), pipeline.group)
    return group.state == "Stable" and len(group.members) == count


async def all_stored(pipeline: Pipeline, count: int = RECORDS) -> bool:
    return await pipeline.stored() == count


async def ends_well(process: Process) -> None:
    process.send(signal.SIGTERM)
    assert await process.ended() == 0, tail(process.output)


async def proves(pipeline: Pipeline) -> None:
    """Everything is stored once, in order; each offset was moved from where it stood, and Kafka was told the same."""
    history = await pipeline.proves(repeats=0, drained=True)
    database = pipeline.place.database
    assert await offset_moves.steps_back(database) == []
    assert await offset_moves.out_of_order(database) == []
    committed = await kafka_groups.committed(str(pipeline.place.bootstrap), pipeline.group)
    assert committed.items() <= dict(history.offsets).items()


async def test_consumers_that_come_and_go_while_the_database_is_slow(pipeline: Pipeline) -> None:
    """One, three, one: the second leaves, the third is killed."""
    configuration = pipeline.folder / "ingest.yaml"
    configuration.write_text(configuration.read_text().replace(f"partitions: {PARTITIONS}", "partitions: 6"))
    await offset_moves.slow_down(pipeline.place.database, SLOW)
    await pipeline.run()
    first = consumer(pipeline)

    async def begun() -> bool:
        return await pipeline.stored() > 0

    await first.reaches(begun)
    second, third = consumer(pipeline), consumer(pipeline)
    await first.reaches(lambda: members(pipeline, 3))
    pipeline.listing.add(*numbered(RECORDS, first=RECORDS + 1))
    await pipeline.run()
    third.kill()
    await ends_well(second)
    await first.reaches(lambda: all_stored(pipeline, 2 * RECORDS))
    await ends_well(first)
    await proves(pipeline)


async def test_a_partition_that_comes_back_to_a_consumer_that_still_writes_what_it_read_before(
    pipeline: Pipeline,
) -> None:
    """A → B → A, and both have a write under way that the database holds up."""
    database = pipeline.place.database
    await pipeline.run()
    async with offset_moves.locked(database) as lock:
        first = consumer(pipeline)

        async def writing(count: int) -> bool:
            return await lock.waiting() == count

        await first.reaches(lambda: writing(1))
        second = consumer(pipeline)
        await second.reaches(lambda: members(pipeline, 2))
        await second.reaches(lambda: writing(2))
        second.kill()
        await first.reaches(lambda: members(pipeline, 1))
        assert await lock.waiting() == 2
    await first.reaches(lambda: all_stored(pipeline))
    await ends_well(first)
    await proves(pipeline)


async def test_a_consumer_frozen_past_its_session_moves_nothing_that_another_has_and_joins_again(
    pipeline: Pipeline,
) -> None:
    await pipeline.run()
    frozen = consumer(pipeline, "before_write", 3)
    await frozen.frozen()
    second = consumer(pipeline)
    await second.reaches(lambda: all_stored(pipeline))
    await second.reaches(lambda: members(pipeline, 1))
    frozen.send(signal.SIGCONT)
    await frozen.reaches(lambda: members(pipeline, 2))
    pipeline.listing.add(*numbered(RECORDS, first=RECORDS + 1))
    await pipeline.run()
    await frozen.reaches(lambda: all_stored(pipeline, 2 * RECORDS))
    for process in (frozen, second):
        await ends_well(process)
    await proves(pipeline)
