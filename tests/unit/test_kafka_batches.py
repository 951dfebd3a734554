"""Batches are written here and read by aiokafka, by others' Kafka clients, and by the broker (tests/contract)."""

from collections.abc import Sequence

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from ingest.event import Form, Message
from ingest.eventlog.kafka.batches import Page, RecordBatch, encoded

MOMENT = 1_700_000_000_123
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.binary(max_size=300)
forms = st.sampled_from(
    [
        Form((), ()),
        Form((("ce_source", b"/a/b"), ("ce_type", b"")), ("ce_id", "ce_subject")),
        Form((), ("ce_id", "ce_subject", "ce_time")),
    ]
)
alike = forms.flatmap(
    lambda form: st.builds(Message, values, values, st.just(form), st.tuples(*[values] * len(form.names)))
)
unlike = st.builds(Message.of, values, values, st.lists(st.tuples(names, values), max_size=70))


def read(batch: RecordBatch) -> list[tuple[int, int, bytes, bytes, list[tuple[str, bytes]]]]:
    """Offset, time, key, value and headers of its records; by aiokafka's own reader."""
    built = DefaultRecordBatch(bytearray(batch._build()))
    assert built.validate_crc()
    assert (built.base_offset, built.magic, built.last_offset_delta) == (0, 2, batch.record_count() - 1)
    assert (built.first_timestamp, built.max_timestamp) == (MOMENT, MOMENT)
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in built]


def as_sent(messages: Sequence[Message]) -> list[tuple[int, int, bytes, bytes, list[tuple[str, bytes]]]]:
    return [(n, MOMENT, m.key, m.value, m.headers) for n, m in enumerate(messages)]


@given(st.lists(alike | unlike, min_size=1, max_size=8))
def test_a_batch_gives_every_message_back_byte_for_byte(messages: list[Message]) -> None:
    records = encoded(messages)
    batch = RecordBatch(records, len(messages), MOMENT)
    assert read(batch) == as_sent(messages)
    assert batch.size() == 61 + len(records)


@pytest.mark.parametrize("length", [0, 63, 64, 8191, 8192, 1_048_575, 1_048_576, 2_000_000])
def test_lengths_are_written_in_as_many_bytes_as_they_need(length: int) -> None:
    message = Message.of(b"k" * length, b"v" * length, [("h", b"x" * length)])
    assert read(RecordBatch(encoded([message]), 1, MOMENT)) == as_sent([message])


def test_the_producer_of_a_batch_stands_in_its_head() -> None:
    message = Message.of(b"k", b"v", [])
    batch = RecordBatch(encoded([message]), 1, MOMENT)
    batch._set_producer_state(2**40, 3, 70_000)
    built = DefaultRecordBatch(bytearray(batch._build()))
    assert (built.producer_id, built.producer_epoch, built.base_sequence) == (2**40, 3, 70_000)
    assert built.validate_crc()
    assert not built.is_transactional


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40), st.integers(1_000, 8_000))
async def test_a_page_is_split_in_order_and_only_what_cannot_fit_is_left_out(sizes: list[int], limit: int) -> None:
    messages = [Message.of(b"%d" % n, b"x" * size, []) for n, size in enumerate(sizes)]
    page = Page(messages, limit, MOMENT, [])
    batches = [batch async for batch in page.batches(range(len(messages)))]
    assert all(batch.size() <= limit for batch in batches)
    too_large = [n for n, message in enumerate(messages) if message.size() > limit]
    assert page.oversized == too_large
    found = [key for batch in batches for _, _, key, _, _ in read(batch)]
    assert found == [message.key for n, message in enumerate(messages) if n not in too_large]
