"""Which faults come when: drawn from a seed, and the same every time. Pure.

Faults of one target never overlap, as the second would undo the first; those of different targets do.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

Engine = Literal["sqlite", "kafka"]

POLLER_POINTS = (
    "before_fetch",
    "after_parse",
    "before_publish",
    "some_acknowledgements",
    "all_acknowledgements",
    "inside_save",
    "after_save",
)
CONSUMER_POINTS = (
    "after_fetch",
    "before_write",
    "mid_write",
    "before_commit",
    "after_commit",
    "before_offset_commit",
    "after_offset_commit",
)
DEADLY = "mid_write"
"""Half of the batch is left out here, so whoever comes to it must not live on to commit."""
WARM_UP = 5.0  # seconds without a fault
WAITS = 15.0  # seconds that a fault waits for the one before it on its target; else it is left out
LONG_RUN = 600.0  # seconds; in a run of this length some faults last long enough to exhaust every patience
LONG, TIMES_LONGER = 0.06, 10.0  # their share, and how much longer


class Fault(NamedTuple):
    """`target` is what it strikes; `which` and `detail` say more, by kind; it lasts `seconds`."""

    n: int
    at: float
    """Seconds since the start."""
    kind: str
    target: str
    seconds: float
    which: float = 0.0
    """In [0, 1): which of several."""
    detail: str = ""


class Kind(NamedTuple):
    """How often, against the others; on what; how long, in seconds, from and to."""

    weight: float
    target: str
    shortest: float
    longest: float
    detail: Callable[[random.Random], str] = lambda chance: ""


def _one_of(*names: str) -> Callable[[random.Random], str]:
    return lambda chance: chance.choice(names)


def _doom(points: Sequence[str]) -> Callable[[random.Random], str]:
    """A failpoint, the number of the pass, and what it does to the process."""

    def draw(chance: random.Random) -> str:
        point, nth = chance.choice(points), chance.randint(1, 6)
        signals = ["SIGKILL"] if point == DEADLY else ["SIGKILL", "SIGKILL", "SIGSTOP"]
        return f"{point} {nth} {chance.choice(signals)}"

    return draw


PAST = 9.0  # seconds: longer than the shortened lease and session (tests/chaos/haste.py)

COMMON: Mapping[str, Kind] = {
    "poller_kill": Kind(3, "pollers", 0, 6),
    "poller_term": Kind(2, "pollers", 0, 4),
    "poller_freeze": Kind(2, "pollers", 0.5, 3),
    "poller_zombie": Kind(2, "pollers", PAST, 14),
    "poller_failpoint": Kind(4, "pollers", PAST, 12, _doom(POLLER_POINTS)),
    "consumer_kill": Kind(3, "consumers", 0, 6),
    "consumer_term": Kind(2, "consumers", 0, 4),
    "consumer_freeze": Kind(2, "consumers", 0.5, 3),
    "consumer_zombie": Kind(2, "consumers", PAST, 14),
    "consumer_failpoint": Kind(4, "consumers", PAST, 12, _doom(CONSUMER_POINTS)),
    "everyone_kill": Kind(1, "everyone", 0, 3),
    "api_errors": Kind(2, "api", 1, 8),
    "api_slow": Kind(1, "api", 2, 8),
    "api_gone": Kind(1, "api", 1, 8, _one_of("cut", "silent", "deaf")),
}
SQLITE: Mapping[str, Kind] = {
    "file_lock": Kind(3, "file", 0.5, 8),
    "file_full": Kind(2, "file", 2, 8),
}
PAIRS = ("poller-kafka", "consumer-kafka", "poller-postgres", "consumer-postgres")
KAFKA: Mapping[str, Kind] = {
    "scale_consumers": Kind(2, "consumers", 3, 12, _one_of("1", "2", "4", "5")),
    "broker_kill": Kind(3, "brokers", 1, 15),
    "broker_freeze": Kind(2, "brokers", 2, 20),
    "broker_stop": Kind(2, "brokers", 1, 10),
    "brokers_two_killed": Kind(1, "brokers", 3, 15),
    "brokers_two_frozen": Kind(1, "brokers", 3, 20),
    "postgres_restart": Kind(3, "postgres", 0.5, 5, _one_of("fast", "immediate")),
    "postgres_kill": Kind(2, "postgres", 0.5, 8),
    "postgres_freeze": Kind(2, "postgres", 1, 12),
    "postgres_terminate": Kind(3, "postgres", 0, 0),
    **{
        f"net_{mode}": Kind(weight, "net", 1, longest, _one_of(*PAIRS))
        for mode, weight, longest in (("cut", 2, 8), ("delay", 1, 10), ("silent", 2, 15), ("deaf", 2, 15))
    },
}


def kinds(engine: Engine) -> Mapping[str, Kind]:
    return {**COMMON, **(SQLITE if engine == "sqlite" else KAFKA)}


def draw(seed: int, seconds: float, engine: Engine, *, without: Sequence[str] = ()) -> list[Fault]:
    """Faults that begin and heal within `seconds`; one begins every few seconds. `without`: kinds left out."""
    chance = random.Random(seed)
    table = {name: kind for name, kind in kinds(engine).items() if name not in without}
    names, weights = [*table], [kind.weight for kind in table.values()]
    busy: dict[str, float] = {}  # target → until when
    faults: list[Fault] = []
    at = WARM_UP
    while True:
        at += chance.uniform(0.5, 5.0 if engine == "sqlite" else 8.0)
        if at >= seconds:
            return sorted(faults, key=lambda fault: fault.at)
        name = chance.choices(names, weights)[0]
        kind = table[name]
        lasts = chance.uniform(kind.shortest, kind.longest)
        which, detail = chance.random(), kind.detail(chance)
        if seconds >= LONG_RUN and chance.random() < LONG:
            lasts *= TIMES_LONGER
        begins = max(at, *(busy.get(target, 0.0) for target in struck(kind.target)))
        if begins - at < WAITS and begins + lasts < seconds:
            faults.append(Fault(len(faults), begins, name, kind.target, lasts, which, detail))
            busy.update(dict.fromkeys(struck(kind.target), begins + lasts + 1.0))


def struck(target: str) -> Sequence[str]:
    """What a fault has for itself while it lasts."""
    return ("consumers", "pollers") if target == "everyone" else (target,)
