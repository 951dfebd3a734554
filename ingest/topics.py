"""What topics should be, and making them so: creates what is missing, and refuses what is not safe.

A topic name is `{source}.{stream}` unless the stream says otherwise. `durability: production` wants three replicas and
two in sync, because `acks=all` promises no more than the replicas that are there.
"""

from collections.abc import Iterable, Sequence

import structlog

from ingest.config.model import TopicOverride, Topics
from ingest.deadletter import HEADROOM, MARK
from ingest.errors import ConfigError
from ingest.eventlog import Admin, TopicSpec

log = structlog.get_logger()

DEAD_LETTERS_KEPT = 30 * 86_400_000  # milliseconds, at least
SAFE_REPLICATION, SAFE_IN_SYNC = 3, 2


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
    """Every topic exists afterwards, and is safe. `replicated`: the log has brokers (SQLite has none).

    Raises ConfigError: one is missing and may not be created, or is not as safe as `durability: production` wants."""
    specs = [spec(name, config) for name in sorted(set(names))]
    found = await admin.describe([s.name for s in specs])
    missing = [s for s in specs if s.name not in found]
    if replicated:
        _check_safety(missing, config)  # before it is created
    if missing and not config.create:
        names_missing = ", ".join(s.name for s in missing)
        raise ConfigError(f"missing topics: {names_missing}; create them, or set `topics: {{create: true}}`")
    if missing:
        created = await admin.create(missing)
        if created:
            log.info("topics created", topics=list(created))
        found = await admin.describe([s.name for s in specs])
    there = [(s, found[s.name].spec) for s in specs if s.name in found and s not in missing]
    _check_differences(there, TopicSpec._fields if replicated else ("partitions", "retention_ms", "max_message"))
    if replicated:
        _check_safety([real for _, real in there], config)


def _check_differences(topics: Sequence[tuple[TopicSpec, TopicSpec]], fields: Sequence[str]) -> None:
    for wanted, real in topics:
        differs = [
            f"{field} is {getattr(real, field)}, configured {getattr(wanted, field)}"
            for field in fields
            if getattr(real, field) != getattr(wanted, field)
        ]
        if differs:
            log.warning("topic differs from the configuration", topic=wanted.name, differs=differs)


def _check_safety(specs: Sequence[TopicSpec], config: Topics) -> None:
    unsafe = ", ".join(
        f"{spec.name} (replication {spec.replication}, min.insync.replicas {spec.min_insync})"
        for spec in specs
        if spec.replication < SAFE_REPLICATION or spec.min_insync < SAFE_IN_SYNC
    )
    if not unsafe:
        return
    if config.durability == "production":
        raise ConfigError(
            f"not safe for production: {unsafe}; wants replication {SAFE_REPLICATION} and min.insync.replicas"
            f" {SAFE_IN_SYNC}. Raise them, or say `topics: {{durability: relaxed}}` where losing a broker may lose"
            " events"
        )
    log.warning("losing a broker may lose events of these topics", topics=unsafe)
