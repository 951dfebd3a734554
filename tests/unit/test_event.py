"""The wire form of an event, read back."""

import pytest

from ingest.errors import BadRecord
from ingest.event import Envelope, Event, Message, decode
from ingest.eventlog.kafka_records import KafkaRecord
from ingest.sources import SourceRecord

Header = tuple[str, bytes | None]


def record(message: Message, *headers: Header) -> KafkaRecord:
    """`headers`: instead of those of the message that have their names."""
    replaced = dict(headers)
    kept = tuple((name, replaced.get(name, value)) for name, value in message.headers)
    return KafkaRecord("billing.invoices", 3, 41, 7, message.key, message.value, kept)  # type: ignore[arg-type]


def message(stream: str = "invoices", fence: int = 5, at: str | None = "2024-05-06T07:08:09Z") -> Message:
    return Envelope("billing", stream, fence).messages([SourceRecord("1", None, "cus_1", at, None, b'{"id":1}')])[0]


def test_an_event_is_read_as_it_was_written() -> None:
    assert decode(record(message())) == Event(
        id="billing:invoices:1",
        source="billing",
        stream="invoices",
        key="cus_1",
        type="billing.invoices",
        subject="1",
        occurred_at="2024-05-06T07:08:09Z",
        fence=5,
        payload=b'{"id":1}',
        content_type="application/json",
        topic="billing.invoices",
        partition=3,
        offset=41,
        published_ms=7,
    )


def test_streams_that_share_a_topic_are_told_apart() -> None:
    mixed = [("invoices", 1), ("refunds", 1), ("invoices", 2), ("invoices", 1)]
    events = [decode(record(message(stream, fence))) for stream, fence in mixed]
    assert [(event.stream, event.type, event.fence) for event in events] == [
        (stream, f"billing.{stream}", fence) for stream, fence in mixed
    ]


@pytest.mark.parametrize("value", [None, b"\xff", b"no slashes"])
def test_a_source_that_is_none_is_a_bad_record_every_time(value: bytes | None) -> None:
    for _ in range(2):
        with pytest.raises(BadRecord) as caught:
            decode(record(message(), ("ce_source", value)))
        assert caught.value.stage == "decode"


@pytest.mark.parametrize("name", ["ce_id", "ce_source", "ce_type", "ce_ingestfence", "content-type", "ce_subject"])
def test_a_null_header_is_a_bad_record_and_no_crash(name: str) -> None:
    """Kafka's headers may be null (KIP-82)."""
    with pytest.raises(BadRecord):
        decode(record(message(), (name, None)))
