"""What topics should be, and making them so: creates what is missing, and refuses what is not safe.

A topic name is `{source}.{stream}` unless the stream says otherwise. `durability: production` wants three replicas and
two in sync, because `acks=all` promises no more than the replicas that are there.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from ingest.config.model import TopicOverride, Topics
from ingest.deadletter import HEADROOM, MARK
from ingest.errors import ConfigError
from ingest.event import Message
from ingest.eventlog import Admin, Published, Publisher, TopicInfo, TopicSpec

log = structlog.get_logger()

DEAD_LETTERS_KEPT = 30 * 86_400_000  # milliseconds, at least
SAFE_REPLICATION, SAFE_IN_SYNC = 3, 2

Prepare = Callable[[Sequence[str]], Awaitable[None]]
"""Makes these topics where they are missing. Raises ConfigError as `ensure` does."""


def spec(name: str, config: Topics) -> TopicSpec:
    """What the configuration says about a topic; a dead-letter topic is like its topic, roomier and kept longer."""
    base, is_dead_letter, _ = name.partition(MARK)
    override = config.overrides.get(name) or config.overrides.get(base) or TopicOverride()
    retention = int(1000 * (config.retention if override.retention is None else override.retention))
    max_message = override.max_message or config.max_message
    return TopicSpec(
        name=name,
        partitions=override.partitions or config.partitions,
        replication=override.replication or config.replication,
        min_insync=override.min_insync or config.min_insync,
        retention_ms=max(retention, DEAD_LETTERS_KEPT) if is_dead_letter else retention,
        max_message=max_message + HEADROOM if is_dead_letter else max_message,
    )


async def ensure(admin: Admin, names: Iterable[str], config: Topics, *, replicated: bool) -> None:
    """Every topic exists afterwards, is safe, and may be written by us. `replicated`: the log has brokers (SQLite has
    none).

    Raises ConfigError: one is missing and may not be created, is not as safe as `durability: production` wants, or the
    log does not let us."""
    specs = [spec(name, config) for name in sorted(set(names))]
    await admin.permits(writes=[s.name for s in specs])
    found = await admin.describe([s.name for s in specs])
    missing = [s for s in specs if s.name not in found]
    if replicated:
        _check_safety([(s, False) for s in missing], config)  # before it is created
    if missing and not config.create:
        names_missing = ", ".join(s.name for s in missing)
        raise ConfigError(f"missing topics: {names_missing}; create them, or set `topics: {{create: true}}`")
    if missing:
        created = await admin.create(missing)
        if created:
            log.info("topics created", topics=list(created))
            await admin.permits(writes=created)
        found = await admin.describe([s.name for s in specs])
    there = [(s, found[s.name].spec) for s in specs if s.name in found and s not in missing]
    _check_differences(there, TopicSpec._fields if replicated else ("partitions", "retention_ms", "max_message"))
    if replicated:
        check([found[wanted.name] for wanted, _ in there], config)


def check(found: Sequence[TopicInfo], config: Topics) -> None:
    """Topics that brokers have: are they as safe as `durability` wants? Raises ConfigError."""
    _check_safety([(info.spec, info.unclean) for info in found], config)
    _check_replicas(found)


class Restoring:
    """A publisher whose dead-letter topics come back: one that was deleted while we run is made again by `prepare`.

    A topic of events does not: who deleted it must say whether it is to begin anew."""

    def __init__(self, publisher: Publisher, prepare: Prepare) -> None:
        self._publisher, self._prepare = publisher, prepare

    async def publish(self, topic: str, messages: Sequence[Message]) -> Published:
        try:
            return await self._publisher.publish(topic, messages)
        except ConfigError as exc:
            if MARK not in topic:
                raise
            log.warning("cannot publish dead letters: making sure that their topic is there", error=str(exc))
            await self._prepare([topic])
        return await self._publisher.publish(topic, messages)


def _check_differences(topics: Sequence[tuple[TopicSpec, TopicSpec]], fields: Sequence[str]) -> None:
    for wanted, real in topics:
        differs = [
            f"{field} is {getattr(real, field)}, configured {getattr(wanted, field)}"
            for field in fields
            if getattr(real, field) != getattr(wanted, field)
        ]
        if differs:
            log.warning("topic differs from the configuration", topic=wanted.name, differs=differs)


def _check_safety(topics: Sequence[tuple[TopicSpec, bool]], config: Topics) -> None:
    """`topics`: each with whether it may elect unclean leaders."""
    unsafe = ", ".join(
        f"{spec.name} (replication {spec.replication}, min.insync.replicas {spec.min_insync}"
        f"{', unclean.leader.election.enable true' if unclean else ''})"
        for spec, unclean in topics
        if spec.replication < SAFE_REPLICATION or spec.min_insync < SAFE_IN_SYNC or unclean
    )
    if not unsafe:
        return
    if config.durability == "production":
        raise ConfigError(
            f"not safe for production: {unsafe}; wants replication {SAFE_REPLICATION}, min.insync.replicas"
            f" {SAFE_IN_SYNC} and no unclean elections. Change the topics, or say `topics: {{durability: relaxed}}`"
            " where losing a broker may lose events"
        )
    log.warning("losing a broker may lose events of these topics", topics=unsafe)


def _check_replicas(topics: Sequence[TopicInfo]) -> None:
    """Brokers that are away now: an outage, and no reason to refuse. Too few copies for `min.insync.replicas` make the
    log refuse writes, and then pages wait."""
    for spec, _, _, in_sync, _ in topics:
        if in_sync < spec.replication:
            words = "cannot be written now" if in_sync < spec.min_insync else "has fewer copies than it should"
            log.warning(
                f"topic {words}: brokers are away",
                topic=spec.name,
                in_sync=in_sync,
                replication=spec.replication,
                min_insync=spec.min_insync,
            )
