"""What was measured: every run of every contender, and their medians."""

import os
from collections import defaultdict
from statistics import median
from typing import NamedTuple

from tests.bench.measure import Usage


class Run(NamedTuple):
    """One run of one contender, over `records` records."""

    records: int
    wall: float  # seconds
    cpu: float  # seconds, of the client's processes
    peak: float  # MB, of its largest process
    load: float  # of the machine in the minute before the end, 1-minute average

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.wall

    @property
    def cpu_100k(self) -> float:
        """CPU seconds for 100,000 records."""
        return self.cpu / self.records * 1e5


class Results:
    def __init__(self) -> None:
        self.runs: dict[str, list[Run]] = defaultdict(list)
        self.numbers: dict[str, list[float]] = defaultdict(list)  # what is no run: latencies, in milliseconds
        self.not_run: dict[str, str] = {}  # contender → why

    def add(self, contender: str, records: int, *usages: Usage, wall: float | None = None) -> None:
        """`usages`: of its processes. `wall`: from their start to the last row, where that is not their end."""
        run = Run(
            records,
            max(usage.wall for usage in usages) if wall is None else wall,
            sum(usage.cpu for usage in usages),
            max(usage.peak for usage in usages),
            os.getloadavg()[0],
        )
        self.runs[contender].append(run)

    def rate(self, contender: str) -> float | None:
        return self._median(contender, "rate")

    def cpu_100k(self, contender: str) -> float | None:
        return self._median(contender, "cpu_100k")

    def peak(self, contender: str) -> float | None:
        return self._median(contender, "peak")

    def number(self, name: str) -> float | None:
        return median(self.numbers[name]) if self.numbers.get(name) else None

    def _median(self, contender: str, what: str) -> float | None:
        runs = self.runs.get(contender)
        return median(getattr(run, what) for run in runs) if runs else None
