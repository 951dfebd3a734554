"""What must be reached and what is aimed at: ratios of medians of neighbouring runs, and a few absolute numbers.

Beside a peer, whole processes are compared. Beside a limit (COPY, Kafka's own producer), whose start is left out, and
beside itself, the product's start is left out too: what the same command takes for ten records.
"""

from collections.abc import Callable
from typing import NamedTuple

from tests.bench import contenders as c
from tests.bench.results import Results

Measure = Callable[[Results], float | None]


class Target(NamedTuple):
    """`value`: what was reached, None where it was not measured. `at_most`: smaller is better."""

    name: str
    value: Measure
    must: float
    aim: float
    at_most: bool = False

    def verdict(self, results: Results) -> str:
        value = self.value(results)
        if value is None:
            return "not run"
        if self._reached(value, self.aim):
            return "aim"
        return "must" if self._reached(value, self.must) else "missed"

    def _reached(self, value: float, wanted: float) -> bool:
        return value <= wanted if self.at_most else value >= wanted


def faster(ours: str, theirs: str, *, start: str | None = None, their_start: str | None = None) -> Measure:
    """How many times their records a second ours are."""
    return lambda results: _ratio(results.wall(theirs, start=their_start), results.wall(ours, start=start))


def thriftier(ours: str, theirs: str) -> Measure:
    """How many times less CPU we take for a record."""
    return lambda results: _ratio(results.cpu(theirs), results.cpu(ours))


def growth(large: str, small: str) -> Measure:
    return lambda results: _ratio(results.peak(large), results.peak(small))


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one / other


def beside_fresh(contender: str) -> Measure:
    return faster(contender, c.CONSUME, start=c.CONSUME_NOTHING, their_start=c.CONSUME_NOTHING)


def beside_one(contender: str) -> Measure:
    return faster(contender, c.SLOW_ONE, start=c.SLOW_NOTHING, their_start=c.SLOW_NOTHING)


BESIDE_THE_FLOOR = ((c.END_TO_END, c.FLOOR_END_TO_END), (c.POLL, c.FLOOR_POLL), (c.CONSUME, c.FLOOR_CONSUME))
"""What the guarantees cost, and what is left to be gained with these libraries: no target."""

TARGETS = (
    Target("end to end / dlt merge upsert", faster(c.END_TO_END, c.DLT_POSTGRES), 5, 8),
    Target("end to end / Singer", faster(c.END_TO_END, c.SINGER), 12, 20),
    Target("end to end / COPY alone", faster(c.END_TO_END, c.COPY_BESIDE_ALL, start=c.BOTH_NOTHING), 0.30, 0.45),
    Target("client CPU a record: dlt / end to end", thriftier(c.END_TO_END, c.DLT_POSTGRES), 7, 10),
    Target("poller / producer-perf-test", faster(c.POLL, c.PRODUCER_PERF, start=c.POLL_NOTHING), 0.40, 0.65),
    Target("poller / airbyte-cdk read", faster(c.POLL, c.AIRBYTE), 8, 12),
    Target("poller CPU, s/100k", lambda r: r.cpu(c.POLL, start=c.POLL_NOTHING), 0.9, 0.6, at_most=True),
    Target("consumer / COPY alone", faster(c.CONSUME, c.COPY, start=c.CONSUME_NOTHING), 0.45, 0.62),
    Target("consumer / Debezium JDBC sink", faster(c.CONSUME, c.CONNECT, start=c.CONSUME_NOTHING), 1.8, 2.5),
    Target("replay of duplicates / fresh", beside_fresh(c.REPLAY), 1.0, 1.5),
    Target("a duplicate in every batch / fresh", beside_fresh(c.SOME_DUPLICATES), 0.8, 0.8),
    Target("poller, RSS at 5 N / at N", growth(c.POLL_LARGE, c.POLL_SMALL), 1.10, 1.03, at_most=True),
    Target("consumer, RSS at 5 N / at N", growth(c.CONSUME_LARGE, c.CONSUME_SMALL), 1.10, 1.03, at_most=True),
    Target("poller, RSS in MB at 5 N", lambda r: r.peak(c.POLL_LARGE), 80, 80, at_most=True),
    Target("consumer, RSS in MB at 5 N", lambda r: r.peak(c.CONSUME_LARGE), 140, 140, at_most=True),
    Target("latency p50, ms", lambda r: r.number(c.P50), 80, 45, at_most=True),
    Target("latency p99, ms", lambda r: r.number(c.P99), 300, 100, at_most=True),
    Target("eight streams / one, at 50 ms", beside_one(c.SLOW_EIGHT), 4, 7),
    Target("embedded / dlt to DuckDB", faster(c.EMBEDDED, c.DLT_DUCKDB), 3, 5),
    Target("jobs on SQLite / Huey with fsync", faster(c.QUEUE_SQLITE, c.HUEY), 25, 60),
    Target("jobs on Postgres / Procrastinate", faster(c.QUEUE_POSTGRES, c.PROCRASTINATE), 30, 60),
    Target("summary with 500 k jobs done, SQLite, ms", lambda r: r.number(c.SUMMARY_SQLITE), 50, 50, at_most=True),
    Target("summary with 500 k jobs done, Postgres, ms", lambda r: r.number(c.SUMMARY_POSTGRES), 50, 50, at_most=True),
)
