"""From the moment at which a record may be fetched to the moment at which anyone can read its row.

The fixture API says when it made each record available. A reader of its own looks again and again at how far the
store's offsets are; a record is visible when its offset is below. Both clocks are this machine's.
"""

import asyncio
import time
from statistics import quantiles
from typing import NamedTuple

import asyncpg

from tests.bench.product import EVENTS, Place

LOOK_EVERY = 0.003  # seconds; what is reported is late by up to this much
WARM_UP = 8.0  # seconds of records that do not count: the processes start, and catch up
LATE = 10.0  # seconds after the last record until rows that are still missing are given up


class Latency(NamedTuple):
    """Milliseconds."""

    rows: int
    p50: float
    p99: float


class Seen(NamedTuple):
    """At `at` (seconds since 1970) every record of the partition below `offset` was visible."""

    at: float
    offset: int


async def measure(place: Place, rate: int, seconds: float) -> Latency:
    """`place.api` is in live mode and makes `rate` records a second available for `seconds`."""
    assert place.store_url is not None
    consumer, poller = place.start("consume", "warehouse"), place.start("run", *EVENTS)
    connection = await asyncpg.connect(place.store_url)
    try:
        seen = await _watch(connection, place.api.started + seconds + LATE, place.api.records)
        rows = await connection.fetch('SELECT event_id, partition, "offset" FROM ingest.events ORDER BY 2, 3')
    finally:
        await connection.close()
        poller.terminate()
        consumer.terminate()
        await asyncio.gather(poller.wait(60), consumer.wait(60))
    waits = []
    looks = {partition: iter(found) for partition, found in seen.items()}
    current = {partition: next(found) for partition, found in looks.items()}
    for event_id, partition, offset in rows:
        while current[partition].offset <= offset:
            current[partition] = next(looks[partition])
        available = place.api.started + (_number(event_id) + 1) / rate
        if available >= place.api.started + WARM_UP:
            waits.append(1000 * (current[partition].at - available))
    cuts = quantiles(waits, n=100)
    return Latency(len(waits), cuts[49], cuts[98])


async def _watch(connection: "asyncpg.Connection", until: float, records: int) -> dict[int, list[Seen]]:
    """Partition → what was seen of it, until all of `records` are visible or it is `until`."""
    look = await connection.prepare("SELECT partition, next_offset FROM ingest.offsets WHERE consumer = 'warehouse'")
    seen: dict[int, list[Seen]] = {}
    reached: dict[int, int] = {}
    while sum(reached.values()) < records and time.time() < until:
        rows = await look.fetch()
        now = time.time()
        for partition, offset in rows:
            if reached.get(partition) != offset:
                reached[partition] = offset
                seen.setdefault(partition, []).append(Seen(now, offset))
        await asyncio.sleep(LOOK_EVERY)
    return seen


def _number(event_id: str) -> int:
    """Of the record: `bench:events:evt_000000000007@~…` is 7."""
    return int(event_id.partition("evt_")[2].partition("@")[0])
