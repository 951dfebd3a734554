"""The floor: what the same libraries do for the same rows when everything but the work is left out.

By hand, one stream, no retry, no lease, no dead letters, nothing to configure: how near the product
comes to it is what its guarantees cost.

    floor.py poll API BROKERS TOPIC DSN
    floor.py consume BROKERS TOPIC DSN RECORDS
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from hashlib import blake2b

import asyncpg
import httpx
import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatch
from murmurhash2 import murmurhash2

PARTITIONS = 4
BATCH = 5000  # records in a transaction
COLUMNS = ["event_id", "source", "stream", "key", "type", "topic", "partition", "offset", "occurred_at", "payload"]
SHARED = [
    ("ce_specversion", b"1.0"),
    ("ce_source", b"/bench/events"),
    ("ce_type", b"bench.events"),
    ("ce_ingestfence", b"1"),
    ("content-type", b"application/json"),
]
TIME = b"2023-11-14T22:13:20Z"


class Page(msgspec.Struct):
    data: list[msgspec.Raw]
    has_more: bool


class Wanted(msgspec.Struct):
    id: str
    created: int


page_of = msgspec.json.Decoder(Page).decode
wanted_of = msgspec.json.Decoder(Wanted).decode


def batches(records: list[msgspec.Raw]) -> tuple[dict[int, BatchBuilder], str]:
    """A page as one batch per partition, and the id of its last record."""
    built = {n: BatchBuilder(1 << 20, DefaultRecordBatch.CODEC_ZSTD) for n in range(PARTITIONS)}
    now = time.time_ns() // 1_000_000
    last = ""
    for raw in records:
        value, last = bytes(raw), wanted_of(raw).id
        key = last.encode()
        event_id = b"bench:events:%b@~%b" % (key, blake2b(value, digest_size=8).hexdigest().encode())
        headers = [*SHARED, ("ce_id", event_id), ("ce_subject", key), ("ce_time", TIME)]
        partition = (murmurhash2(key, 0x9747B28C) & 0x7FFFFFFF) % PARTITIONS
        built[partition].append(timestamp=now, key=key, value=value, headers=headers)
    return {n: batch for n, batch in built.items() if batch.record_count()}, last


async def poll(api: str, brokers: str, topic: str, dsn: str) -> None:
    """fetch the next page while the one before is being published; save the cursor after the acknowledgements"""
    database = await asyncpg.connect(dsn)
    await database.execute("CREATE TABLE floor (topic text PRIMARY KEY, cursor text)")
    save = "INSERT INTO floor VALUES ($1, $2) ON CONFLICT (topic) DO UPDATE SET cursor = excluded.cursor"
    producer = AIOKafkaProducer(bootstrap_servers=brokers, acks="all", enable_idempotence=True)
    await producer.start()
    async with httpx.AsyncClient(base_url=api) as client:

        async def fetch(after: str) -> Page:
            params = {"limit": "1000", **({"starting_after": after} if after else {})}
            return page_of((await client.get("/v1/events", params=params)).content)

        fetching = asyncio.create_task(fetch(""))
        more = True
        while more:
            page = await fetching
            more = page.has_more
            built, last = batches(page.data)
            if more:
                fetching = asyncio.create_task(fetch(last))
            sent = [await producer.send_batch(batch, topic, partition=n) for n, batch in built.items()]
            await asyncio.gather(*sent)
            await database.execute(save, topic, last)
    await producer.stop()
    await database.close()


def lines(records: list) -> list[bytes]:  # type: ignore[type-arg]  # aiokafka has no types
    found = []
    for record in records:
        headers = dict(record.headers)
        place = b"%b\tbench\tevents\t%b\tbench.events\t%b\t%d\t%d\t%b\t" % (
            headers["ce_id"], record.key, record.topic.encode(), record.partition, record.offset, headers["ce_time"],
        )  # fmt: skip
        found.append(place + record.value.replace(b"\\", b"\\\\") + b"\n")
    return found


async def chunks(rows: list[bytes]) -> AsyncIterator[bytes]:
    for first in range(0, len(rows), 500):
        yield b"".join(rows[first : first + 500])


async def consume(brokers: str, topic: str, dsn: str, wanted: int) -> None:
    """rows and offsets in one transaction, the next batch read meanwhile"""
    database = await asyncpg.connect(dsn)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=brokers, group_id=f"floor-{time.time_ns()}", auto_offset_reset="earliest",
        enable_auto_commit=False, max_partition_fetch_bytes=1 << 20,
    )  # fmt: skip
    await consumer.start()
    done = 0
    offset = """INSERT INTO ingest.offsets (consumer, topic, partition, next_offset) VALUES ('floor', $1, $2, $3)
        ON CONFLICT (consumer, topic, topic_id, partition) DO UPDATE SET next_offset = excluded.next_offset"""
    reading = asyncio.create_task(consumer.getmany(timeout_ms=500, max_records=BATCH))
    while done < wanted:
        found = await reading
        reading = asyncio.create_task(consumer.getmany(timeout_ms=500, max_records=BATCH))
        records = [record for part in found.values() for record in part]
        if records:
            async with database.transaction():
                for tp, part in found.items():
                    await database.execute(offset, topic, tp.partition, part[-1].offset + 1)
                source = chunks(lines(records))
                await database.copy_to_table("events", schema_name="ingest", columns=COLUMNS, source=source)
            await consumer.commit({tp: part[-1].offset + 1 for tp, part in found.items()})
            done += len(records)
    await reading  # aiokafka's fetch must not be cancelled
    await consumer.stop()
    await database.close()


verb, *arguments = sys.argv[1:]
if verb == "poll":
    asyncio.run(poll(*arguments))
else:
    asyncio.run(consume(*arguments[:3], int(arguments[3])))
