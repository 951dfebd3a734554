"""Who waits is told for how long, and why."""

import pytest
from structlog.testing import capture_logs

from checkpoints import StreamId
from ingest.report import Report

STREAM = StreamId("api", "events")
REASON = "GET http://api.example.com/events, attempt 1 of 8: 429"


@pytest.mark.parametrize(("seconds", "lines"), [(0.5, 0), (75.0, 1)])
def test_a_wait_worth_a_line_is_one_line_with_stream_length_and_reason(seconds: float, lines: int) -> None:
    report = Report(STREAM)
    with capture_logs() as said:
        report.retrying(1, seconds, REASON)
    assert [(one["stream"], one["seconds"], one["reason"]) for one in said] == [("api/events", 75.0, REASON)] * lines
    assert (report.waited, report.retries) == (seconds, 1)
