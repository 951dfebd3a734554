"""The product's longest waits, shortened in a process of the tests: minutes show what takes hours otherwise.

Nothing else of it is changed. Leases and sessions last long enough for a loaded machine, and short enough that a frozen
process outlives them within one fault.
"""

import functools
from typing import Any

from ingest.cli import streams, working
from ingest.eventlog import kafka, sqlite
from ingest.eventlog.kafka.watchdog import Times
from ingest.jobs.worker import Times as WorkerTimes
from ingest.run import Runner

LEASE_TTL = 6.0  # seconds, instead of 30
TIMES = Times(session=6.0, heartbeat=1.0)  # instead of 45 and 3; no broker takes less unless it is told to

WORKER = WorkerTimes(poll=0.2, stop_grace=0.2, rescue_every=0.2)  # instead of 2, 18 and 5


def hurry() -> None:
    _replace(working, "TIMES", WORKER)
    _replace(streams, "Runner", functools.partial(Runner, lease_ttl=LEASE_TTL))
    _replace(sqlite, "SqliteLog", functools.partial(sqlite.SqliteLog, lease_ttl=LEASE_TTL))
    _replace(kafka, "KafkaLog", functools.partial(kafka.KafkaLog, times=TIMES))


def _replace(module: Any, name: str, value: Any) -> None:
    assert hasattr(module, name), f"{module.__name__} has no {name} any more"
    setattr(module, name, value)
