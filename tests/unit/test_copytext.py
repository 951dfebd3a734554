"""The text for COPY, read back by the rules of PostgreSQL's documentation."""

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.store.copytext import COLUMNS, line, text
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

_odd_texts = st.text(st.sampled_from("ab:\\\t\n\r\0\ud800é\N{PILE OF POO}N"), max_size=6)
_odd_bodies = st.binary(max_size=6) | st.text("{}\\\t\n\r\0N", max_size=6).map(str.encode) | json_texts.map(str.encode)
_known_times = st.sampled_from([
    "2024-05-06T07:08:09Z", "2024-05-06T07:08:09.5Z", "2024-05-06T07:08:09.123456789Z", "2024-05-06T09:08:09+02:00",
    "2024-02-29T00:00:00Z", "2023-02-29T00:00:00Z", "2024-04-31T00:00:00Z", "2024-12-31T23:59:59Z",
    "2024-01-30T24:00:00Z", "0000-01-01T00:00:00Z", "2024-05-06T07:08:09Z\n2024-05-06T07:08:09Z",
    "2024-05-06 07:08:09Z", "2024-05-06\t07:08:09Z",
    "٢٠٢٤-05-06T07:08:09Z", "", "\0", "\\N", "now", "2024-05-06T07:08:09", "20240506T070809Z",
])  # fmt: skip
_digits = st.from_regex(r"[0-9]{4}-[01]\d-[0-3]\dT[0-2]\d:[0-6]\d:[0-6]\d(\.[0-9]{1,7})?Z", fullmatch=True)
_events = st.builds(
    lambda **changes: event(**changes),
    id=_odd_texts,
    source=st.sampled_from(["billing", "a\tb"]),
    key=_odd_texts,
    occurred_at=st.none() | _known_times | _digits,
    payload=_odd_bodies,
    content_type=st.sampled_from(["application/json"] * 3 + ["text/plain"]),
    offset=st.integers(0, 2**63 - 1),
)


def outcome(make: Callable[[Sequence[Event]], bytes], events: Sequence[Event]) -> bytes | str:
    """The text, or the code of what is wrong with the events."""
    try:
        return make(events)
    except BadRecord as exc:
        return exc.code


@given(events=st.lists(_events, max_size=4))
@example([event(), event(occurred_at="\0")])
@example([event(occurred_at=None, key="\0"), event(occurred_at=None)])
@example([event(key="a\tb"), event(payload=b"\\N")])
def test_many_events_at_once_give_the_lines_that_each_has(events: list[Event]) -> None:
    codes = {outcome(lambda some: line(some[0]), [one]) for one in events} & {"bad_time", "not_utf8"}
    if codes:
        assert outcome(text, events) in codes
    else:
        assert text(events) == b"".join(line(one) for one in events)


def test_plain_events_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.store.copytext.line", None)
    bodies = [b'{"note":"na\\u00efve \\"quoted\\" text"}', b"{}"]
    copied = text([event(payload=body, occurred_at=time) for body in bodies for time in ("2024-05-06T07:08:09Z", None)])
    rows = [fields(one + b"\n") for one in copied.splitlines()]
    assert [(row["payload"], row["occurred_at"]) for row in rows] == [
        (body, time) for body in bodies for time in (b"2024-05-06T07:08:09Z", None)
    ]
