"""What must be reached and what is aimed at: ratios of medians of neighbouring runs, and a few absolute numbers."""

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
        return "must" if self._reached(value, self.must) else "MISSED"

    def _reached(self, value: float, wanted: float) -> bool:
        return value <= wanted if self.at_most else value >= wanted


def faster(ours: str, theirs: str) -> Measure:
    """How many times their records a second ours are."""
    return lambda results: _ratio(results.rate(ours), results.rate(theirs))


def thriftier(ours: str, theirs: str) -> Measure:
    """How many times less CPU we take for a record."""
    return lambda results: _ratio(results.cpu_100k(theirs), results.cpu_100k(ours))


def growth(large: str, small: str) -> Measure:
    return lambda results: _ratio(results.peak(large), results.peak(small))


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one / other


TARGETS = (
    Target("end to end / dlt merge upsert", faster(c.END_TO_END, c.DLT_POSTGRES), 5, 8),
    Target("end to end / Singer tap | target", faster(c.END_TO_END, c.SINGER), 12, 20),
    Target("end to end / COPY alone", faster(c.END_TO_END, c.COPY), 0.30, 0.45),
    Target("client CPU a record: dlt / end to end", thriftier(c.END_TO_END, c.DLT_POSTGRES), 7, 10),
    Target("poller / producer-perf-test", faster(c.POLL, c.PRODUCER_PERF), 0.40, 0.65),
    Target("poller / airbyte-cdk read", faster(c.POLL, c.AIRBYTE), 8, 12),
    Target("poller CPU, s per 100 k records", lambda r: r.cpu_100k(c.POLL), 0.9, 0.6, at_most=True),
    Target("consumer / COPY alone", faster(c.CONSUME, c.COPY), 0.45, 0.62),
    Target("consumer / Debezium JDBC sink", faster(c.CONSUME, c.CONNECT), 1.8, 2.5),
    Target("replay of duplicates / fresh", faster(c.REPLAY, c.CONSUME), 1.0, 1.5),
    Target("a duplicate in every batch / fresh", faster(c.SOME_DUPLICATES, c.CONSUME), 0.8, 1.0),
    Target("poller, RSS at 1 M / at 200 k", growth(c.POLL_LARGE, c.POLL_SMALL), 1.10, 1.03, at_most=True),
    Target("consumer, RSS at 1 M / at 200 k", growth(c.CONSUME_LARGE, c.CONSUME_SMALL), 1.10, 1.03, at_most=True),
    Target("poller, RSS in MB at 1 M", lambda r: r.peak(c.POLL_LARGE), 80, 80, at_most=True),
    Target("consumer, RSS in MB at 1 M", lambda r: r.peak(c.CONSUME_LARGE), 140, 140, at_most=True),
    Target("latency p50, ms", lambda r: r.number(c.P50), 80, 45, at_most=True),
    Target("latency p99, ms", lambda r: r.number(c.P99), 300, 100, at_most=True),
    Target("embedded / dlt to DuckDB", faster(c.EMBEDDED, c.DLT_DUCKDB), 3, 5),
)
