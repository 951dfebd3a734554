"""A poller killed at any instant loses nothing, repeats at most the page in flight, and goes on where it was."""

import json
import signal

import pytest

from tests.chaos import commits
from tests.chaos.history import History
from tests.chaos.pipeline import PAGE, PAGES, Pipeline
from tests.chaos.processes import until
from tests.harness.faults import ok, slow

NTH = 3  # the page at which it dies, of 8

# How many records the log has twice after the restart; None: the page before may have been on its way at that instant.
REPEATED: dict[str, int | None] = {
    "before_fetch": None,
    "after_parse": None,
    "before_publish": 0,
    "some_acknowledgements": PAGE // 2,
    "all_acknowledgements": PAGE,
    "inside_save": PAGE,
    "after_save": 0,
}


def pages_saved(history: History) -> int:
    """How many pages the last saved cursor stands for."""
    listing = json.loads(history.cursors[-1].cursor).get("listing")
    return PAGES if listing is None else int(listing["n"])


async def crashed(pipeline: Pipeline) -> History:
    """What a crash has left, before anyone touches it."""
    await pipeline.time_passes()
    return await pipeline.proves(repeats=0, drained=False)


async def goes_on(pipeline: Pipeline, before: History, repeated: int | None) -> None:
    """Restart everything, twice."""
    saved = pages_saved(before)
    requests = len(pipeline.api.requests)
    assert (await pipeline.run())["outcome"] == "complete"
    rest = [f"t{page * PAGE}" for page in range(saved, PAGES)]
    assert pipeline.asked(requests) == rest, "the listing goes on where the cursor stood"
    assert (await pipeline.consume())["inserted"] == PAGES * PAGE
    after = await pipeline.proves(repeats=PAGE, drained=True)
    if repeated is not None:
        assert after.repeated() == repeated
    await pipeline.nothing_is_new()


@pytest.mark.parametrize("point", REPEATED)
async def test_a_poller_killed_at_a_page_goes_on_at_that_page(pipeline: Pipeline, point: str) -> None:
    await pipeline.killed("run", point, str(NTH))
    before = await crashed(pipeline)
    assert 1 <= pages_saved(before) <= NTH
    await goes_on(pipeline, before, REPEATED[point])


async def test_a_poller_killed_in_the_middle_of_an_answer_asks_for_it_again(pipeline: Pipeline) -> None:
    pipeline.api.misbehave([ok, ok, slow(600.0)])
    poller = pipeline.start("run", "--once")

    async def third_page_is_coming() -> bool:
        return len(pipeline.api.requests) == NTH and len(await pipeline.cursors()) == NTH - 1

    await poller.reaches(third_page_is_coming)
    poller.kill()
    before = await crashed(pipeline)
    assert pages_saved(before) == NTH - 1
    await goes_on(pipeline, before, 0)


@pytest.mark.parametrize("servers", ["kafka"], indirect=True)
async def test_a_poller_killed_while_its_commit_is_on_the_way_does_not_repeat_the_page(pipeline: Pipeline) -> None:
    """The database commits although nobody waits for it any more. (SQLite's commit is the process's own.)"""
    async with commits.held(
        pipeline.place.database, "ingest.checkpoints", f"NEW.cursor #>> '{{listing,n}}' = '{NTH}'"
    ) as held:
        poller = pipeline.start("run", "--once")
        await poller.reaches(held.one_waits)
        poller.kill()
        assert len(await pipeline.cursors()) == NTH - 1
        await held.go_on()

        async def committed() -> bool:
            return len(await pipeline.cursors()) == NTH

        await until(committed, lambda: "the dead poller's commit")
    before = await crashed(pipeline)
    assert pages_saved(before) == NTH
    await goes_on(pipeline, before, 0)


async def test_a_poller_killed_behind_the_last_page_does_not_list_again(pipeline: Pipeline) -> None:
    await pipeline.killed("run", "after_save", str(PAGES))
    before = await crashed(pipeline)
    requests = len(pipeline.api.requests)
    report = await pipeline.run()
    assert (report["outcome"], report["pages"]) == ("complete", 1)
    assert pipeline.asked(requests) == [""]
    assert pipeline.api.requests[requests].query["since"] == json.loads(before.cursors[-1].cursor)["high_water"]
    assert (await pipeline.consume())["inserted"] == PAGES * PAGE
    assert (await pipeline.proves(repeats=PAGE, drained=True)).repeated() == 1, "the record at the high-water mark"
    await pipeline.nothing_is_new()


async def test_a_poller_killed_again_and_again_repeats_a_page_each_time_and_no_more(pipeline: Pipeline) -> None:
    kills = 4
    for _ in range(kills):
        await pipeline.killed("run", "all_acknowledgements", "2")
        await pipeline.time_passes()
    assert (await pipeline.run())["outcome"] == "complete"
    assert (await pipeline.consume())["inserted"] == PAGES * PAGE
    assert (await pipeline.proves(repeats=kills * PAGE, drained=True)).repeated() == kills * PAGE


async def test_a_poller_told_to_stop_saves_the_page_in_hand_and_repeats_nothing(pipeline: Pipeline) -> None:
    poller = pipeline.start("victim", "run", "after_save", str(NTH), "SIGTERM")
    assert await poller.ended() == 1, "a run that was drained early is not complete"
    assert poller.said()["outcome"] == "incomplete"
    before = await pipeline.proves(repeats=0, drained=False)
    assert NTH <= pages_saved(before) < PAGES
    await goes_on(pipeline, before, 0)


async def test_a_poller_told_to_stop_while_an_answer_is_coming_does_not_wait_for_it(pipeline: Pipeline) -> None:
    pipeline.api.misbehave([ok, ok, slow(600.0)])
    poller = pipeline.start("run", "--once", "--json")

    async def third_page_is_coming() -> bool:
        return len(pipeline.api.requests) == NTH and len(await pipeline.cursors()) == NTH - 1

    await poller.reaches(third_page_is_coming)
    poller.send(signal.SIGTERM)
    assert await poller.ended() == 1
    assert poller.said()["outcome"] == "incomplete"
    before = await pipeline.proves(repeats=0, drained=False)
    await goes_on(pipeline, before, 0)
