"""Looks into a Kafka consumer group, and ends memberships as the coordinator does after a session timeout of 45 s."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import GroupCoordinatorNotAvailableError
from aiokafka.protocol.group import LeaveGroupRequest

from tests.chaos.processes import until


class Group(NamedTuple):
    state: str
    members: Sequence[str]


async def describe(bootstrap: str, group: str) -> Group:
    async with _admin(bootstrap) as admin:
        await until(lambda: _coordinated(admin, group), lambda: f"{group} has a coordinator")
        [response] = await admin.describe_consumer_groups([group])
        [(_, _, state, _, _, members, *_)] = response.groups
        return Group(state, [member[0] for member in members])


async def committed(bootstrap: str, group: str) -> dict[int, int]:
    """Partition → the offset that lag tools see; the group has one topic."""
    async with _admin(bootstrap) as admin:
        found = await admin.list_consumer_group_offsets(group)
    return {tp.partition: offset.offset for tp, offset in found.items()}


async def _coordinated(admin: AIOKafkaAdminClient, group: str) -> bool:
    """The first group of a new cluster waits until the topic of all groups is there."""
    try:
        await admin.find_coordinator(group)
    except GroupCoordinatorNotAvailableError:
        return False
    return True


async def evict(bootstrap: str, group: str, members: Sequence[str] | None = None) -> None:
    """These members, or all. Whoever is alive joins again."""
    if members is None:
        members = (await describe(bootstrap, group)).members
    if not members:
        return
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    try:
        coordinator = await client.coordinator_lookup(0, group)
        for member in members:
            response = await client.send(coordinator, LeaveGroupRequest(group, member))
            assert response.error_code == 0, response
    finally:
        await client.close()


@asynccontextmanager
async def _admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()
