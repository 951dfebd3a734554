"""What several contract suites share."""

from collections.abc import AsyncIterator

import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient

from tests.harness.kafka import Kafka


@pytest_asyncio.fixture
async def cluster(kafka: Kafka) -> AsyncIterator[AIOKafkaAdminClient]:
    """What a person does to the cluster behind our back."""
    client = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await client.start()
    yield client
    await client.close()
