"""Notices a member of a Kafka group that makes no progress any more, which aiokafka itself never says.

A broker that is away, a coordinator's task that ended, a membership that was not renewed: `getmany` returns nothing, or
does not return (aiokafka issues 1154, 575, 727). The remedy is always the same, a new consumer object; so the watchdog
only says that it is time. Time is counted in its own ticks: a process that was frozen has not been without progress.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer

EMPTYING_POLLS = 5
"""Polls between two looks that took all that had arrived: a record that was there to fetch would have come by then."""


@dataclass(frozen=True)
class Times:
    """Of a membership; all in seconds. The session and the rebalance are the group's, `poll_interval` without a poll
    makes the member leave."""

    session: float = 45.0
    heartbeat: float = 3.0
    rebalance: float = 60.0
    poll_interval: float = 300.0
    revoke_wait: float = 20.0  # that a revocation waits for the batch that is being written; well below `rebalance`
    metadata_age: float = 30.0  # after which new partitions are seen
    stalled: float = 60.0  # that a poll may take
    look_every: float = 30.0  # between two looks at where the partitions end, and whether it is still the same topic

    @property
    def unassigned(self) -> float:
        """That a member may be without an assignment: another one may use all of a rebalance, and then fail."""
        return 2 * self.rebalance


class Look(NamedTuple):
    """Where the reader and the log stood. `stands` and `ends`: partition → offset; `answered`: partition → when a fetch
    last had an answer for it, None: never."""

    stands: Mapping[int, int]
    ends: Mapping[int, int]
    answered: Mapping[int, int | None]
    emptying: int  # how many polls had taken all that had arrived


class Watchdog:
    def __init__(self, consumer: AIOKafkaConsumer, times: Times) -> None:
        self._consumer = consumer
        self._times = times
        self._assigned = False
        self._without_assignment = 0.0
        self._without_answer = 0.0  # of the polls under way
        self._last: Look | None = None

    def assigned(self) -> None:
        self._assigned, self._last = True, None

    def revoked(self) -> None:
        self._assigned, self._without_assignment, self._last = False, 0.0, None

    def polled(self) -> None:
        """A poll came back, with records or without."""
        self._without_answer = 0.0

    def tick(self, seconds: float, *, polling: bool) -> str | None:
        """What is wrong, after so many seconds more; `polling`: a poll is under way."""
        if _ended(self._consumer._coordinator, "_coordination_task"):
            return "the task that keeps the membership has ended"
        if _ended(self._consumer._fetcher, "_fetch_task"):
            return "the task that fetches has ended"
        if not self._assigned:
            self._without_assignment += seconds
            if self._without_assignment > self._times.unassigned:
                return f"no assignment for {self._without_assignment:.0f} s"
            return None
        self._without_answer = self._without_answer + seconds if polling else 0.0
        if self._without_answer > self._times.stalled:
            return f"a poll has not come back for {self._without_answer:.0f} s"
        return None

    def looked(self, look: Look) -> str | None:
        """What is wrong, compared with the look before: there were records to read, and none of them was fetched. Where
        fetches are answered, only others come first: an answer holds a few partitions, and the rest wait their turn."""
        last, self._last = self._last, look
        if last is None or look.emptying - last.emptying < EMPTYING_POLLS:
            return None
        for partition, stands in look.stands.items():
            asked = last.answered.get(partition) != look.answered[partition]
            if not asked and last.stands.get(partition) == stands < last.ends.get(partition, 0):
                return f"partition {partition} stands at {stands}, its records up to {last.ends[partition]} do not come"
        return None


def _ended(owner: object, task: str) -> bool:
    return bool(getattr(owner, task).done())
