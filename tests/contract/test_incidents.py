"""Each incident is begun once, told once, and ends with its trouble; whoever looks, and wherever one of them dies."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from checkpoints.jobs import Ended, NewJob, Outcome, Want
from checkpoints.jobs.incidents import Incident, Incidents
from tests.contract import states
from tests.contract.states import LONG, open_state
from tests.contract.test_job_desk import ME, WORKER, change

AT_ONCE = 0.0  # seconds


@pytest.fixture(params=["sqlite", "pooled_postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[states.State]:
    async with open_state(url) as state:
        yield state


async def ends(state: states.State, outcome: Outcome, schedule: str | None = None, **rest: Any) -> int:
    """A job, of the schedule where one is named, that ends so."""
    [enqueued] = await state.jobs.enqueue([NewJob("sync", "shop")])
    if schedule is not None:
        await change(state, f"UPDATE ingest.jobs SET schedule = '{schedule}' WHERE id = {enqueued.id}")
    await claimed_and(state, outcome, **rest)
    return enqueued.id


async def claimed_and(state: states.State, outcome: Outcome, **rest: Any) -> None:
    [job] = (await state.jobs.exchange(WORKER, (), Want(1))).jobs
    await state.jobs.exchange(WORKER, [Ended(job.id, job.fence, outcome, **rest)], None)


async def begun(state: states.State) -> list[str]:
    """As a notifier does it; the subjects of what it found."""
    found = await state.incidents.survey()
    await state.incidents.begin([Incident(one.subject, "job.dead", "it died", one.id) for one in found])
    return [one.subject for one in found]


async def told(incidents: Incidents) -> list[str]:
    found = await incidents.take(LONG)
    for one in found:
        await incidents.told([one.subject])
    return [one.subject for one in found]


async def test_a_dead_job_is_found_with_what_there_is_to_say(state: states.State) -> None:
    id = await ends(state, Outcome.DEAD, error_class="SourceRefused", error="401", reason="permanent")
    assert list(await state.incidents.survey("backfill")) == []
    [found] = await state.incidents.survey("sync")
    assert (found.id, found.kind, found.source, found.schedule, found.subject) == (id, "sync", "shop", None, str(id))
    assert (found.attempts, found.deaths, found.dead_reason) == (1, 0, "permanent")
    assert (found.last_error_class, found.last_error) == ("SourceRefused", "401")


async def test_it_is_begun_once_and_told_once_however_many_look(state: states.State) -> None:
    subjects = sorted([str(await ends(state, Outcome.DEAD)) for _ in range(3)])
    async with open_state(state.url) as other:
        await asyncio.gather(*(begun((state, other)[n % 2]) for n in range(6)))
        found = await asyncio.gather(*(told((state, other)[n % 2].incidents) for n in range(6)))
    assert sorted(subject for part in found for subject in part) == subjects
    assert await begun(state) == await told(state.incidents) == []


async def test_who_dies_while_telling_is_followed_by_another(state: states.State) -> None:
    await ends(state, Outcome.DEAD)
    [subject] = await begun(state)
    assert [(one.subject, one.tries) for one in await state.incidents.take(AT_ONCE)] == [(subject, 1)]
    assert [(one.message, one.tries) for one in await state.incidents.take(LONG)] == [("it died", 2)]
    assert list(await state.incidents.take(LONG)) == [], "somebody is at it"
    await state.incidents.put_off([subject], AT_ONCE)
    assert await told(state.incidents) == [subject]
    await state.incidents.put_off([subject], AT_ONCE)
    assert await told(state.incidents) == []


async def test_a_person_ends_it_and_what_dies_again_is_another(state: states.State) -> None:
    for schedule in (None, "shop/orders"):
        id = await ends(state, Outcome.DEAD, schedule)
        [subject] = await begun(state)
        assert subject == (schedule or str(id)) and await told(state.incidents) == [subject]
        await state.desk.requeue([id], ME)
        assert await begun(state) == []
        await claimed_and(state, Outcome.DEAD)
        assert await begun(state) == await told(state.incidents) == [subject]
        await state.desk.cancel([id], ME)
        assert await begun(state) == []
        await ends(state, Outcome.DEAD, schedule)
        assert len(await begun(state)) == len(await told(state.incidents)) == 1


async def test_a_schedule_whose_jobs_die_one_after_the_other_is_one_incident_until_one_is_done(
    state: states.State,
) -> None:
    for expected in (["shop/orders"], [], []):
        await ends(state, Outcome.DEAD, "shop/orders")
        assert await begun(state) == await told(state.incidents) == expected
    await ends(state, Outcome.DONE, "shop/orders")
    assert await begun(state) == []
    await ends(state, Outcome.DEAD, "shop/orders")
    assert await begun(state) == await told(state.incidents) == ["shop/orders"]


async def test_a_stream_without_jobs_has_its_incident_begun_and_ended(state: states.State) -> None:
    incident = Incident("shop/orders", "stream.failed", "401")
    for _ in range(2):
        await state.incidents.begin([incident])
    await state.incidents.survey()
    assert await told(state.incidents) == ["shop/orders"]
    await state.incidents.end("shop/orders")
    await state.incidents.begin([incident])
    assert await told(state.incidents) == ["shop/orders"]
    assert list(await state.incidents.survey()) == []


async def test_the_end_of_a_run_without_jobs_does_not_end_what_a_dead_job_began(state: states.State) -> None:
    await ends(state, Outcome.DEAD, "shop/orders")
    await begun(state)
    await state.incidents.end("shop/orders")
    assert await begun(state) == []
    assert await told(state.incidents) == ["shop/orders"]
