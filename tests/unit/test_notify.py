"""A person is told of each incident once, over real HTTP, in words that say what to do and hold no secret."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from checkpoints import StreamId
from checkpoints.jobs import Ended, NewJob, Outcome, Want
from checkpoints.jobs.incidents import Trouble
from checkpoints.jobs.sqlite import SqliteJobs
from checkpoints.jobs.sqlite_desk import SqliteDesk
from checkpoints.jobs.sqlite_incidents import SqliteIncidents
from ingest import notify, report
from ingest.config.model import Retry
from ingest.config.notify import Notify
from ingest.errors import ConfigError
from ingest.notify import Failing, Notifier, of_job, open_post
from ingest.redaction import Redactor
from ingest.report import Report
from ingest.sqlite import Database, open_database
from migrations.runner import migrate
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request

BOTH = ("job.dead", "stream.failed")
SECRET = "s3cr3t-t0ken"
DEAD = Trouble(7, "sync", "shop", "shop/orders", 1, 0, "permanent", "SourceRefused", "GET https://x: 401")


class Hook:
    """Takes messages at an address that is a secret; `statuses`: what it answers first."""

    def __init__(self, api: FakeApi) -> None:
        self.url = f"{api.url}/hooks/{SECRET}"
        self.messages: list[str] = []
        self.statuses: list[int] = []
        api.routes[f"/hooks/{SECRET}"] = self._answer

    def _answer(self, request: Request) -> Answer:
        if self.statuses:
            return Answer(request, body=b"down", status=self.statuses.pop())
        assert (request.method, request.headers["content-type"]) == ("POST", "application/json")
        self.messages.append(json.loads(request.body)["text"])
        return Answer(request, body=b"ok")


@pytest_asyncio.fixture
async def hook() -> AsyncIterator[Hook]:
    async with FakeApi() as api:
        yield Hook(api)


@pytest_asyncio.fixture
async def database(sqlite_path: Path) -> AsyncIterator[Database]:
    await migrate(f"sqlite:///{sqlite_path}")
    async with open_database(sqlite_path) as database:
        yield database


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be told is due again at the next look."""
    monkeypatch.setattr(notify, "PUT_OFF", 0.0)
    retry = Retry.model_validate({"attempts": 2, "base": "1ms", "cap": "2ms"})
    monkeypatch.setattr(notify, "LIMITS", notify.LIMITS._replace(retry=retry))


@asynccontextmanager
async def notifier(
    hook: Hook, database: Database, monkeypatch: pytest.MonkeyPatch, *, failing: Failing | None = None
) -> AsyncIterator[Notifier]:
    monkeypatch.setenv("HOOK", hook.url)
    redactor = Redactor()
    async with open_post(Notify(url="${env:HOOK}"), redactor) as post:
        yield Notifier(SqliteIncidents(database), post, BOTH, redactor.scrub, failing or Failing())


async def die(database: Database, error: str = "401") -> int:
    jobs = SqliteJobs(database)
    [enqueued] = await jobs.enqueue([NewJob("task:report", "report")])
    [job] = (await jobs.exchange("host:1:a", (), Want(1))).jobs
    await jobs.exchange("host:1:a", [Ended(job.id, job.fence, Outcome.DEAD, 0, "KeyError", error, "permanent")], None)
    return enqueued.id


def ended(outcome: report.Outcome, reason: str = "") -> Report:
    return Report(StreamId("shop", "orders"), outcome=outcome, reason=reason)


async def test_two_processes_tell_of_a_dead_job_once_and_of_its_next_death_again(
    hook: Hook, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await die(database, f"posting to {hook.url} failed")
    async with (
        notifier(hook, database, monkeypatch) as one,
        open_database(database.path) as again,
        notifier(hook, again, monkeypatch) as other,
    ):
        await asyncio.gather(*(who.look() for who in (one, other, one, other)))
        [message] = hook.messages
        assert f"task:report of report failed: job {id} is dead (trying again cannot help): KeyError" in message
        assert f"`ingest jobs show {id}`" in message and SECRET not in message
        await SqliteDesk(database).requeue([id], "anna")
        await one.look()
        jobs = SqliteJobs(database)
        [job] = (await jobs.exchange("host:1:a", (), Want(1))).jobs
        await jobs.exchange("host:1:a", [Ended(job.id, job.fence, Outcome.DEAD)], None)
        await asyncio.gather(one.look(), other.look())
    assert len(hook.messages) == 2
    stored = await database.read(lambda connection: connection.execute("SELECT message FROM incidents").fetchall())
    assert SECRET not in str(stored)


@pytest.mark.parametrize(("statuses", "looks"), [([503] * 2, 1), ([404] * 2, 2)], ids=["away", "not there"])
async def test_a_message_that_does_not_arrive_is_sent_again(
    hook: Hook, database: Database, monkeypatch: pytest.MonkeyPatch, statuses: list[int], looks: int
) -> None:
    await die(database)
    hook.statuses = statuses
    async with notifier(hook, database, monkeypatch) as one:
        for _ in range(looks):
            await one.look()
            assert hook.messages == []
        await one.look()
        await one.look()
    assert len(hook.messages) == 1


async def test_of_many_that_die_together_there_is_one_message(
    hook: Hook, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await die(database) for _ in range(notify.SINGLY + 2)]
    async with notifier(hook, database, monkeypatch) as one:
        for _ in range(2):
            await one.look()
    [message] = hook.messages
    assert "7 incidents" in message and "and 2 more: `ingest jobs list --state dead`" in message
    assert f"job {ids[0]} is dead" in message and f"job {ids[-1]} is dead" not in message


async def test_jobs_that_nobody_wants_to_know_of_keep_none_out(
    hook: Hook, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await die(database)
    async with notifier(hook, database, monkeypatch) as one:
        await replace(one, on=("stream.failed",)).look()
        assert hook.messages == []
        await one.look()
    assert len(hook.messages) == 1


async def test_what_was_dead_before_anyone_looked_and_what_dies_last_is_told(
    hook: Hook, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = asyncio.Event()
    async with notifier(hook, database, monkeypatch) as one:
        await die(database)
        stop.set()
        await one.run(stop)
    assert len(hook.messages) == 1


async def test_a_stream_that_runs_without_jobs_is_told_of_when_it_fails_and_anew_after_it_was_complete(
    hook: Hook, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing()
    async with notifier(hook, database, monkeypatch, failing=failing) as one:
        for outcome in (report.Outcome.RUNNING, report.Outcome.UNAVAILABLE, report.Outcome.COMPLETE):
            failing.changed(ended(outcome))
        await one.look()
        assert hook.messages == []
        for reason in ("GET https://x: 401", "GET https://x: 403"):
            failing.changed(ended(report.Outcome.FAILED, reason))
            await one.look()
        assert [message.partition(": ")[2] for message in hook.messages] == ["shop/orders failed: GET https://x: 401"]
        failing.changed(ended(report.Outcome.COMPLETE))
        await one.look()
        failing.changed(ended(report.Outcome.FAILED, "GET https://x: 500"))
        await one.look()
    assert len(hook.messages) == 2


@pytest.mark.parametrize(
    ("kind", "on", "event"),
    [
        ("sync", BOTH, "stream.failed"),
        ("sync", ("job.dead",), "job.dead"),
        ("task:x", BOTH, "job.dead"),
    ],
)
def test_a_dead_run_of_a_stream_is_a_stream_that_failed(kind: str, on: tuple[str, ...], event: str) -> None:
    trouble = Trouble(7, kind, "shop", None, 5, 2, "exhausted", "Timeout", "x" * 9_000)
    incident = of_job(trouble, on)
    assert incident.event == event
    assert "(after 5 attempts, as 2 before it)" in incident.message and len(incident.message) < 1_000


def test_a_stream_is_called_by_its_name() -> None:
    incident = of_job(DEAD, BOTH)
    assert incident.subject == "shop/orders"
    assert incident.message.startswith("shop/orders failed: job 7 is dead (trying again cannot help): SourceRefused")


@pytest.mark.parametrize("url", ["hooks.example.com/x", "ftp://example.com/", "https://user:pw@example.com/"])
async def test_what_is_no_address_is_refused_without_being_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", url)
    with pytest.raises(ConfigError, match="url: ") as caught:
        async with open_post(Notify(url="${env:HOOK}"), Redactor()):
            pass
    assert url not in str(caught.value)
