"""The product's longest waits, shortened in a process of the tests: minutes show what takes hours otherwise.

Nothing else of it is changed. Leases and sessions last long enough for a loaded machine, and short enough that a frozen
process outlives them within one fault.
"""

import functools
from typing import Any

from ingest.cli import run as cli_run
from ingest.eventlog import kafka_subscription, sqlite
from ingest.run import Runner

LEASE_TTL = 6.0  # seconds, instead of 30
SESSION_MS = 6_000  # instead of 45,000; no broker takes less (group.min.session.timeout.ms)
HEARTBEAT_MS = 1_000


def hurry() -> None:
    _replace(cli_run, "Runner", functools.partial(Runner, lease_ttl=LEASE_TTL))
    _replace(sqlite, "SqliteLog", functools.partial(sqlite.SqliteLog, lease_ttl=LEASE_TTL))
    _replace(kafka_subscription, "SESSION_MS", SESSION_MS)
    _replace(kafka_subscription, "HEARTBEAT_MS", HEARTBEAT_MS)


def _replace(module: Any, name: str, value: Any) -> None:
    assert hasattr(module, name), f"{module.__name__} has no {name} any more"
    setattr(module, name, value)
