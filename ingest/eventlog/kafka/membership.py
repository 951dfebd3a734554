"""Opens a membership in a Kafka group on one topic: the consumer's settings, who gets which partitions, who is told."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from ingest.eventlog import StartOffsets
from ingest.eventlog.kafka.admin import max_message_bytes
from ingest.eventlog.kafka.client import started
from ingest.eventlog.kafka.cluster import Cluster
from ingest.eventlog.kafka.member import Member
from ingest.eventlog.kafka.records import unpack_lightly
from ingest.eventlog.kafka.subscription import KafkaSubscription
from ingest.eventlog.kafka.watchdog import Times

log = structlog.get_logger()

PARTITION_FETCH_BYTES = 1024 * 1024  # raised to the topic's max.message.bytes
FETCH_BYTES = 16 * 1024 * 1024  # per broker


@asynccontextmanager
async def open_subscription(
    cluster: Cluster,
    topic: str,
    group: str,
    start: StartOffsets,
    times: Times,
    *,
    records: int,
    bytes: int,
    wait: float,
) -> AsyncIterator[KafkaSubscription]:
    largest = await max_message_bytes(cluster, topic)
    consumer = AIOKafkaConsumer(
        **{**cluster.settings(), "metadata_max_age_ms": _ms(times.metadata_age)},
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy=(_Assignor,),
        max_partition_fetch_bytes=max(PARTITION_FETCH_BYTES, largest),
        fetch_max_bytes=FETCH_BYTES,
        session_timeout_ms=_ms(times.session),
        heartbeat_interval_ms=_ms(times.heartbeat),
        rebalance_timeout_ms=_ms(times.rebalance),
        max_poll_interval_ms=_ms(times.poll_interval),
    )
    member = Member(cluster, consumer, topic, group, times)
    subscription = KafkaSubscription(member, start, records=records, bytes=bytes, wait=wait)
    watching: asyncio.Task[None] | None = None
    try:
        await started(consumer, cluster)
        unpack_lightly(consumer)
        consumer.subscribe([topic], listener=_Listener(subscription))  # after the start, which would wait for the group
        watching = asyncio.create_task(subscription.watch())
        yield subscription
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})
        await subscription.close()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, subscription: KafkaSubscription) -> None:
        self._subscription = subscription

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._subscription.assigned(frozenset(tp.partition for tp in assigned))

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._subscription.revoked()


class _Assignor(RoundRobinPartitionAssignor):  # type: ignore[misc]
    """Runs in the member that leads the group, the only one that knows how many there are."""

    @classmethod
    def assign(
        cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        for topic in {topic for member in members.values() for topic in member.subscription}:
            partitions = len(cluster.partitions_for_topic(topic) or ())
            if len(members) > partitions:
                log.warning(
                    "more consumers than partitions",
                    topic=topic,
                    consumers=len(members),
                    partitions=partitions,
                    idle=len(members) - partitions,
                )
        assigned: dict[str, ConsumerProtocolMemberAssignment] = super().assign(cluster, members)
        return assigned


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
