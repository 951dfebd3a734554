"""What brokers say of a topic beyond its name: the id by which it is told from one that was deleted before (KIP-516),
and what we may do with it (KIP-430).

aiokafka speaks Metadata up to version 5, which knows neither. Here is version 10, the first with ids: Kafka 2.8 and
newer. The fields are those of MetadataRequest.json and MetadataResponse.json in Kafka's source, `flexibleVersions: 9+`.
"""

from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from io import BytesIO

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    NodeNotReadyError,
    NoError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from ingest.eventlog import UNKNOWN_TOPIC

NO_UUID = bytes(16)
OPERATIONS = {"Read": 3, "Write": 4, "Describe": 8, "DescribeConfigs": 10}  # and their bits, of AclOperation.java
SEEN = "Describe"


class _Uuid:
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


class _MetadataResponse_v10(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString()),
                ("port", Int32),
                ("rack", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString()),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition_index", Int32),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("replica_nodes", CompactArray(Int32)),
                        ("isr_nodes", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("topic_authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequest_v10(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = _MetadataResponse_v10
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", CompactString()), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _MetadataRequest(Request[_MetadataRequest_v10]):  # type: ignore[misc]
    API_KEY = 3

    def __init__(self, topics: Sequence[str], rights: bool) -> None:
        self._topics, self._rights = topics, rights

    def build(self, request_struct_class: type[_MetadataRequest_v10]) -> _MetadataRequest_v10:
        return request_struct_class([(NO_UUID, topic, {}) for topic in self._topics], False, False, self._rights, {})


async def topic_ids(client: AIOKafkaClient, topics: Sequence[str]) -> Mapping[str, str]:
    """The id of each topic as Kafka's own tools print it, UNKNOWN_TOPIC where the brokers have none.

    A topic that does not exist is left out. Raises aiokafka's errors."""
    response = await _ask(client, _MetadataRequest(topics, False))
    if response is None:
        return dict.fromkeys(topics, UNKNOWN_TOPIC)
    found = {}
    for code, name, uuid, *_ in response.topics:
        error = for_code(code)
        if error is NoError:
            found[name] = UNKNOWN_TOPIC if uuid == NO_UUID else urlsafe_b64encode(uuid).rstrip(b"=").decode()
        elif error is TopicAuthorizationFailedError:
            raise error(name)
        elif error is not UnknownTopicOrPartitionError:
            raise error(f"topic {name}")
    return found


async def permitted(client: AIOKafkaClient, topics: Sequence[str]) -> Mapping[str, Collection[str]]:
    """Topic → the operations of ours that its brokers let us do. Topics that do not exist are left out, and all where
    brokers do not tell. Raises aiokafka's errors."""
    response = await _ask(client, _MetadataRequest(topics, True))
    found: dict[str, Collection[str]] = {}
    for code, name, _, _, _, bits, _ in () if response is None else response.topics:
        error = for_code(code)
        if error is TopicAuthorizationFailedError:
            found[name] = ()
        elif error is NoError:
            let = [operation for operation, bit in OPERATIONS.items() if bits >> bit & 1]
            if SEEN in let:  # else the answer tells nothing: we see the topic
                found[name] = let
    return found


async def _ask(client: AIOKafkaClient, request: _MetadataRequest) -> _MetadataResponse_v10 | None:
    """None: the broker is older."""
    node = client.get_random_node()
    if node is None:
        raise NodeNotReadyError("no broker is known")
    try:
        response: _MetadataResponse_v10 = await client.send(node, request)
    except (NotImplementedError, IncompatibleBrokerVersion):  # of `Request.prepare`
        return None
    return response
