"""Deletes a topic and makes it anew under the same name, as a person does behind our back."""

import asyncio
import sqlite3
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

from ingest.eventlog import EventLog, TopicSpec
from tests.contract.eventlogs import DEADLINE


async def delete(topic: str, where: str | Path) -> None:
    """`where`: Kafka's bootstrap servers, or the path of a SQLite file."""
    if isinstance(where, Path):
        connection = sqlite3.connect(where, timeout=DEADLINE)
        with connection:
            connection.execute("DELETE FROM log WHERE topic_id = (SELECT id FROM topics WHERE name = ?)", (topic,))
            connection.execute("DELETE FROM topics WHERE name = ?", (topic,))
        connection.close()
        return
    client = AIOKafkaAdminClient(bootstrap_servers=where)
    await client.start()
    try:
        await client.delete_topics([topic])
    finally:
        await client.close()


async def make_anew(log: EventLog, spec: TopicSpec, where: str | Path) -> None:
    async with log.admin() as admin, asyncio.timeout(DEADLINE):
        before = (await admin.topic_ids([spec.name]))[spec.name]
        await delete(spec.name, where)
        while (await admin.topic_ids([spec.name])).get(spec.name, before) == before:
            await admin.create([spec])
            await asyncio.sleep(0.02)
