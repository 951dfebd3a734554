"""Records as a batch keeps them, made straight from what aiokafka unpacks.

aiokafka's own ConsumerRecord takes 2 µs more, and with its headers 2 KB; a batch of them is 60,000 objects that the
garbage collector walks again and again. Here a record is one object that it leaves alone, and the headers that records
behind each other have in common (all but three of an event's) are kept once for all records of a fetch.
"""

from collections import OrderedDict
from itertools import takewhile
from operator import eq
from typing import Protocol

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import FetchError, FetchResult

Header = tuple[str, bytes]


class KafkaRecord(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since 1970
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Unpacked(Protocol):
    """What aiokafka's extension reads out of a record batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def unpack_lightly(consumer: AIOKafkaConsumer) -> None:
    """From now on `consumer` returns KafkaRecord instead of ConsumerRecord. It must be started.

    The fetcher keeps one FetchResult a partition, and its PartitionRecords makes a record when it is asked for one."""
    consumer._fetcher._records = _Fetched()


class _Fetched(OrderedDict[TopicPartition, FetchResult | FetchError]):
    def __setitem__(self, tp: TopicPartition, found: FetchResult | FetchError) -> None:
        if isinstance(found, FetchResult):
            found._partition_records._consumer_record = _Maker().record
        super().__setitem__(tp, found)


class _Maker:
    """Makes the records of one fetch."""

    def __init__(self) -> None:
        self._common: list[Header] | None = None  # the headers with which all records so far began

    def record(self, tp: TopicPartition, found: Unpacked) -> KafkaRecord:
        headers = found.headers
        common = self._common
        if common is None:
            self._common = common = headers
        elif headers[: len(common)] != common:
            pairs = takewhile(lambda pair: eq(*pair), zip(common, headers, strict=False))
            self._common = common = [header for header, _ in pairs]
        kept = (*common, *headers[len(common) :])
        return KafkaRecord(tp.topic, tp.partition, found.offset, found.timestamp, found.key, found.value, kept)
