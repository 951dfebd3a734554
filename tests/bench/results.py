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

    def wall(self, contender: str, *, start: str | None = None) -> float | None:
        """Seconds for 100,000 records, without those of `start`: runs of the same command over next to nothing.
        None where it was not measured, or where the start is all that can be seen."""
        return self._for_100k("wall", contender, start)

    def cpu(self, contender: str, *, start: str | None = None) -> float | None:
        """As `wall`."""
        return self._for_100k("cpu", contender, start)

    def peak(self, contender: str) -> float | None:
        return self._median("peak", contender)

    def number(self, name: str) -> float | None:
        return median(self.numbers[name]) if self.numbers.get(name) else None

    def _for_100k(self, what: str, contender: str, start: str | None) -> float | None:
        used, less = self._median(what, contender), 0.0 if start is None else self._median(what, start)
        if used is None or less is None or used <= less:
            return None
        return (used - less) / self.runs[contender][0].records * 1e5

    def _median(self, what: str, contender: str) -> float | None:
        runs = self.runs.get(contender)
        return median(getattr(run, what) for run in runs) if runs else None
