"""What the configuration says of when becomes a plan: its ticks, its policy, the job that a tick makes."""

from zoneinfo import ZoneInfo

from checkpoints import StreamId
from checkpoints.jobs import Overlap
from ingest.cli.forever import owned
from ingest.config.loader import parse
from ingest.jobs.cron import Cron
from ingest.jobs.firing import Plan, Policy
from ingest.jobs.plans import of_sources
from ingest.jobs.ticks import Interval

FILE = """version: 1
sources:
  billing:
    base_url: https://x
    defaults: {path: /x, records: $, cron: 0 6 * * *, timezone: Europe/Berlin, attempts: 7}
    streams:
      daily: {dst: {fold: last}, catch_up: all, overlap: allow, jitter: 10m}
      often: {every: 90s, catch_up_window: 10m}
      below: {every: {interval: 1d, jitter: 1h}}
      other: {every: {cron: 0 7 * * *}}
      standing: {every: 50ms}
"""


def plans() -> dict[str, Plan]:
    return {plan.id: plan for plan in of_sources(parse(FILE).config.sources)}


def test_every_stream_that_has_ticks_has_a_plan() -> None:
    found = plans()
    assert {id: plan.spec for id, plan in found.items()} == {
        "billing/daily": "0 6 * * * Europe/Berlin (dst: shift, last)",
        "billing/often": "every 90s",
        "billing/below": "every 1d",
        "billing/other": "0 7 * * * Europe/Berlin",
    }
    assert [plan.at_once for plan in found.values()] == [False, True, True, False]
    daily = found["billing/daily"]
    assert isinstance(daily.timing, Cron)
    assert (daily.timing.zone, daily.timing.gap, daily.timing.fold) == (ZoneInfo("Europe/Berlin"), "shift", "last")
    assert daily.policy == Policy("all", None, 24, 600.0, Overlap.ALLOW)
    assert (daily.job.kind, daily.job.source, daily.job.queue, daily.job.max_attempts) == ("sync", "billing", "sync", 7)
    assert daily.job.payload == b'{"stream":"daily"}'
    often, below = found["billing/often"], found["billing/below"]
    assert isinstance(often.timing, Interval) and often.timing.seconds == 90
    assert (often.policy.window, below.policy.jitter) == (600.0, 3600.0)


def test_what_decides_when_it_ticks_is_in_the_digest_and_nothing_else() -> None:
    before = plans()["billing/daily"].declared.digest
    changed = {
        "6 * * *": FILE.replace("0 6", "0 5"),
        "zone": FILE.replace("Berlin", "London"),
        "dst": FILE.replace("fold: last", "fold: both"),
    }
    for text in changed.values():
        [plan] = [plan for plan in of_sources(parse(text).config.sources) if plan.id == "billing/daily"]
        assert plan.declared.digest != before
    same = FILE.replace("jitter: 10m", "jitter: 1m").replace("catch_up: all, overlap: allow", "catch_up: none")
    [plan] = [plan for plan in of_sources(parse(same).config.sources) if plan.id == "billing/daily"]
    assert plan.declared.digest == before


def test_a_process_owns_the_schedules_of_sources_that_it_runs_as_a_whole() -> None:
    text = """
version: 1
sources:
  a: {base_url: https://a.example, defaults: {path: /x, records: $}, streams: {one: {}, two: {}, often: {every: 1s}}}
  b: {base_url: https://b.example, streams: {one: {path: /x, records: $}}}
tasks: {report: {call: "work:report", every: 1h}}
"""
    config = parse(text).config
    a, b = [StreamId("a", "one"), StreamId("a", "two")], [StreamId("b", "one")]
    assert owned(config, [*a, *b], ["report"]) == ["a/", "b/", "task:"]
    assert owned(config, [*a[:1], *b], []) == ["b/"]
