"""`doctor` says what a person must do, and is silent where there is nothing to be done."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from checkpoints.jobs import JOB_TTL
from checkpoints.jobs.desk import SourceSummary, Summary, WorkerRow
from ingest.cli import app
from ingest.doctor import Finding, Level, queue
from ingest.doctor.postgres import BAD_SKEW, skewed
from ingest.doctor.queue import LONG, SLOW, Ticking
from ingest.doctor.sqlite import has_reset_bug

NOW = 1_700_000_000.0
QUIET = SourceSummary("shop", 0, 0, 0, 0, 0, 0, None, None, 0, 0, 0.0, None, None, None)
WORKER = WorkerRow("host:1:a", "host", 1, "1.0", 4, ["sync"], ["shop"], 0, 0, False, NOW, 1.0)
HOURLY = Ticking("shop/orders", "sync", "shop")


def found(source: SourceSummary, *workers: WorkerRow, schedules: tuple[Ticking, ...] = ()) -> dict[str, Finding]:
    return {one.about: one for one in queue.examine(Summary(NOW, [source]), workers, schedules)}


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 6, 23), False), ((3, 40, 1), True), ((3, 44, 5), True), ((3, 44, 6), False), ((3, 45, 0), True),
        ((3, 50, 6), True), ((3, 50, 7), False), ((3, 51, 2), True), ((3, 51, 3), False), ((3, 52, 0), False),
    ],
)  # fmt: skip
def test_versions_of_sqlite_that_may_lose_what_was_committed_are_known(
    version: tuple[int, int, int], affected: bool
) -> None:
    assert has_reset_bug(version) is affected


def test_nothing_is_to_be_done_where_workers_take_what_schedules_make() -> None:
    assert set(found(QUIET, WORKER, schedules=(HOURLY,))) == {"jobs"}
    assert found(QUIET, WORKER)["jobs"].said == "1 workers, 0 jobs running"


def test_dead_jobs_need_a_person() -> None:
    finding = found(replace(QUIET, dead=3))["source shop"]
    assert (finding.level, finding.said) == (Level.ACT, "dead jobs: 3")
    assert "--source shop" in finding.todo


@pytest.mark.parametrize(
    ("source", "workers", "level"),
    [
        (replace(QUIET, oldest_ready_at=NOW - LONG - 1), (), Level.ACT),
        (replace(QUIET, oldest_ready_at=NOW - LONG - 1), (WORKER,), Level.ACT),
        (replace(QUIET, oldest_ready_at=NOW - LONG - 1, paused_until=NOW + 1), (), Level.NOTE),
        (replace(QUIET, expired=1), (), Level.NOTE),
    ],
)
def test_a_job_that_nobody_takes_is_worth_a_look_where_nobody_said_so(
    source: SourceSummary, workers: tuple[WorkerRow, ...], level: Level
) -> None:
    assert found(source, *workers)["source shop"].level is level


@pytest.mark.parametrize(
    "worker",
    [
        None,
        replace(WORKER, silent=JOB_TTL + 1),
        replace(WORKER, sources=["billing"]),
        replace(WORKER, kinds=["task:x"]),
    ],
)
def test_a_schedule_whose_jobs_no_living_worker_takes_is_said(worker: WorkerRow | None) -> None:
    finding = found(QUIET, *([worker] if worker else []), schedules=(HOURLY,))["schedules"]
    assert (finding.level, finding.said) == (Level.ACT, "no worker takes what these make: shop/orders")


def test_a_schedule_whose_ticks_nobody_decides_is_said() -> None:
    late = HOURLY._replace(late=SLOW + 1)
    assert found(QUIET, WORKER, schedules=(late,))["schedule shop/orders"].level is Level.ACT


@pytest.mark.parametrize(
    ("server", "level"),
    [
        (NOW + 0.1, None),
        (NOW - 0.5, None),
        (NOW + 5, Level.NOTE),
        (NOW - 5, Level.NOTE),
        (NOW + BAD_SKEW + 2, Level.ACT),
    ],
)
def test_clocks_that_differ_by_more_than_it_took_to_ask_are_said(server: float, level: Level | None) -> None:
    assert [one.level for one in skewed("db", server, NOW - 0.2, NOW + 0.2)] == ([level] if level else [])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("INGEST_CONFIG", "INGEST_LOG_URL", "INGEST_STORE_URL", "INGEST_STATE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ingest.yaml").write_text("version: 1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_embedded_file_is_looked_at_and_none_is_made_for_it(folder: Path) -> None:
    first = CliRunner().invoke(app, ["doctor", "--json"])
    assert first.exit_code == 0, first.output
    [said] = [one["said"] for one in json.loads(first.stdout) if one["about"].startswith("file")]
    assert "not there yet" in said
    again = CliRunner().invoke(app, ["doctor"])
    assert again.exit_code == 0 and "MB, 0.0 MB of them free" in " ".join(again.output.split())


def test_what_does_not_answer_needs_a_person_and_the_others_are_looked_at_still(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGEST_STORE_URL", "postgresql://ingest:hunter22@127.0.0.1:1/ingest")
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1 and "hunter22" not in result.output
    levels = {one["about"].split(" ")[0]: one["level"] for one in json.loads(result.stdout)}
    assert levels["postgresql://127.0.0.1:1/ingest"] == "act" and levels["file"] in ("good", "note")
