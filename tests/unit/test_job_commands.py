"""What `jobs`, `source` and `workers` print, and what they end with, over a queue in an SQLite file."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from checkpoints.jobs import Ended, Held, NewJob, Outcome, Want, Worker
from checkpoints.jobs.gist import gist
from checkpoints.jobs.sqlite import SqliteJobs
from ingest.cli import app
from ingest.cli.moments import iso, moment, relative, span
from ingest.errors import ConfigError
from ingest.sqlite import open_database
from migrations.runner import migrate

T = TypeVar("T")

FILE = """
version: 1
sources: {shop: {base_url: "https://api.example.com", streams: {orders: {path: /o, records: $}}}}
tasks: {report: {call: "reports:monthly"}}
"""
WORKER = Worker("host:1:a", "host", 1, "1.0", slots=4, sources=["shop"])
DAY = 86_400.0  # seconds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("INGEST_CONFIG", "INGEST_LOG_URL", "INGEST_STORE_URL", "INGEST_STATE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ingest.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def queue(folder: Path, work: Callable[[SqliteJobs], Awaitable[T]]) -> T:
    """What workers and schedulers would have done."""

    async def opened() -> T:
        path = folder / ".ingest" / "ingest.db"
        await migrate(f"sqlite:///{path}")
        async with open_database(path) as database:
            return await work(SqliteJobs(database))

    return asyncio.run(opened())


async def died(jobs: SqliteJobs, *new: NewJob) -> list[int]:
    ids = [one.id for one in await jobs.enqueue(new)]
    claimed = (await jobs.exchange(WORKER.name, (), Want(len(ids)))).jobs
    said = "GET https://api.example.com/o: 401\nwhere it is configured"
    ended = [Ended(one.id, one.fence, Outcome.DEAD, 0, "SourceRefused", said, "permanent") for one in claimed]
    await jobs.exchange(WORKER.name, ended, None)
    return ids


def dead(folder: Path, *new: NewJob) -> list[int]:
    return queue(folder, lambda jobs: died(jobs, *(new or (NewJob("sync", "shop"), NewJob("sync", "shop")))))


def run(*arguments: str | int, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(result.exception, ConfigError):
        assert code == 2, result.exception
    else:
        assert result.exit_code == code, (result.output, result.exception)
    return result


def output(*arguments: str | int, code: int = 0) -> str:
    return " ".join(run(*arguments, code=code).output.split())


def data(*arguments: str | int, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def test_the_summary_is_what_jobs_alone_prints(folder: Path) -> None:
    dead(folder)
    assert output("jobs").startswith("source ready scheduled retrying running expired dead")
    assert "shop 0 0 0 0 0 2" in output("jobs", "summary")
    found = data("jobs", "summary")
    [shop] = found["sources"]
    assert (shop["source"], shop["dead"], shop["failed_1h"], shop["oldest_ready_seconds"]) == ("shop", 2, 2, None)
    assert found["now"].endswith("Z")


def test_a_list_shows_what_fits_with_the_first_line_of_its_error(folder: Path) -> None:
    first, second = dead(folder)
    listed = output("jobs", "list", "--state", "dead", "--error-class", "SourceRefused")
    assert f"{second} sync shop dead: permanent 1/5" in listed
    assert "SourceRefused: GET https://api.example.com/o: 401" in listed
    assert "where it is configured" not in listed
    assert [row["id"] for row in data("jobs", "list", "-n", "1")] == [second]
    assert data("jobs", "list", "--state", "pending") == []
    assert [row["id"] for row in data("jobs", "list", "--source", "shop")] == [second, first]


def test_a_job_is_shown_with_its_history_and_without_what_is_named_like_a_secret(folder: Path) -> None:
    [id] = dead(folder, NewJob("sync", "shop", b'{"stream": "orders", "api_key": "xyzzy-123"}'))
    shown = run("jobs", "show", id, "--errors").output
    assert "permanent" in shown and "where it is configured" in shown and "xyzzy" not in shown
    assert "where it is configured" not in run("jobs", "show", id).output
    found = data("jobs", "show", id)
    assert found["payload"] == {"stream": "orders", "api_key": "***"}
    assert [(one["attempt"], one["outcome"], one["worker"]) for one in found["history"]] == [(1, "dead", WORKER.name)]
    run("jobs", "show", 10**6, code=2)


def test_jobs_are_requeued_by_their_ids_and_refused_with_a_reason(folder: Path) -> None:
    first, second = dead(folder)
    assert "nothing was changed" in output("jobs", "requeue", first, "--dry-run")
    assert output("jobs", "requeue", first) == f"job {first}: requeued"
    refused = output("jobs", "requeue", first, second, code=1)
    assert f"job {first}: refused: it is pending; only what is dead is requeued" in refused
    assert "1 of 2 jobs; 1 refused" in refused
    assert data("jobs", "requeue", 99, code=1) == [{"id": 99, "done": False, "said": "there is no such job"}]


def test_all_that_fit_are_requeued_once_somebody_said_yes(folder: Path) -> None:
    dead(folder, NewJob("sync", "shop"), NewJob("sync", "shop"), NewJob("backfill", "shop"))
    assert "Requeue 2 jobs?" in output("jobs", "requeue", "--all-dead", "--kind", "sync", code=1)
    assert len(data("jobs", "list", "--state", "dead")) == 3
    assert "2 of 2 jobs" in output("jobs", "requeue", "--all-dead", "--kind", "sync", "--spread", "10m", "--yes")
    assert [row["kind"] for row in data("jobs", "list", "--state", "dead")] == ["backfill"]
    assert output("jobs", "requeue", "--all-dead", "--source", "nobody", "--yes") == "no such job"


@pytest.mark.parametrize(
    "arguments",
    [["requeue"], ["requeue", "1", "--all-dead"], ["cancel"], ["cancel", "1", "--all"], ["run-now"]],
)
def test_neither_none_nor_both_ways_to_name_jobs_are_taken(folder: Path, arguments: Sequence[str]) -> None:
    run("jobs", *arguments, code=2)


def test_what_waits_is_hastened_or_cancelled(folder: Path) -> None:
    [later] = [run("jobs", "enqueue", "task:report", "--run-at", "2100-01-01T00:00:00Z").output.split()[1]]
    assert "scheduled" in output("jobs", "list")
    assert output("jobs", "run-now", later) == f"job {later}: due now"
    assert "ready" in output("jobs", "list")
    assert "would" not in output("jobs", "cancel", "--all", "--source", "report", "--dry-run")
    assert output("jobs", "cancel", "--all", "--source", "report", "--yes") == f"job {later}: cancelled"
    assert data("jobs", "show", later)["dead_reason"] == "cancelled"


def test_a_job_is_enqueued_once_for_its_dedupe_key(folder: Path) -> None:
    arguments = ("jobs", "enqueue", "task:report", "--payload", '{"month": 3}', "--dedupe-key", "march")
    first = data(*arguments)
    assert first["fresh"]
    assert data(*arguments) == {"id": first["id"], "fresh": False}
    assert "nothing is enqueued" in output(*arguments)
    found = data("jobs", "show", first["id"])
    assert (found["kind"], found["source"], found["payload"]) == ("task:report", "report", {"month": 3})
    for payload in ("{", "[]"):
        run("jobs", "enqueue", "task:report", "--payload", payload, code=2)
    run("jobs", "enqueue", "task:reprot", code=2)
    run("jobs", "enqueue", "task:report", "--run-at", "2100-01-01T00:00", code=2)


def test_what_is_done_is_cleaned_away_and_what_is_dead_stays(folder: Path) -> None:
    async def done(jobs: SqliteJobs) -> None:
        await jobs.enqueue([NewJob("sync", "shop")])
        [job] = (await jobs.exchange(WORKER.name, (), Want(1))).jobs
        await jobs.exchange(WORKER.name, [Ended(job.id, job.fence, Outcome.DONE)], None)

    dead(folder)
    queue(folder, done)
    assert output("jobs", "cleanup") == "deleted 0 jobs and 0 ticks"
    assert data("jobs", "cleanup", "--keep-done", "0") == {"jobs": 1, "ticks": 0}
    assert len(data("jobs", "list")) == 2


def test_a_source_is_paused_with_a_note_and_limited_by_hand(folder: Path) -> None:
    run("source", "pause", "shop", "--for", "1h", "--note", "the vendor is down")
    assert "(in 60 min) the vendor is down" in output("source", "list")
    run("source", "limit", "shop", "3")
    [row] = data("source", "list")
    assert (row["name"], row["limited_to"]) == ("shop", 3) and row["pause_note"].startswith("the vendor is down (")
    assert output("source", "resume", "shop") == "shop: goes on"
    assert output("source", "resume", "shop") == "shop: was not paused"
    run("source", "pause", "report")
    assert output("source", "resume", "report") == "report: goes on"
    run("source", "pause", "shop")
    assert data("source", "list")[1]["paused_until"] == "infinity"
    assert "for ever" in output("source", "list")
    run("source", "limit", "shop", "configured")
    assert data("source", "list")[1]["limited_to"] is None


@pytest.mark.parametrize(
    "arguments", [["pause", "shpo"], ["limit", "shpo", "1"], ["limit", "shop", "0"], ["limit", "shop", "9" * 20]]
)
def test_a_source_that_nobody_knows_and_a_limit_that_is_none_are_refused(
    folder: Path, arguments: Sequence[str]
) -> None:
    run("source", *arguments, code=2)


def test_workers_show_what_they_take_and_when_they_last_gave_a_sign_of_life(folder: Path) -> None:
    async def work(jobs: SqliteJobs) -> None:
        await jobs.enqueue([NewJob("sync", "shop")])
        [job] = (await jobs.exchange(WORKER.name, (), Want(1))).jobs
        await jobs.beat(WORKER, [Held(job.id, job.fence)], DAY)

    queue(folder, work)
    assert "host:1:a alive 1.0" in output("workers")
    assert "1/4 0 any kind of shop" in output("workers")
    [row] = data("workers")
    assert (row["name"], row["state"], row["running"], row["slots"]) == ("host:1:a", "alive", 1, 4)


def test_a_number_that_no_job_has_is_a_mistake_of_whoever_wrote_it(folder: Path) -> None:
    for arguments in (("show", 10**20), ("list", "--limit", 10**20)):
        run("jobs", *arguments, code=2)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.25, "250 ms"),
        (3.21, "3.2 s"),
        (89, "89 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (30 * DAY, "30 d"),
        (-600, "-10 min"),
    ],
)
def test_a_duration_is_short(seconds: float, expected: str) -> None:
    assert span(seconds) == expected


@pytest.mark.parametrize(
    ("error_class", "error", "expected"),
    [
        ("SourceRefused", "GET https://x: 401\nwhere", "SourceRefused: GET https://x: 401"),
        ("KeyError", "Traceback (most recent call last):\n  File …\nKeyError: 'a'", "KeyError: 'a'"),
        ("KeyError", "…\n  File …\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("LeaseExpired", None, "LeaseExpired"),
        (None, None, ""),
    ],
)
def test_of_an_error_the_line_is_shown_that_says_most(error_class: str, error: str | None, expected: str) -> None:
    assert gist(error_class, error) == expected


def test_a_moment_is_a_clock_and_a_distance() -> None:
    now = 1_700_000_000.0
    assert relative(now - 600, now) == "10 min ago"
    assert relative(now + 2 * DAY, now) == "in 2 d"
    assert relative(now + 0.2, now) == "now"
    assert moment(None, now) == "" and iso(None) is None
    assert moment(now - 30 * DAY, now).endswith(" (30 d ago)")
    assert iso(now) == "2023-11-14T22:13:20.000Z"
    assert iso(float("inf")) == iso(4e11) == "infinity"
    assert moment(4e11, now) == "for ever", "the calendar ends before"
