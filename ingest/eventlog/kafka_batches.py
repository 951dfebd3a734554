"""Puts the messages of a page into record batches, as they are sent to Kafka."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatch

from ingest.event import Message

BATCH_BYTES = 512 * 1024  # uncompressed
BATCH_SHARE = 0.85  # of the topic's max.message.bytes, where that is smaller
YIELD_EVERY = 500  # records that are put into batches in one turn of the event loop

# Measured for 1000 messages of 560 bytes, from messages to bytes to send: zstd 2.8 ms and 76 KB, snappy 3.0 and 148,
# lz4 9.2 and 118 (aiokafka compresses at level 9), none 2.5 and 563.
COMPRESSION = DefaultRecordBatch.CODEC_ZSTD


class Page(NamedTuple):
    """What the batches of one page share. `oversized` is filled while they are built."""

    messages: Sequence[Message]
    limit: int
    timestamp: int  # milliseconds since 1970
    oversized: list[int]

    async def batches(self, indexes: Sequence[int]) -> AsyncGenerator[BatchBuilder, None]:
        """Built one after the other, so that no more of them exist than are on their way.

        Only the first message of a batch can be too large for the topic: a later one is smaller than a batch.
        """
        batch_bytes = min(BATCH_BYTES, int(self.limit * BATCH_SHARE))
        messages, timestamp = self.messages, self.timestamp
        batch: BatchBuilder | None = None
        for n, index in enumerate(indexes, 1):
            m = messages[index]
            if batch is not None:
                if batch.append(timestamp=timestamp, key=m.key, value=m.value, headers=m.headers) is not None:
                    if n % YIELD_EVERY == 0:
                        await asyncio.sleep(0)
                    continue
                yield batch  # full, and closed by the message that did not fit
                batch = None
            if m.size() > self.limit:
                self.oversized.append(index)
                continue
            batch = BatchBuilder(batch_bytes, COMPRESSION)
            batch.append(timestamp=timestamp, key=m.key, value=m.value, headers=m.headers)  # fits whatever its size
        if batch is not None:
            yield batch
