"""Whether a lease is still the newest, in Postgres: its row is locked in the transaction of what is written."""

from typing import TYPE_CHECKING

from checkpoints import Lease, superseded
from ingest.errors import Superseded

if TYPE_CHECKING:
    from ingest.postgres import Connection

HELD = "SELECT fence FROM ingest.leases WHERE name = $1 AND holder = $2 AND fence = $3 FOR NO KEY UPDATE"
"""A row: the lease has no newer holder, and gets none before this transaction ends."""


def owner(lease: Lease) -> tuple[str, str, int]:
    return lease.name, lease.holder, lease.fence


async def superseded_by(connection: "Connection", lease: Lease, what: str) -> Superseded:
    row = await connection.fetchrow("SELECT holder, fence FROM ingest.leases WHERE name = $1", lease.name)
    return superseded(lease, what, None if row is None else (row["holder"], row["fence"]))
