"""Topics of a Kafka cluster: which there are, what they are, and the missing ones made."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidReplicationFactorError,
    KafkaError,
    NoError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from ingest.errors import ConfigError, LogUnavailable
from ingest.eventlog import TopicInfo, TopicSpec
from ingest.eventlog.kafka.client import Cluster, meaning, open_consumer, started, translated
from ingest.eventlog.kafka.topic_ids import topic_ids
from ingest.eventlog.place import CREATION_GRACE, POLL, missing

LEADERS_TIMEOUT = 30.0  # seconds until every partition of a new topic has a leader
ASK_PATIENCE = 45.0  # seconds in which a question is asked again: longer than one of them takes to time out
ASK_AGAIN = 0.2  # seconds

MIN_INSYNC, RETENTION, MAX_MESSAGE = "min.insync.replicas", "retention.ms", "max.message.bytes"
UNCLEAN = "unclean.leader.election.enable"
T = TypeVar("T")


class KafkaAdmin:
    """Made by `open_admin`."""

    def __init__(self, client: AIOKafkaAdminClient, consumer: AIOKafkaConsumer) -> None:
        self._client = client
        self._consumer = consumer

    async def identity(self) -> str:
        with translated("ask for the cluster's id"):
            return f"kafka:{(await self._client.describe_cluster())['cluster_id']}"

    async def topic_ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        with translated("ask for the ids of topics"):
            return await topic_ids(self._client._client, topics)

    async def topics(self) -> Sequence[str]:
        with translated("list topics"):
            found = await _patiently(self._client.describe_topics)
        return sorted(t["topic"] for t in found if not t["is_internal"] and not t["topic"].startswith("__"))

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicInfo]:
        with translated("describe topics"):
            every = {t["topic"]: t["partitions"] for t in await _patiently(self._client.describe_topics)}
            found = {name: every[name] for name in topics if every.get(name)}
            configs = await topic_configs(self._client, found)
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
        with translated("create topics"):
            wanted = [_new_topic(spec) for spec in specs]
            response = await _patiently(lambda: self._client.create_topics(wanted))
        by_name = {spec.name: spec for spec in specs}
        created = []
        for name, code, message, *_ in response.topic_errors:
            error = for_code(code)
            if error is NoError:
                created.append(name)
            elif error is not TopicAlreadyExistsError:
                raise _refusal(by_name[name], error, message)
        await self._wait_for_leaders(created)
        return created

    async def _wait_for_leaders(self, topics: Sequence[str]) -> None:
        waiting = set(topics)
        try:
            async with asyncio.timeout(LEADERS_TIMEOUT):
                while waiting:
                    with translated("wait for the leaders of new topics"):
                        found = await _patiently(partial(self._client.describe_topics, sorted(waiting)))
                    waiting -= {t["topic"] for t in found if _led(t["partitions"])}
                    if waiting:
                        await asyncio.sleep(POLL)
        except TimeoutError as exc:
            raise LogUnavailable(f"Kafka: new topics have no leaders yet: {', '.join(sorted(waiting))}") from exc


@asynccontextmanager
async def open_admin(cluster: Cluster) -> AsyncIterator[KafkaAdmin]:
    async with _open_client(cluster) as client, open_consumer(cluster) as consumer:
        yield KafkaAdmin(client, consumer)


async def max_message_bytes(cluster: Cluster, topic: str) -> int:
    """The largest batch of records that the topic takes. Raises ConfigError when there is no such topic."""
    async with _open_client(cluster) as client:
        deadline = asyncio.get_running_loop().time() + CREATION_GRACE
        while True:
            with translated(f"read the configuration of topic {topic}"):
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
                raise error(f"topic {name}: {message}")
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


def _refusal(spec: TopicSpec, error: type[Exception], message: str | None) -> Exception:
    if error is InvalidReplicationFactorError:
        return ConfigError(
            f"Kafka refuses topic {spec.name}: {message} On fewer than {spec.replication} brokers, "
            f"`topics: {{replication: 1, min_insync: 1, durability: relaxed}}` works, without replicas"
        )
    if getattr(error, "retriable", False):
        return meaning(error(message), f"create topic {spec.name}")
    return ConfigError(f"Kafka refuses topic {spec.name}: {error.__name__}: {message}")
