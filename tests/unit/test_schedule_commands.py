"""What `schedules` prints and does, over schedules in an SQLite file; and what is said of why one does not fire."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from checkpoints.jobs import NEVER, NewJob, Overlap, Schedule, State, Tick, TickOutcome
from checkpoints.jobs.desk import FOREVER, Row, SourceSummary, WorkerRow
from checkpoints.jobs.sqlite_schedules import SqliteSchedules
from ingest.cli import app
from ingest.cli.schedules import plans
from ingest.config.loader import load
from ingest.errors import ConfigError
from ingest.jobs.firing import Plan, Policy
from ingest.jobs.scheduler import Scheduler
from ingest.jobs.ticks import Interval
from ingest.jobs.why import Known, decided, late, reasons
from ingest.sqlite import open_database
from migrations.runner import migrate

T = TypeVar("T")

FILE = """
version: 1
sources:
  shop:
    base_url: https://api.example.com
    streams:
      orders: {path: /o, records: $, every: 1h}
      report: {path: /r, records: $, cron: 30 2 * * *, timezone: Europe/Berlin}
      live: {path: /l, records: $, every: 1s}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("INGEST_CONFIG", "INGEST_LOG_URL", "INGEST_STORE_URL", "INGEST_STATE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ingest.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ticking(folder: Path) -> Path:
    """As `ingest run` leaves it: declared, and what was due at once has fired."""
    configured = list(plans(load(folder / "ingest.yaml")).values())

    async def schedule(schedules: SqliteSchedules) -> None:
        scheduler = Scheduler(schedules, configured, ["shop/"], "host:1:a")
        await scheduler.declare()
        await scheduler.look()

    database(folder, schedule)
    return folder


def database(folder: Path, work: Callable[[SqliteSchedules], Awaitable[T]]) -> T:
    async def opened() -> T:
        path = folder / ".ingest" / "ingest.db"
        await migrate(f"sqlite:///{path}")
        async with open_database(path) as found:
            return await work(SqliteSchedules(found))

    return asyncio.run(opened())


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["schedules", *arguments])
    if isinstance(result.exception, ConfigError):
        assert code == 2, result.exception
    else:
        assert result.exit_code == code, (result.output, result.exception)
    return result


def output(*arguments: str, code: int = 0) -> str:
    return " ".join(run(*arguments, code=code).output.split())


def data(*arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def test_before_anything_ran_there_is_none(folder: Path) -> None:
    assert output("list") == "no schedule yet: `ingest run` declares those that are configured"
    assert data("list") == []
    assert "no process has declared it yet" in output("why", "shop/orders")
    run("trigger", "shop/orders", code=2)


def test_the_list_says_what_became_of_the_last_tick_and_when_the_next_is(ticking: Path) -> None:
    listed = output("list")
    assert "shop/orders every 1h on" in listed and "job 1" in listed and "1 is live" in listed
    assert "shop/report 30 2 * * * Europe/Berlin on" in listed and "shop/live" not in listed
    orders, report = data("list")
    assert (orders["id"], orders["paused"], orders["running"]) == ("shop/orders", False, 1)
    assert (orders["last_tick"]["outcome"], orders["last_tick"]["job"]) == ("enqueued", 1)
    assert orders["next_at"] > orders["now"] and report["last_tick"] is None


def test_ticks_are_listed_with_their_outcomes(ticking: Path) -> None:
    [tick] = data("ticks", "shop/orders")
    assert (tick["outcome"], tick["covers"], tick["job"], tick["decided_by"]) == ("enqueued", 1, 1, "host:1:a")
    assert "enqueued 1 1" in output("ticks", "shop/orders")
    assert data("ticks", "shop/orders", "--outcome", "skipped_overlap") == []
    run("ticks", "shop/ordres", code=2)


def test_the_next_ticks_are_those_of_the_configuration(folder: Path) -> None:
    found = data("next", "shop/report", "-n", "3", "--from", "2027-03-26T12:00:00Z")
    assert [one["tick_at"][:16] for one in found] == ["2027-03-27T01:30", "2027-03-28T01:00", "2027-03-29T00:30"]
    assert found[1]["remark"] == "02:30 is left out that day"
    assert "Sun 2027-03-28 03:00:00 CEST" in output("next", "shop/report", "--from", "2027-03-27T12:00:00Z")
    assert data("next", "shop/report", "--from", "2027-03-26T12:00:00Z", "--to", "2027-03-26T13:00:00Z") == []
    for unknown in ("shop/live", "shop/reprot"):
        run("next", unknown, code=2)


def test_a_paused_schedule_is_triggered_still_but_not_beside_a_live_job(ticking: Path) -> None:
    run("pause", "shop/report", "--note", "the vendor is down")
    assert "paused: the vendor is down (" in output("list")
    assert output("trigger", "shop/report") == "job 2"
    refused = data("trigger", "shop/report", code=1)
    assert refused == {"job": None, "in_the_way": 2}
    assert "--overlap says otherwise" in output("trigger", "shop/report", code=1)
    assert data("trigger", "shop/report", "--overlap", "allow") == {"job": 3, "in_the_way": None}
    assert "it is paused: the vendor is down" in output("why", "shop/report")
    assert output("resume", "shop/report") == "shop/report: goes on from now"
    assert "paused" not in output("list")
    run("pause", "shop/reprot", code=2)


def test_what_is_no_longer_configured_is_not_resumed(ticking: Path) -> None:
    (ticking / "ingest.yaml").write_text(FILE.replace("      report:", "      orders2:"))
    configured = list(plans(load(ticking / "ingest.yaml")).values())
    database(ticking, lambda found: Scheduler(found, configured, ["shop/"], "host:1:a").declare())
    run("resume", "shop/report", code=2)
    assert "it is not in this configuration" in output("why", "shop/report")


def test_why_says_all_that_is_in_the_way(ticking: Path) -> None:
    CliRunner().invoke(app, ["source", "pause", "shop", "--note", "maintenance"])
    said = output("why", "shop/orders")
    for part in (
        "it ticks every 1h",
        "is enqueued, job 1",
        "a tick meanwhile is skipped",
        "maintenance",
        "no living worker",
    ):
        assert part in said
    found = data("why", "shop/orders", "--at", "2020-01-01T00:00:00Z")
    assert found["id"] == "shop/orders" and "is remembered" in found["reasons"][1]
    run("why", "shop/ordres", code=2)


NOW = 1_700_000_000.0
PLAN = Plan("shop/orders", "every 1h", Interval(3600.0, "shop/orders"), NewJob("sync", "shop"), Policy())
TICK = PLAN.timing.until(NOW) or 0.0
KNOWN = Schedule("shop/orders", "every 1h", PLAN.declared.digest, TICK, NOW)
WORKER = WorkerRow("host:1:a", "host", 1, "1.0", 4, [], [], 0, 0, False, NOW, 1.0)
SHOP = SourceSummary("shop", 0, 0, 0, 2, 0, 0, None, None, 0, 0, 0.0, None, None, None)
JOB = Row(
    7, "sync", "shop", "sync", State.PENDING, 0, NOW, 0, 5, 0, 0, 0, None, None, None, False, None, "shop/orders", TICK,
    None, None, None, None, 0, None, NOW, None,
)  # fmt: skip


def said(
    schedule: Schedule | None = KNOWN,
    *,
    plan: Plan | None = PLAN,
    ours: float = NOW,
    source: SourceSummary = SHOP,
    running: Row | None = None,
    last: Row | None = None,
    worker: WorkerRow = WORKER,
) -> str:
    return "\n".join(
        reasons(Known(plan, schedule, ours, source, [worker], running, last), lambda at: f"{at - TICK:.0f}")
    )


def test_nothing_is_in_the_way_of_a_schedule_that_ticks() -> None:
    assert said() == "it ticks every 1h\nits ticks are decided up to 0\nthe next tick is at 3600"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (said(None), "no process has declared it"),
        (said(plan=None), "it is not in this configuration"),
        (said(replace(KNOWN, digest="other")), "here it is configured otherwise (every 1h)"),
        (said(replace(KNOWN, paused=True, note="why not")), "it is paused: why not"),
        (said(ours=NOW - 60), "is 60 s ahead of that of this machine"),
        (said(ours=NOW + 60), "is 60 s behind that of this machine"),
        (said(replace(KNOWN, cursor_at=NEVER)), "it is new"),
        (said(replace(KNOWN, cursor_at=NOW + 7200)), "was set back"),
        (said(replace(KNOWN, cursor_at=TICK - 3600)), "no process schedules it"),
        (said(replace(KNOWN, cursor_at=TICK + 7200)), "the next tick is at 10800"),
        (said(running=JOB), "job 7 (attempt 0 of 5) is waiting since"),
        (said(running=replace(JOB, run_at=NOW + 60)), "is waiting for"),
        (said(running=replace(JOB, attempts=2, last_error_class="Timeout")), "another try at"),
        (said(running=replace(JOB, state=State.RUNNING, worker="host:2:b")), "running at host:2:b since"),
        (said(source=replace(SHOP, paused_until=FOREVER, pause_note="x")), "begins until it is resumed: x"),
        (said(source=replace(SHOP, limit=2)), "2 jobs of shop run, and no more may"),
        (said(worker=replace(WORKER, silent=1e6)), "no living worker takes sync of shop"),
        (said(last=replace(JOB, state=State.DEAD, dead_reason="permanent")), "its job 7 is dead (permanent)"),
    ],
)
def test_each_thing_that_is_in_the_way_is_said(text: str, part: str) -> None:
    assert part in text


def test_when_it_ticks_next_is_not_guessed_from_a_file_that_does_not_hold() -> None:
    assert "next tick" not in said(replace(KNOWN, digest="other"))


def test_a_tick_is_late_while_nobody_has_decided_it() -> None:
    assert late(PLAN, KNOWN) is None
    assert late(PLAN, replace(KNOWN, cursor_at=TICK - 3600)) == NOW - TICK
    assert late(PLAN, replace(KNOWN, cursor_at=TICK - 3600, resumed_at=NOW)) is None
    assert late(PLAN, replace(KNOWN, cursor_at=TICK - 3600, paused=True)) is None
    assert late(PLAN, replace(KNOWN, cursor_at=NEVER)) is None


def test_what_became_of_a_tick_is_found_in_the_range_that_has_it() -> None:
    missed = Tick("shop/orders", TICK - 3600, TickOutcome.COALESCED, 10, None, "another stands for it", NOW, "host:1:a")
    fired = Tick("shop/orders", TICK, TickOutcome.ENQUEUED, 1, 9, None, TICK + 2, "host:1:a")

    def at(hours: float) -> str:
        return decided([fired, missed], TICK + hours * 3600, PLAN, lambda at: f"{(at - TICK) / 3600:.0f} h")

    assert at(0.5) == "the tick of 0 h is enqueued, job 9 (by host:1:a, 2.0 s late)"
    assert at(-0.5).startswith("the tick of -1 h, one of 10 is coalesced: another stands for it")
    assert at(-9.5).startswith("the tick of -1 h, one of 10 is coalesced")
    assert at(-10.5) == "no tick of -10 h or before is remembered"


def test_the_policy_of_overlap_is_explained() -> None:
    for overlap in Overlap:
        assert f"(overlap: {overlap})" in said(
            plan=Plan(**{**PLAN.__dict__, "policy": Policy(overlap=overlap)}), running=JOB
        )
