"""The wire form of an event, read back."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import pytest

from ingest.errors import BadRecord
from ingest.event import Envelope, Event, decode, decode_all
from ingest.eventlog.kafka.records import KafkaRecord


def record(
    stream: str = "invoices", fence: int = 5, changes: Mapping[str, bytes | None] = MappingProxyType({})
) -> KafkaRecord:
    """`changes`: headers that have other values."""
    headers = {
        "ce_specversion": b"1.0",
        "ce_source": f"/billing/{stream}".encode(),
        "ce_type": f"billing.{stream}".encode(),
        "ce_ingestfence": b"%d" % fence,
        "content-type": b"application/json",
        "ce_id": f"billing:{stream}:1".encode(),
        "ce_subject": b"1",
        "ce_time": b"2024-05-06T07:08:09Z",
    }
    kept = tuple({**headers, **changes}.items())
    return KafkaRecord("billing.invoices", 3, 41, 7, b"cus_1", b'{"id":1}', kept)  # type: ignore[arg-type]


def test_an_event_is_read_as_it_was_written() -> None:
    assert decode(record()) == Event(
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
    events = [decode(record(stream, fence)) for stream, fence in mixed]
    assert [(event.stream, event.type, event.fence) for event in events] == [
        (stream, f"billing.{stream}", fence) for stream, fence in mixed
    ]


@pytest.mark.parametrize("value", [None, b"\xff", b"no slashes"])
def test_a_source_that_is_none_is_a_bad_record_every_time(value: bytes | None) -> None:
    for _ in range(2):
        with pytest.raises(BadRecord) as caught:
            decode(record(changes={"ce_source": value}))
        assert caught.value.stage == "decode"


@pytest.mark.parametrize("name", ["ce_id", "ce_source", "ce_type", "ce_ingestfence", "content-type", "ce_subject"])
def test_a_null_header_is_a_bad_record_and_no_crash(name: str) -> None:
    """Kafka's headers may be null (KIP-82)."""
    with pytest.raises(BadRecord):
        decode(record(changes={name: None}))


LIKE_THE_OTHERS = record()
USUAL = LIKE_THE_OTHERS.headers
UNUSUAL = {
    "another stream": record("refunds").headers,
    "another fence": record(fence=6).headers,
    "no time": USUAL[:-1],
    "no subject": (*USUAL[:6], USUAL[7]),
    "no id": (*USUAL[:5], *USUAL[6:]),
    "one more": (*USUAL, ("traceparent", b"00-1-2-01")),
    "another name": (*USUAL[:7], ("ce_dataschema", b"x")),
    "another order": (*USUAL[:5], USUAL[6], USUAL[5], USUAL[7]),
    "shared ones elsewhere": (*USUAL[5:], *USUAL[:5]),
    "an id twice": (*USUAL[:6], ("ce_id", b"later"), USUAL[7]),
    "a null id": record(changes={"ce_id": None}).headers,
    "a null time": record(changes={"ce_time": None}).headers,
    "no UTF-8": record(changes={"ce_subject": b"\xff"}).headers,
    "none": (),
}


@pytest.mark.parametrize("headers", UNUSUAL.values(), ids=UNUSUAL)
def test_records_are_read_together_as_each_is_alone(headers: tuple[tuple[str, bytes], ...]) -> None:
    keyless = msgspec.structs.replace(LIKE_THE_OTHERS, key=None, value=None)
    odd = msgspec.structs.replace(LIKE_THE_OTHERS, headers=headers, offset=42)
    unreadable = msgspec.structs.replace(LIKE_THE_OTHERS, key=b"\xff")
    records = [LIKE_THE_OTHERS, odd, LIKE_THE_OTHERS, odd, odd, keyless, unreadable, LIKE_THE_OTHERS]
    events, bad = decode_all(records)
    alone, refused = [], []
    for one in records:
        try:
            alone.append(decode(one))
        except BadRecord as exc:
            refused.append((one, exc.code, str(exc)))
    assert events == alone
    assert [(one, error.code, str(error)) for one, error in bad] == refused


class Polled(NamedTuple):
    id: str
    version: str | None = "1"
    key: str = "k"
    occurred_at: str | None = None
    value: bytes = b"{}"
    deleted: bool = False


def test_a_delete_is_an_event_of_its_own_and_keeps_its_place_among_the_others() -> None:
    envelope = Envelope("crm", "contacts", 3)
    polled = [Polled("7"), Polled("7", "a@b", deleted=True), Polled("7", "2", occurred_at="2024-01-01T00:00:00Z")]
    headers = [dict(message.headers) for message in envelope.messages(polled)]
    assert [(one["ce_id"], one["ce_type"], one["ce_subject"]) for one in headers] == [
        (b"crm:contacts:7@1", b"crm.contacts", b"7"),
        (b"crm:contacts:7#deleted@a%40b", b"crm.contacts.deleted", b"7"),
        (b"crm:contacts:7@2", b"crm.contacts", b"7"),
    ]
    assert [one.get("ce_time") for one in headers] == [None, None, b"2024-01-01T00:00:00Z"]
