"""Whoever waits says so: on the terminal, in the log, in a metric, with the time at which it ends."""

import time
from datetime import UTC, datetime

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from checkpoints import StreamId
from ingest.cli import show
from ingest.report import Outcome, Report

STREAM = StreamId("waits", "events")
WHY = "GET https://api.example.com/events: held back, as /events was answered 429"


def metric(name: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"source": STREAM.source, "stream": STREAM.stream})


@pytest.fixture
def report() -> Report:
    return Report(STREAM)


@pytest.mark.parametrize(("seconds", "lines"), [(0.5, 0), (75.0, 1)])
def test_a_wait_worth_a_line_is_one_line_with_stream_length_and_reason(seconds: float, lines: int) -> None:
    report = Report(STREAM)
    with capture_logs() as said:
        report.retrying(1, seconds, WHY)
    assert [(one["stream"], one["seconds"], one["reason"]) for one in said] == [("waits/events", 75.0, WHY)] * lines
    assert (report.waited, report.retries) == (seconds, 1)


def test_a_long_wait_says_when_it_ends(report: Report) -> None:
    with capture_logs() as logs:
        report.waiting(90.0, WHY)
    [line] = logs
    assert line["event"] == "waiting"
    end = datetime.fromisoformat(line["until"]).astimezone(UTC).timestamp()
    assert 0 < end - time.time() <= 90.0


def test_a_wait_is_shown_until_the_next_answer(report: Report) -> None:
    report.waiting(2.0, WHY)
    assert report.wait is not None
    assert show.line(report).endswith(f"; waiting until {report.wait.until}: {WHY}")
    assert (metric("ingest_source_waiting_until_timestamp_seconds") or 0.0) > time.time()
    report.requested(0.1)
    assert "waiting" not in show.line(report)
    assert metric("ingest_source_waiting_until_timestamp_seconds") == 0.0


def test_no_wait_outlasts_its_run(report: Report) -> None:
    report.waiting(2.0, WHY)
    report.end(Outcome.UNAVAILABLE, "later")
    assert report.wait is None
    assert metric("ingest_source_waiting_until_timestamp_seconds") == 0.0


def test_short_waits_are_counted_and_not_shown(report: Report) -> None:
    before = metric("ingest_source_waiting_seconds_total") or 0.0
    shown: list[Report] = []
    report.changed = shown.append
    with capture_logs() as logs:
        for _ in range(5):
            report.waiting(0.5, "`limits.rate`")
    assert (logs, shown, report.wait, report.waited) == ([], [], None, 2.5)
    assert (metric("ingest_source_waiting_seconds_total") or 0.0) - before == 2.5
