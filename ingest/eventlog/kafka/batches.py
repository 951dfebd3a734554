"""Puts the messages of a page into record batches, as they are sent to Kafka.

aiokafka's own BatchBuilder is called for every record, and encodes each of its headers. Here a batch is encoded column
by column (KIP-98: https://kafka.apache.org/documentation/#messageformat), what its messages share only once, and is
compressed at once, so that what waits to be sent is small.
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from aiokafka.codec import zstd_encode
from aiokafka.record.util import calc_crc32c

from ingest.event import Form, Message

BATCH_BYTES = 512 * 1024  # uncompressed
BATCH_SHARE = 0.5  # of the topic's max.message.bytes, where that is smaller

# Measured for 1000 messages of 650 bytes with neighbours alike: level 1 1.2 ms and 71 KB, level 3 2.0 ms and 81 KB,
# snappy 0.5 and 144, lz4 0.8 and 133.
ZSTD, ZSTD_LEVEL = 4, 1

_START = struct.Struct(">qiibI")  # base offset, length of what follows, leader epoch, magic, checksum
_REST = struct.Struct(">hiqqqhii")  # attributes, last offset, first and last time, producer, its epoch, sequence, count
_LENGTH_COUNTS_FROM = 12  # byte of _START
KNOWN = 4096  # numbers whose varints are looked up
_MAGIC = 2
_UNKNOWN = -1
_NONE = b"\x01"  # -1 as a varint: the length of what is not there


class RecordBatch:
    """What aiokafka's producer asks of a BatchBuilder, for records that are encoded already."""

    def __init__(self, records: bytes, count: int, timestamp: int) -> None:
        self._compressed: bytes = zstd_encode(records, ZSTD_LEVEL)
        self._size = _START.size + _REST.size + len(records)
        self._count, self._timestamp = count, timestamp
        self._producer = (_UNKNOWN, _UNKNOWN, _UNKNOWN)

    def size(self) -> int:
        """Bytes, uncompressed."""
        return self._size

    def record_count(self) -> int:
        return self._count

    def closed(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytes:
        """The whole batch; the broker fills in base offset and leader epoch. The checksum is that of the rest."""
        first = last = self._timestamp
        rest = _REST.pack(ZSTD, self._count - 1, first, last, *self._producer, self._count) + self._compressed
        length = _START.size - _LENGTH_COUNTS_FROM + len(rest)
        return _START.pack(0, length, _UNKNOWN, _MAGIC, calc_crc32c(rest)) + rest


class Page(NamedTuple):
    """What the batches of one page share. `oversized` is filled while they are built."""

    messages: Sequence[Message]
    limit: int
    timestamp: int  # milliseconds since 1970
    oversized: list[int]

    async def batches(self, indexes: Sequence[int]) -> AsyncGenerator[RecordBatch, None]:
        """In order, built one after the other, so that no more of them exist than are on their way.

        What does not fit into one batch is halved until it does. Only a message that is alone can be too large."""
        room = min(BATCH_BYTES, int(self.limit * BATCH_SHARE))
        waiting = [indexes]
        while waiting:
            part = waiting.pop()
            messages = [self.messages[index] for index in part]
            if len(part) == 1 and messages[0].size() > self.limit:
                self.oversized.extend(part)
                continue
            records = encoded(messages) if len(part) == 1 or sum([len(m.value) for m in messages]) < room else None
            if records is None or (len(records) > room and len(part) > 1):
                middle = len(part) // 2
                waiting += part[middle:], part[:middle]
                continue
            yield RecordBatch(records, len(part), self.timestamp)
            if waiting:
                await asyncio.sleep(0)  # nothing else runs while a batch is built


def encoded(messages: Sequence[Message]) -> bytes:
    """Records as they stand in a batch, uncompressed. All have the time of the batch."""
    records: list[bytes] = []
    for form, group in groupby(messages, attrgetter("form")):
        run = list(group)
        keys, values = [m.key for m in run], [m.value for m in run]
        offsets = _varints(range(len(records), len(records) + len(run)))
        try:
            key_lengths = _lengths(keys)
        except TypeError:  # some have no key, which is another thing than an empty one
            key_lengths = [_NONE if key is None else _varint(len(key)) for key in keys]
            keys = [key or b"" for key in keys]
        columns: list[Sequence[bytes]] = [offsets, key_lengths, keys, _lengths(values), values]
        for own in zip(*[m.own for m in run], strict=True):
            columns += _lengths(own), own
        template = _remembered(form) if form.names else _template(form)
        records += map(template.__mod__, zip(*columns, strict=True))
    return b"".join(chain.from_iterable(zip(_lengths(records), records, strict=True)))


def _template(form: Form) -> bytes:
    """A record of the form, with a place for what is its own: offset, key, value, headers, each length before it.

    Attributes and the distance from the time of the batch are 0."""
    count = _varint(len(form.shared) + len(form.names))
    shared = b"".join([_text(part) for name, value in form.shared for part in (name.encode(), value)])
    own = [_text(name.encode()).replace(b"%", b"%%") + b"%b%b" for name in form.names]
    return b"\0\0%b%b%b%b%b" + (count + shared).replace(b"%", b"%%") + b"".join(own)


_remembered = lru_cache(64)(_template)  # not of forms that one message has alone


def _text(raw: bytes | None) -> bytes:
    return _NONE if raw is None else _varint(len(raw)) + raw  # a header of somebody else's record may be null


def _lengths(texts: Sequence[bytes]) -> list[bytes]:
    return _varints(map(len, texts))


def _varints(numbers: Iterable[int]) -> list[bytes]:
    return [_VARINTS[n] if n < KNOWN else _varint(n) for n in numbers]


def _varint(number: int) -> bytes:
    """Zigzag, and seven bits a byte, the lowest first; for numbers that are not negative."""
    rest = number << 1
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


_VARINTS = [_varint(number) for number in range(KNOWN)]
