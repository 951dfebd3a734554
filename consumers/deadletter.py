"""One bad record never blocks its neighbours and is never dropped: isolate it, bury it, go on.

Nothing is skipped until its dead letter is acknowledged: where that fails, the partition waits.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog

from consumers.store import Written
from ingest import metrics
from ingest.deadletter import of_record, topic_for
from ingest.errors import BadRecord, ConfigError
from ingest.event import Event, Record
from ingest.eventlog import Publisher

log = structlog.get_logger()

Write = Callable[[Sequence[Event]], Awaitable[Written]]


class Bad(NamedTuple):
    record: Record
    error: BadRecord


async def isolate(events: Sequence[Event], write: Write) -> tuple[Written, list[tuple[Event, BadRecord]]]:
    """Write all that can be written, by halving: log2(n) writes for each bad event. `write` raises BadRecord."""
    if not events:
        return Written(0, 0), []
    try:
        return await write(events), []
    except BadRecord as exc:
        if len(events) == 1:
            return Written(0, 0), [(events[0], exc)]
    half = len(events) // 2
    left, bad_left = await isolate(events[:half], write)
    right, bad_right = await isolate(events[half:], write)
    return Written(left.inserted + right.inserted, left.duplicates + right.duplicates), bad_left + bad_right


async def bury(publisher: Publisher, topic: str, consumer: str, group: str, bad: Sequence[Bad]) -> None:
    """Returns when every dead letter is acknowledged. Raises LogUnavailable, and ConfigError when the topic is missing
    or does not take one."""
    target = topic_for(topic, consumer)
    published = await publisher.publish(target, [of_record(record, group, error) for record, error in bad])
    if published.oversized:
        record = bad[published.oversized[0]].record
        raise ConfigError(
            f"{target} cannot hold the dead letter of {topic}[{record.partition}]@{record.offset}:"
            " raise its max.message.bytes"
        )
    if published.refused:
        refused = published.refused[0]
        record = bad[refused.at].record
        raise ConfigError(
            f"{target} refuses the dead letter of {topic}[{record.partition}]@{record.offset}:"
            f" {refused.code}: {refused.reason}"
        )
    for _, error in bad:
        metrics.dead_letters.labels(topic, error.stage, error.code).inc()
    record, error = bad[0]
    where = f"{topic}[{record.partition}]@{record.offset}"
    log.warning("dead letters", group=group, count=len(bad), topic=target, first=where, error=str(error))
