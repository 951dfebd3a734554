"""Topics of a Kafka cluster: which there are, what they are, and the missing ones made."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import CoordinationType
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    InvalidReplicationFactorError,
    KafkaError,
    NoError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from ingest.errors import ConfigError, LogUnavailable
from ingest.eventlog import NOTHING, TopicInfo, TopicSpec
from ingest.eventlog.kafka.client import open_consumer, started
from ingest.eventlog.kafka.cluster import Cluster
from ingest.eventlog.kafka.metadata import permitted, topic_ids
from ingest.eventlog.kafka.rights import REFUSALS, Right, refusal
from ingest.eventlog.place import CREATION_GRACE, POLL, missing

LEADERS_TIMEOUT = 30.0  # seconds until every partition of a new topic has a leader
ASK_PATIENCE = 45.0  # seconds in which a question is asked again: longer than one of them takes to time out
ASK_AGAIN = 0.2  # seconds

MIN_INSYNC, RETENTION, MAX_MESSAGE = "min.insync.replicas", "retention.ms", "max.message.bytes"
UNCLEAN = "unclean.leader.election.enable"
T = TypeVar("T")


class KafkaAdmin:
    """Made by `open_admin`."""

    def __init__(self, cluster: Cluster, client: AIOKafkaAdminClient, consumer: AIOKafkaConsumer) -> None:
        self._cluster, self._client, self._consumer = cluster, client, consumer

    async def identity(self) -> str:
        async with self._asking("ask for the cluster's id"):
            return f"kafka:{(await self._client.describe_cluster())['cluster_id']}"

    async def topic_ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        async with self._asking("ask for the ids of topics"):
            return await topic_ids(self._client._client, topics)

    async def topics(self) -> Sequence[str]:
        async with self._asking("list topics"):
            found = await _patiently(self._client.describe_topics)
        return sorted(t["topic"] for t in found if not t["is_internal"] and not t["topic"].startswith("__"))

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicInfo]:
        async with self._asking("describe topics"):
            every = {t["topic"]: t["partitions"] for t in await _patiently(self._client.describe_topics)}
            found = {name: every[name] for name in topics if every.get(name)}
            if hidden := [name for name in topics if name not in every]:
                await topic_ids(self._client._client, hidden)  # raises where one may not be seen
        async with self._asking("describe topics", may="DescribeConfigs"):
            configs = await topic_configs(self._client, found)
        async with self._asking("ask for the offsets of topics"):
            partitions = [TopicPartition(name, p["partition"]) for name, ps in found.items() for p in ps]
            for name in found:  # else asking for offsets fails at first, and is tried again after the back-off
                await self._consumer._client._wait_on_metadata(name)
            first = await self._consumer.beginning_offsets(partitions) if partitions else {}
            end = await self._consumer.end_offsets(partitions) if partitions else {}
        result = {}
        for name, config in configs.items():
            numbers = range(len(found[name]))
            spec = TopicSpec(
                name,
                partitions=len(numbers),
                replication=min(len(p["replicas"]) for p in found[name]),
                min_insync=int(config[MIN_INSYNC]),
                retention_ms=int(config[RETENTION]),
                max_message=int(config[MAX_MESSAGE]),
            )
            result[name] = TopicInfo(
                spec,
                first_offsets=tuple(first[TopicPartition(name, n)] for n in numbers),
                end_offsets=tuple(end[TopicPartition(name, n)] for n in numbers),
                in_sync=min(len(p["isr"]) for p in found[name]),
                unclean=config[UNCLEAN] == "true",
            )
        return result

    async def create(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        if not specs:
            return []
        async with self._asking("create topics", may="Create"):
            wanted = [_new_topic(spec) for spec in specs]
            response = await _patiently(lambda: self._client.create_topics(wanted))
        by_name = {spec.name: spec for spec in specs}
        created, rights = [], []
        for name, code, message, *_ in response.topic_errors:
            error = for_code(code)
            if error is NoError:
                created.append(name)
            elif error in REFUSALS:
                rights.append(Right("Create", "topic", name))
            elif error is not TopicAlreadyExistsError:
                raise self._refusal(by_name[name], error, message)
        if rights:
            raise self._lacking(sorted(rights), "create topics")
        await self._wait_for_leaders(created)
        return created

    async def permits(self, *, writes: Collection[str] = (), reads: Mapping[str, str] = NOTHING) -> None:
        doing = "ask what we may do"
        async with self._asking(doing):
            allowed = await permitted(self._client._client, [*{*writes, *reads}])
        missing = [
            Right(operation, "topic", topic)
            for topic, operations in sorted(allowed.items())
            for operation, wanted in (("Write", topic in writes), ("Read", topic in reads), ("DescribeConfigs", True))
            if wanted and operation not in operations
        ]
        missing += [Right("Read", "group", group) for group in reads.values() if not await self._finds(group)]
        if missing:
            raise self._lacking(missing, doing)

    def _lacking(self, rights: Sequence[Right], doing: str) -> ConfigError:
        return refusal(rights, doing, self._cluster.bootstrap, self._cluster.credentials)

    async def _finds(self, group: str) -> bool:
        """False: its coordinator does not speak to us. One that is away will say so when the group is joined."""
        try:
            await self._client._client.coordinator_lookup(CoordinationType.GROUP, group)
        except GroupAuthorizationFailedError:
            return False
        except KafkaError:
            pass
        return True

    @asynccontextmanager
    async def _asking(self, doing: str, *, may: str = "Describe") -> AsyncIterator[None]:
        try:
            with self._cluster.translated(doing, may=may):
                yield
        except LogUnavailable:
            await self._cluster.still_lets_us_in()
            raise

    def _refusal(self, spec: TopicSpec, error: type[Exception], message: str | None) -> Exception:
        if error is InvalidReplicationFactorError:
            return ConfigError(
                f"Kafka refuses topic {spec.name}: {message} On fewer than {spec.replication} brokers, "
                f"`topics: {{replication: 1, min_insync: 1, durability: relaxed}}` works, without replicas"
            )
        if error is PolicyViolationError:
            return ConfigError(
                f"Kafka refuses topic {spec.name}, by a policy of its brokers (create.topic.policy.class.name):"
                f" {message}. Change `topics`, or have the topic made by who may"
            )
        if getattr(error, "retriable", False):
            return self._cluster.meaning(error(message), f"create topic {spec.name}")
        return ConfigError(f"Kafka refuses topic {spec.name}: {error.__name__}: {message}")

    async def _wait_for_leaders(self, topics: Sequence[str]) -> None:
        waiting = set(topics)
        try:
            async with asyncio.timeout(LEADERS_TIMEOUT):
                while waiting:
                    with self._cluster.translated("wait for the leaders of new topics"):
                        found = await _patiently(partial(self._client.describe_topics, sorted(waiting)))
                    waiting -= {t["topic"] for t in found if _led(t["partitions"])}
                    if waiting:
                        await asyncio.sleep(POLL)
        except TimeoutError as exc:
            raise LogUnavailable(f"Kafka: new topics have no leaders yet: {', '.join(sorted(waiting))}") from exc


@asynccontextmanager
async def open_admin(cluster: Cluster) -> AsyncIterator[KafkaAdmin]:
    async with _open_client(cluster) as client, open_consumer(cluster) as consumer:
        yield KafkaAdmin(cluster, client, consumer)


async def max_message_bytes(cluster: Cluster, topic: str) -> int:
    """The largest batch of records that the topic takes. Raises ConfigError when there is no such topic."""
    async with _open_client(cluster) as client:
        deadline = asyncio.get_running_loop().time() + CREATION_GRACE
        while True:
            with cluster.translated(f"read the configuration of topic {topic}", may="DescribeConfigs"):
                configs = await topic_configs(client, [topic])
            if topic in configs:
                return int(configs[topic][MAX_MESSAGE])
            if asyncio.get_running_loop().time() > deadline:
                raise missing(topic)
            await asyncio.sleep(POLL)


async def topic_configs(client: AIOKafkaAdminClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """What we care about of each topic's configuration; topics that do not exist are left out."""
    wanted = dict.fromkeys((MIN_INSYNC, RETENTION, MAX_MESSAGE, UNCLEAN))
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, wanted) for topic in topics]
    if not resources:
        return {}
    result = {}
    for response in await _patiently(lambda: client.describe_configs(resources)):
        for code, message, _, name, entries in response.resources:
            error = for_code(code)
            if error is NoError:
                result[name] = {entry[0]: entry[1] for entry in entries}
            elif error is not UnknownTopicOrPartitionError:
                raise error(name if error is TopicAuthorizationFailedError else f"topic {name}: {message}")
    return result


@asynccontextmanager
async def _open_client(cluster: Cluster) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(**cluster.settings())
    try:
        await started(client, cluster)
        yield client
    finally:
        await client.close()


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The admin client asks some broker, also one that has just died, and asks once: so ask again."""
    deadline = asyncio.get_running_loop().time() + ASK_PATIENCE
    while True:
        try:
            return await ask()
        except KafkaError as exc:
            if not exc.retriable or asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(ASK_AGAIN)


def _led(partitions: Sequence[Mapping[str, int]]) -> bool:
    return bool(partitions) and all(partition["leader"] >= 0 for partition in partitions)


def _new_topic(spec: TopicSpec) -> NewTopic:
    return NewTopic(
        spec.name,
        spec.partitions,
        spec.replication,
        topic_configs={
            MIN_INSYNC: str(spec.min_insync),
            RETENTION: str(spec.retention_ms),
            MAX_MESSAGE: str(spec.max_message),
            UNCLEAN: "false",
            "message.timestamp.type": "CreateTime",
        },
    )
