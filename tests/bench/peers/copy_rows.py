"""COPY alone: rows as the product stores them, from memory into its own table, 5000 a transaction. A limit, not a peer.

    copy_rows.py URL-OF-THE-API DSN ROWS      prints the seconds that it took, without its own start
"""

import asyncio
import io
import sys
import time
from urllib.request import urlopen

import asyncpg
import msgspec

BATCH = 5000
COLUMNS = ["event_id", "source", "stream", "key", "type", "topic", "partition", "offset", "occurred_at", "payload"]
LINE = (
    b"bench:events:evt_%012d@~%016x\tbench\tevents\tevt_%012d\tbench.events\tbench\t%d\t%d\t2023-11-14T22:13:20Z\t%b\n"
)


def payloads_of(api: str) -> list[bytes]:
    """A page of records, escaped for COPY."""
    with urlopen(f"{api}/v1/events?limit=1000") as answer:
        page = msgspec.json.decode(answer.read(), type=dict[str, msgspec.Raw])["data"]
    return [bytes(raw).replace(b"\\", b"\\\\") for raw in msgspec.json.decode(page, type=list[msgspec.Raw])]


async def main(payloads: list[bytes], dsn: str, rows: int) -> None:
    connection = await asyncpg.connect(dsn)
    started = time.perf_counter()
    for first in range(0, rows, BATCH):
        lines = [
            LINE % (i, i, i, i % 4, i // 4, payloads[i % len(payloads)]) for i in range(first, min(first + BATCH, rows))
        ]
        await connection.copy_to_table(
            "events", schema_name="ingest", columns=COLUMNS, source=io.BytesIO(b"".join(lines))
        )
    print("seconds", time.perf_counter() - started)
    await connection.close()


asyncio.run(main(payloads_of(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
