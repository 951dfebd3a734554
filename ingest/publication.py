"""Publishes the events of a page until every one is acknowledged; what the topic will never take becomes a dead letter,
which is acknowledged too. Nothing that was given to it is left out when it returns.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import structlog

from checkpoints import Checkpoints, Claim
from ingest import deadletter, metrics
from ingest.errors import BadRecord, ConfigError
from ingest.event import Envelope, Message
from ingest.eventlog import Published, Publisher
from ingest.patience import Patience
from ingest.sources import Refused, SourceRecord
from ingest.sources.identity import bounded_id, version_hash

log = structlog.get_logger()

WARN_AFTER = 10.0  # seconds without all acknowledgements of a page


class Unwanted(NamedTuple):
    """What a topic will never take, and why."""

    message: Message
    error: BadRecord


class Publication:
    """What one run of a stream publishes, to `topic`, under a claim."""

    def __init__(
        self,
        topic: str,
        envelope: Envelope,
        claim: Claim,
        publisher: Publisher,
        checkpoints: Checkpoints,
        patience: Patience,
    ) -> None:
        self._topic, self._envelope, self._claim = topic, envelope, claim
        self._publisher, self._checkpoints, self._patience = publisher, checkpoints, patience

    async def publish(self, records: Sequence[SourceRecord], refusals: Sequence[Refused] = ()) -> tuple[int, int]:
        """Returns how many events are in the topic, and how many dead letters they left: all acknowledged."""
        unwanted: list[Unwanted] = []
        messages = self._envelope.messages(records)
        if messages:
            unwanted = await self._acknowledged(self._topic, messages)
        letters = [deadletter.of_source(self._topic, b"", refused.value, (), refused.error) for refused in refusals]
        letters += [deadletter.of_source(self._topic, m.key, m.value, m.headers, error) for m, error in unwanted]
        if letters:
            await self._bury(letters)
        return len(messages) - len(unwanted), len(letters)

    async def _bury(self, letters: list[Message]) -> None:
        """Publish dead letters; one that is too large even there keeps its bytes in the state database."""
        topic = deadletter.topic_for(self._topic, deadletter.SOURCE)
        pointers = [await self._keep(letter) for letter, _ in await self._acknowledged(topic, letters)]
        if pointers and await self._acknowledged(topic, pointers):
            raise ConfigError(f"{topic} cannot even hold the pointer to a record that is too large: raise max_message")
        first = dict(letters[0].headers)["dlq.error.message"].decode()
        log.warning("dead letters", stream=str(self._claim.stream), count=len(letters), topic=topic, first=first)

    async def _keep(self, letter: Message) -> Message:
        headers = msgspec.msgpack.encode(letter.headers)
        name = bounded_id(dict(letter.headers).get("ce_id", version_hash(letter.value).encode()).decode())
        keep = self._checkpoints.keep
        reference = await self._patience.persist(
            "keep a record", lambda: keep(self._claim, name, letter.value, headers)
        )
        return deadletter.pointer(letter, reference)

    async def _acknowledged(self, topic: str, messages: Sequence[Message]) -> list[Unwanted]:
        """Publish until every message is acknowledged; returns those that the topic will never take."""
        started = time.monotonic()
        with metrics.unacked.labels(topic).track_inprogress():
            published = await self._patience.persist("publish", lambda: self._watched(topic, messages))
        metrics.ack_seconds.labels(topic).observe(time.monotonic() - started)
        metrics.produced.labels(topic, "acked").inc(published.acknowledged)
        metrics.produced_bytes.labels(topic).inc(published.bytes)
        unwanted = []
        for at in published.oversized:
            metrics.produced.labels(topic, "oversize").inc()
            words = f"{messages[at].size()} bytes: more than the topic takes"
            unwanted.append(Unwanted(messages[at], BadRecord(words, stage="produce", code="too_large")))
        for refused in published.refused:
            metrics.produced.labels(topic, "refused").inc()
            error = BadRecord(f"refused by the log: {refused.reason}", stage="produce", code=refused.code)
            unwanted.append(Unwanted(messages[refused.at], error))
        return unwanted

    async def _watched(self, topic: str, messages: Sequence[Message]) -> Published:
        """Publish, and say so when the acknowledgements keep us waiting."""
        words = f"not all acknowledged after {WARN_AFTER:.0f} s"
        warning = asyncio.get_running_loop().call_later(WARN_AFTER, self._patience.blocked, "publish", words)
        try:
            return await self._publisher.publish(topic, messages)
        finally:
            warning.cancel()
