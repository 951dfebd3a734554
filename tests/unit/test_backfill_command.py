"""What `backfill` adds to the queue and what it prints, over a queue in an SQLite file."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from checkpoints.jobs import Ended, Outcome, Want
from checkpoints.jobs.sqlite import SqliteJobs
from ingest.cli import app
from ingest.errors import ConfigError
from ingest.sqlite import open_database
from migrations.runner import migrate

T = TypeVar("T")

FILE = """
version: 1
sources:
  shop:
    base_url: "https://api.example.com"
    limits: {concurrency: %s}
    streams:
      orders:
        path: /o
        records: $
        incremental: {type: timestamp, field: at, since: {param: since}, until: {param: until}, format: "%%Y-%%m-%%d"}
      plain: {path: /p, records: $}
jobs: {queues: {%s}}
"""
RANGE = ("backfill", "-s", "shop", "-t", "orders", "--from", "2024-01-01", "--to", "2024-01-04")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("INGEST_CONFIG", "INGEST_LOG_URL", "INGEST_STORE_URL", "INGEST_STATE_URL"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, concurrency: int = 8, queues: str = "") -> None:
    (folder / "ingest.yaml").write_text(FILE % (concurrency, queues))


def queue(folder: Path, work: Callable[[SqliteJobs], Awaitable[T]]) -> T:
    """What workers would have done."""

    async def opened() -> T:
        path = folder / ".ingest" / "ingest.db"
        await migrate(f"sqlite:///{path}")
        async with open_database(path) as database:
            return await work(SqliteJobs(database))

    return asyncio.run(opened())


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, ConfigError):
        assert code == 2, result.exception
    else:
        assert result.exit_code == code, (result.output, result.exception)
    return result


def data(*arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = data("jobs", "list", "--kind", "backfill")
    return sorted(found, key=lambda job: int(job["id"]))


def ended(folder: Path, *outcomes: Outcome) -> None:
    """The first jobs end so."""

    async def work(jobs: SqliteJobs) -> None:
        claimed = (await jobs.exchange("w", (), Want(len(outcomes)))).jobs
        pairs = zip(claimed, outcomes, strict=True)
        await jobs.exchange("w", [Ended(one.id, one.fence, outcome, error="no\nmore") for one, outcome in pairs], None)

    queue(folder, work)


def test_a_dry_run_prints_the_slices_as_they_would_be_asked_for(folder: Path) -> None:
    text = run(*RANGE, "--slices", "2", "--dry-run").stdout
    assert "2024-01-01  2024-01-03  since=2024-01-01  until=2024-01-03" in text
    assert "2024-01-03  2024-01-04  since=2024-01-03  until=2024-01-04" in text
    found = data(*RANGE, "--slices", "2", "--dry-run")
    assert found["slices"][0] == {"from": "2024-01-01", "to": "2024-01-03", "since": "since=2024-01-01",
                                  "until": "until=2024-01-03"}  # fmt: skip
    assert not (folder / ".ingest").exists()


def test_slices_become_jobs_of_low_priority_and_the_same_command_adds_none(folder: Path) -> None:
    text = run(*RANGE, "--slices", "3").stdout
    assert "shop/orders: 3 slices, 3 pending" in text
    assert "no worker takes them yet: start `ingest worker`, or `ingest run --source shop`" in text
    jobs = listed()
    assert [(job["queue"], job["priority"], job["max_attempts"]) for job in jobs] == [("backfill", 10, 10)] * 3
    assert [slice["job"] for slice in data(*RANGE, "--slices", "3")["slices"]] == [job["id"] for job in jobs]
    assert len(listed()) == 3


def test_the_same_command_takes_up_what_died_and_leaves_what_was_read(folder: Path) -> None:
    run(*RANGE, "--slices", "3")
    ended(folder, Outcome.DONE, Outcome.DEAD)
    before = listed()
    assert [job["state"] for job in before] == ["done", "dead", "pending"]
    found = data(*RANGE, "--slices", "3")["slices"]
    assert [(one["job"], one["state"]) for one in found] == [
        (job["id"], state) for job, state in zip(before, ("done", "pending", "pending"), strict=True)
    ]
    run("jobs", "cancel", "--all", "--kind", "backfill", "--yes")
    assert [job["state"] for job in listed()] == ["done", "dead", "dead"]
    run(*RANGE, "--slices", "3")
    assert [job["state"] for job in listed()] == ["done", "pending", "pending"]


def test_what_was_read_is_read_again_only_when_that_is_said(folder: Path) -> None:
    run(*RANGE, "--slices", "2")
    ended(folder, Outcome.DONE, Outcome.DONE)
    assert "all of it was read before; `--again` reads it once more" in run(*RANGE, "--slices", "2").stdout
    assert [one["state"] for one in data(*RANGE, "--slices", "2", "--again")["slices"]] == ["pending"] * 2
    assert len(listed()) == 4


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.DONE, 0), (Outcome.DEAD, 1)])
def test_who_watches_is_told_the_end(
    folder: Path, outcome: Outcome, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.cli.backfill.EVERY", 0.02)

    async def as_they_come(jobs: SqliteJobs) -> None:
        left = 2
        while left:
            claimed = (await jobs.exchange("w", (), Want(left))).jobs
            ends = [Ended(one.id, one.fence, outcome, error="refused") for one in claimed]
            await jobs.exchange("w", ends, None)
            left -= len(ends)
            await jobs.wait(0.05)

    queue(folder, lambda jobs: jobs.rescue(0.0))  # the file is there before both open it
    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(queue, folder, as_they_come)
        text = run(*RANGE, "--slices", "2", "--watch", code=code).stdout
        worker.result()
    assert f"shop/orders: 2 slices, 2 {outcome}" in text


@pytest.mark.parametrize(
    ("concurrency", "queues", "asked", "cap"),
    [
        (8, "", (), None),
        (8, "", ("--max-running", "2"), 2),
        (8, "", ("--max-running", "9"), None),
        (8, "backfill: 9", ("--max-running", "6"), 6),
        (3, "", (), 2),
        (1, "", (), 1),
    ],
)
def test_so_many_run_at_a_time_as_is_said_and_one_place_is_left_to_the_streams(
    folder: Path, concurrency: int, queues: str, asked: tuple[str, ...], cap: int | None
) -> None:
    write(folder, concurrency, queues)
    found = data(*RANGE, "--slices", "3", *asked)
    assert ("one job under way" in run(*RANGE, "--slices", "3", *asked).stdout) is (concurrency == 1)
    assert ["one job under way at a time" in note for note in found["notes"]] == [True] * (concurrency == 1)
    expected = "backfill" if cap is None else "backfill:shop/orders@2024-01-01..2024-01-04"
    assert {job["queue"] for job in listed()} == {expected}

    async def claimed(jobs: SqliteJobs) -> int:
        return len((await jobs.exchange("w", (), Want(9))).jobs)

    assert queue(folder, claimed) == (3 if cap is None else min(3, cap))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-s", "shop", "-t", "plain"), "without `incremental`"),
        (("-s", "shop", "-t", "nothing"), "no stream nothing"),
        (("-s", "nothing", "-t", "orders"), "no source `nothing`"),
    ],
)
def test_a_stream_that_cannot_be_backfilled_is_refused(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("backfill", *arguments, "--from", "2024-01-01", "--to", "2024-01-02", code=2)
    assert message in str(result.exception)
    assert not (folder / ".ingest").exists()
