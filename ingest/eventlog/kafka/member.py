"""One member of a consumer group on one topic, as everything that it does is named by it."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition

from ingest.eventlog.kafka.cluster import Cluster
from ingest.eventlog.kafka.watchdog import Times


@dataclass(frozen=True)
class Member:
    cluster: Cluster
    consumer: AIOKafkaConsumer
    topic: str
    group: str
    times: Times

    def translated(self, doing: str) -> AbstractContextManager[None]:
        return self.cluster.translated(doing, may="Read", topic=self.topic, group=self.group)

    def at(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)
