"""Short chaos runs: a fixed list of faults against running pollers and consumers, one behind the other's recovery.

The random ones of `make chaos` use the same driver and the same checker. Nothing here depends on how fast the machine
is: a fault is awaited until it has struck, and rows until they flow again.
"""

from pathlib import Path

import pytest

from tests.chaos.run import Floor, Result, run
from tests.chaos.schedule import Engine, Fault, kinds

PATIENCE = 300.0  # seconds to drain; it takes two
PAST_LEASE = 8.0  # seconds, of the shortened one

# Kind, seconds, detail, which of several.
SQLITE = [
    ("poller_kill", 0.2, "", 0.0),
    ("consumer_failpoint", 0.2, "before_commit 2 SIGKILL", 0.0),
    ("poller_failpoint", PAST_LEASE, "before_publish 2 SIGSTOP", 0.0),
    ("file_lock", 1.0, "", 0.0),
    ("consumer_zombie", PAST_LEASE, "", 0.0),
    ("api_errors", 1.0, "", 0.0),
    ("everyone_kill", 0.2, "", 0.0),
]
KAFKA = [
    ("poller_failpoint", 0.2, "some_acknowledgements 2 SIGKILL", 0.0),
    ("consumer_failpoint", 0.2, "after_commit 2 SIGKILL", 0.0),
    ("broker_kill", 2.0, "", 0.0),
    ("postgres_restart", 0.5, "immediate", 0.0),
    ("net_deaf", 1.0, "poller-postgres", 0.0),
    ("net_cut", 1.0, "consumer-kafka", 0.0),
    ("postgres_terminate", 0.0, "", 0.9),
    ("everyone_kill", 0.2, "", 0.0),
]


@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
async def test_everything_arrives_once_through_a_list_of_faults(engine: Engine, tmp_path: Path) -> None:
    result = await short(engine, tmp_path)
    assert result.complaints == [], f"{result.summary}; everything is in {result.folder}"


async def short(engine: Engine, folder: Path) -> Result:
    listed = SQLITE if engine == "sqlite" else KAFKA
    targets = kinds(engine)
    faults = [
        Fault(n, 0.0, kind, targets[kind].target, seconds, which, detail)
        for n, (kind, seconds, detail, which) in enumerate(listed)
    ]
    floor = Floor(records=500, faults=len(faults), kills=3, recoveries=len(faults))
    return await run(folder, engine, 1, faults, floor, one_by_one=True, drain=PATIENCE)
