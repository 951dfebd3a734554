"""The text for COPY, read back by the rules of PostgreSQL's documentation."""

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.store.copytext import COLUMNS, line, text
from consumers.store.row import moments
from ingest.errors import BadRecord
from ingest.event import Event
from tests.texts import json_texts, texts

# PostgreSQL documentation, COPY, "Text Format"; the octal and hexadecimal forms are never written
_SEQUENCES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def event(**changes: object) -> Event:
    values: dict[str, object] = {
        "id": "billing:invoices:1",
        "source": "billing",
        "stream": "invoices",
        "key": "cus_1",
        "type": "billing.invoices",
        "subject": "1",
        "occurred_at": "2024-05-06T07:08:09Z",
        "fence": 1,
        "payload": b'{"id":1}',
        "content_type": "application/json",
        "topic": "billing.invoices",
        "partition": 3,
        "offset": 41,
        "published_ms": 0,
    }
    return Event(**{**values, **changes})  # type: ignore[arg-type]


def fields(copied: bytes) -> dict[str, bytes | None]:
    """What Postgres makes of one line."""
    assert copied.endswith(b"\n")
    assert b"\n" not in copied[:-1] and b"\r" not in copied, "Postgres would begin another line"
    parts = copied[:-1].split(b"\t")
    assert len(parts) == len(COLUMNS)
    return {name: None if part == rb"\N" else _unescaped(part) for name, part in zip(COLUMNS, parts, strict=True)}


def _unescaped(part: bytes) -> bytes:
    return re.sub(rb"\\(.)", lambda found: _SEQUENCES.get(found[1], found[1]), part, flags=re.DOTALL)


def test_a_line_is_the_columns_in_their_order() -> None:
    assert line(event()) == (
        b"billing:invoices:1\tbilling\tinvoices\tcus_1\tbilling.invoices\tbilling.invoices\t3\t41"
        b'\t2024-05-06T07:08:09Z\t{"id":1}\n'
    )


def test_an_absent_time_is_null_and_a_text_that_looks_like_null_is_not() -> None:
    read = fields(line(event(occurred_at=None, key="\\N", payload=b"\\N")))
    assert (read["occurred_at"], read["key"], read["payload"]) == (None, rb"\N", rb"\N")


def test_only_backslashes_are_doubled_in_a_payload_without_control_characters() -> None:
    assert line(event(payload=rb'{"a":"\n\u0000\\"}')).endswith(rb'{"a":"\\n\\u0000\\\\"}' + b"\n")


def test_control_characters_between_the_tokens_of_a_payload_arrive() -> None:
    body = b'{\r\n\t"a":\t"\\n"\n}'
    assert fields(line(event(payload=body)))["payload"] == body


@given(id=texts, source=texts, stream=texts, key=texts, type=texts, topic=texts)
def test_any_text_arrives_as_it_was(id: str, source: str, stream: str, key: str, type: str, topic: str) -> None:
    read = fields(line(event(id=id, source=source, stream=stream, key=key, type=type, topic=topic)))
    expected = {"event_id": id, "source": source, "stream": stream, "key": key, "type": type, "topic": topic}
    assert {name: read[name] for name in expected} == {name: text.encode() for name, text in expected.items()}


@given(body=st.binary(max_size=60) | json_texts.map(str.encode))
def test_any_payload_arrives_as_it_was(body: bytes) -> None:
    assert fields(line(event(payload=body)))["payload"] == body


@pytest.mark.parametrize("changes", [{"id": "\ud800"}, {"key": "a\udfff"}])
def test_a_text_without_utf8_is_a_bad_record(changes: dict[str, object]) -> None:
    with pytest.raises(BadRecord, match="UTF-8"):
        line(event(**changes))


@pytest.mark.parametrize("occurred_at", ["now", "2024-05-06", "2024-05-06T07:08:09", "2024-05-06\t07:08:09"])
def test_a_time_that_names_no_moment_is_a_bad_record(occurred_at: str) -> None:
    with pytest.raises(BadRecord, match="RFC 3339"):
        line(event(occurred_at=occurred_at))


def test_a_time_with_a_tab_in_it_does_not_end_its_field() -> None:
    assert fields(line(event(occurred_at="2024-05-06\t07:08:09Z")))["occurred_at"] == b"2024-05-06T07:08:09Z"


# Many events at once give the lines that each of them has

ODD_TEXTS = ["", "\\", "\\N", "\t", "\n", "\r", "\0", "a\tb", "é\N{PILE OF POO}", "\ud800", "."]
ODD_BODIES = [b"", b"\\", b"\\.", b"\t", b"\n", b"\r", b"{\r\n}", b"\0", b"\xff", "é".encode()]
ODD_TIMES = [
    None, "", "\0", "\\N", "now", "2024-05-06T07:08:09.5Z", "2024-05-06T07:08:09.123456789Z",
    "2024-05-06T07:08:09+02:00", "2024-05-06 07:08:09Z", "2024-05-06T07:08:09",
    "20240506T070809Z", "2024-05-06\t07:08:09Z", "٢٠٢٤-05-06T07:08:09Z",
    "2024-05-06T07:08:09Z\n2024-05-06T07:08:09Z", "2024-05-06T07:08:09Z\n", "0001-01-01T00:00:00+14:00",
]  # fmt: skip
ODDITIES = [
    *({name: text} for name in ("id", "source", "stream", "key", "type", "topic") for text in ODD_TEXTS),
    *({"payload": body} for body in ODD_BODIES),
    *({"payload": body, "content_type": "text/plain"} for body in ODD_BODIES),
    *({"occurred_at": time} for time in ODD_TIMES),
]


def all_at_once(events: Sequence[Event]) -> bytes:
    return text(events, moments(events))


def one_by_one(events: Sequence[Event]) -> bytes:
    return b"".join(line(one) for one in events)


def outcome(make: Callable[[Sequence[Event]], bytes], events: Sequence[Event]) -> bytes | str:
    """The text, or the code of what is wrong with the events."""
    try:
        return make(events)
    except BadRecord as exc:
        return exc.code


@pytest.mark.parametrize("changes", ODDITIES, ids=repr)
def test_one_odd_event_among_plain_ones_has_its_own_line(changes: dict[str, object]) -> None:
    for others in ([], [event(occurred_at=None), event()]):
        assert outcome(all_at_once, [*others, event(**changes)]) == outcome(one_by_one, [*others, event(**changes)])


@given(changes=st.lists(st.lists(st.sampled_from(ODDITIES), max_size=2), max_size=4))
def test_odd_events_have_the_same_lines_together(changes: list[list[dict[str, object]]]) -> None:
    events = [event(**dict(pair for some in each for pair in some.items())) for each in changes]
    codes = {outcome(one_by_one, [one]) for one in events} & {"bad_time", "not_utf8"}
    together = outcome(all_at_once, events)
    assert together in codes if codes else together == one_by_one(events)


@given(texts=st.tuples(texts, texts, texts), body=st.binary(max_size=40) | json_texts.map(str.encode))
def test_any_event_has_the_same_line_among_others(texts: tuple[str, str, str], body: bytes) -> None:
    id, key, topic = texts
    events = [event(), event(id=id, key=key, topic=topic, payload=body), event(occurred_at=None)]
    assert all_at_once(events) == one_by_one(events)


def test_a_column_of_times_takes_the_times_that_each_event_takes() -> None:
    days = [f"{y}-{m:02}-{d:02}T00:00:00Z" for y in ("0000", "2023", "2024") for m in range(14) for d in range(33)]
    clocks = [f"2024-05-06T{h:02}:{m:02}:{s:02}Z" for h in (0, 9, 23, 24) for m in (0, 59, 60) for s in (0, 59, 60)]
    for time in days + clocks:
        one = [event(occurred_at=time)]
        assert outcome(all_at_once, one) == outcome(one_by_one, one), time


def test_two_times_in_one_are_none() -> None:
    with pytest.raises(BadRecord, match="RFC 3339"):
        moments([event(occurred_at="2024-05-06T07:08:09Z\n2024-05-06T07:08:09Z")])


def test_plain_events_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.store.copytext.line", None)
    bodies, times = [b'{"note":"na\\u00efve \\"quoted\\" text"}', b"{}"], ["2024-05-06T07:08:09Z", None]
    copied = all_at_once([event(payload=body, occurred_at=time) for body in bodies for time in times])
    rows = [fields(one + b"\n") for one in copied.splitlines()]
    expected = [(body, time if time is None else time.encode()) for body in bodies for time in times]
    assert [(row["payload"], row["occurred_at"]) for row in rows] == expected
