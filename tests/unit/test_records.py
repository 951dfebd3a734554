"""From the bytes of a record to its identity, key, time and place; or to a refusal that says why."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingest.errors import BadRecord
from ingest.event import event_id
from ingest.sources import SourceRecord
from ingest.sources.identity import MAX_ID_BYTES, bounded_id, joined, version_hash
from ingest.sources.page import PageReader
from ingest.sources.records import RecordReader
from tests.texts import texts
from tests.unit.sources import Keys, configured

TIMESTAMP = {"incremental": {"type": "timestamp", "field": "at"}}


def reader(**keys: Any) -> RecordReader:
    return RecordReader(configured(keys=keys)[1])


def taken(record: bytes, **keys: Any) -> SourceRecord:
    read = reader(**keys).read(record)
    assert isinstance(read, SourceRecord)
    return read


def refused(record: bytes, **keys: Any) -> BadRecord:
    read = reader(**keys).read(record)
    assert isinstance(read, BadRecord)
    return read


@pytest.mark.parametrize(
    ("value", "id"),
    [
        (b'"ch_1"', "ch_1"),
        (b'""', ""),
        (b'"a|b"', "a|b"),
        (b'"caf\\u00e9"', "café"),
        ('"café"'.encode(), "café"),
        (b"7", "7"),
        (b"0", "0"),
        (b"-0", "-0"),
        (b"9007199254740993", "9007199254740993"),
        (b"18446744073709551616", "18446744073709551616"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
        (b"1.10", "1.10"),
        (b"1e2", "1e2"),
        (b"3241201784.0", "3241201784.0"),
        (b"true", "true"),
        (b"false", "false"),
    ],
)
def test_an_id_is_its_text_or_its_raw_digits(value: bytes, id: str) -> None:
    record = b'{"id": ' + value + b', "other": [1.10]}'
    assert taken(record).id == id
    assert taken(b'{"a":{"b":[%s]}}' % value, id="a.b[0]").id == id
    assert taken(record).value == record


@pytest.mark.parametrize("record", [b'{"id":null}', b"{}", b'{"id":{"n":1}}', b'{"id":[1]}'])
def test_a_record_without_a_usable_id_is_refused_with_its_bytes(record: bytes) -> None:
    [refusal] = PageReader(configured()[1]).read([record], clean=True).refused
    assert refusal.value == record
    assert refusal.error.stage == "validate"
    assert refusal.error.code in ("no_id", "bad_id")
    assert "`id`" in str(refusal.error)


@pytest.mark.parametrize("record", [b"1", b'"text"', b"null", b"[]", b" [1]", b"true"])
def test_what_is_no_object_is_refused(record: bytes) -> None:
    assert refused(record).code == "not_object"
    assert refused(record, id=["a[0]"]).code == "not_object"


def test_a_composite_id_joins_its_escaped_parts() -> None:
    assert taken(b'{"a":"x|y","b":7,"c":"p\\\\q"}', id=["a", "b", "c"]).id == r"x\|y|7|p\\q"


def test_a_composite_id_with_a_missing_part_is_refused() -> None:
    assert "`id` (b)" in str(refused(b'{"a":1,"b":null}', id=["a", "b"]))


@given(st.lists(texts, min_size=2, max_size=4), st.lists(texts, min_size=2, max_size=4))
def test_two_composite_ids_are_equal_only_when_their_parts_are(a: list[str], b: list[str]) -> None:
    assert (joined(a) == joined(b)) == (a == b)


@given(
    st.text("|\\ab", max_size=4),
    st.text("|\\ab", max_size=4),
    st.text("|\\ab", max_size=4),
    st.text("|\\ab", max_size=4),
)
def test_separators_in_the_parts_cannot_make_two_ids_one(a: str, b: str, c: str, d: str) -> None:
    assert (joined([a, b]) == joined([c, d])) == ((a, b) == (c, d))


@pytest.mark.parametrize("text", ["x" * MAX_ID_BYTES, "é" * (MAX_ID_BYTES // 2)])
def test_an_id_of_a_thousand_bytes_stays(text: str) -> None:
    assert bounded_id(text) == text


@pytest.mark.parametrize("text", ["x" * (MAX_ID_BYTES + 1), "é" * (MAX_ID_BYTES // 2) + "x", "☃" * 400])
def test_a_longer_id_becomes_its_hash(text: str) -> None:
    assert bounded_id(text) == "~~" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    assert taken(json.dumps({"id": text}).encode()).id == bounded_id(text)


def test_the_version_is_by_default_a_hash_of_the_bytes() -> None:
    record = b'{"id":1,"n":1.10}'
    assert taken(record).version == "~" + hashlib.blake2b(record, digest_size=8).hexdigest()
    assert taken(record).version != taken(b'{"id":1,"n":1.1}').version


def test_a_version_path_takes_the_text_of_the_api() -> None:
    assert taken(b'{"id":1,"rev":12.50}', version="rev").version == "12.50"
    assert taken(b'{"id":1,"rev":"2024-01-01"}', version="rev").version == "2024-01-01"


@pytest.mark.parametrize("record", [b'{"id":1,"rev":null}', b'{"id":1}'])
def test_a_version_that_is_null_or_missing_is_the_hash(record: bytes) -> None:
    assert taken(record, version="rev").version == version_hash(record)


def test_immutable_records_have_no_version() -> None:
    assert taken(b'{"id":1}', version="none").version is None


def test_an_at_sign_in_a_version_is_escaped_in_the_event_id() -> None:
    record = taken(b'{"id":"a@b","rev":"v@1"}', version="rev")
    assert event_id("api", "events", record.id, record.version) == "api:events:a@b@v%401"


@given(st.text("@%402 ~5", max_size=6), st.text("@%402 ~5", max_size=6))
@example("x@y", "x%40y")
@example("%40", "%2540")
def test_two_versions_are_never_written_alike(one: str, other: str) -> None:
    assert (event_id("a", "b", "c", one) == event_id("a", "b", "c", other)) == (one == other)


@pytest.mark.parametrize("version", ["2024-01-02T03:04:05.678+00:00", "12.50", 'W/"5d41402a"', "~0123456789abcdef"])
def test_versions_as_apis_write_them_stand_in_the_event_id_as_they_are(version: str) -> None:
    assert event_id("api", "events", "1", version) == f"api:events:1@{version}"


def test_without_an_id_the_hash_is_the_id_and_equal_records_are_one() -> None:
    one, other, third = (taken(record, id=[]) for record in (b'{"n":1}', b'{"n":1}', b'{"n":2}'))
    assert one.id == other.id == version_hash(b'{"n":1}') != third.id
    assert one.version is None
    assert one.key == one.id


@pytest.mark.parametrize("record", [b'{"id":5,"account":null}', b'{"id":5}'])
def test_a_key_that_is_null_or_missing_is_the_id(record: bytes) -> None:
    assert taken(record, key="account").key == "5"


def test_the_key_is_the_text_at_its_path() -> None:
    assert taken(b'{"id":5,"account":"acct"}', key="account").key == "acct"
    assert taken(b'{"id":5,"a":{"b":10.0}}', key="a.b").key == "10.0"
    assert taken(b'{"id":5}').key == "5"


@pytest.mark.parametrize("field", ["key", "version"])
def test_an_object_as_key_or_version_is_refused(field: str) -> None:
    assert refused(b'{"id":5,"x":{}}', **{field: "x"}).code == f"bad_{field}"


@pytest.mark.parametrize(
    ("value", "time"),
    [
        (b'"2024-01-02T03:04:05Z"', "2024-01-02T03:04:05Z"),
        (b'"2024-01-02T03:04:05+01:00"', "2024-01-02T02:04:05Z"),
        (b"1704164645", "2024-01-02T03:04:05Z"),
        (b"1704164645.5", "2024-01-02T03:04:05.500000Z"),
        (b"null", None),
        (b'"yesterday"', None),
        (b"{}", None),
    ],
)
def test_the_time_of_an_event_is_optional(value: bytes, time: str | None) -> None:
    assert taken(b'{"id":1,"created":%s}' % value, occurred_at="created").occurred_at == time


def test_the_time_of_an_event_is_read_as_the_incremental_field_is() -> None:
    incremental = {"type": "timestamp", "field": "at", "format": "%d.%m.%Y %H:%M", "timezone": "Asia/Kolkata"}
    record = b'{"id":1,"at":"02.01.2024 05:30","created":1704153600}'
    assert taken(record, occurred_at="at", incremental=incremental).occurred_at == "2024-01-02T00:00:00Z"
    assert taken(record, occurred_at="created", incremental=incremental).occurred_at == "2024-01-02T00:00:00Z"


def test_the_incremental_field_is_a_position_in_microseconds() -> None:
    record = taken(b'{"id":1,"m":{"at":"1970-01-01T00:00:01.5Z"}}', incremental={"type": "timestamp", "field": "m.at"})
    assert record.position == 1_500_000


def test_an_integer_field_is_its_own_position() -> None:
    integer = {"type": "integer", "field": "n"}
    assert taken(b'{"id":1,"n":9007199254740993}', incremental=integer).position == 9_007_199_254_740_993
    assert taken(b'{"id":1,"n":"42"}', incremental=integer).position == 42
    assert taken(b'{"id":1,"n":0}', incremental=integer).position == 0


@pytest.mark.parametrize("value", [b"{}", b"[1]", b'"soon"', b"true", b"99999999999999999999"])
def test_an_unreadable_incremental_field_is_refused(value: bytes) -> None:
    assert refused(b'{"id":1,"at":%s}' % value, **TIMESTAMP).code == "bad_cursor"
    assert refused(b'{"id":1,"n":%s}' % value, incremental={"type": "integer", "field": "n"}).code == "bad_cursor"


@pytest.mark.parametrize("record", [b'{"id":1,"at":null}', b'{"id":1}'])
@pytest.mark.parametrize("on_null", ["emit", "skip", "fail"])
def test_a_record_without_the_incremental_field_follows_on_null(record: bytes, on_null: str) -> None:
    read = reader(incremental={**TIMESTAMP["incremental"], "on_null": on_null}).read(record)
    if on_null == "emit":
        assert isinstance(read, SourceRecord)
        assert read.position is None
    elif on_null == "skip":
        assert read is None
    else:
        assert isinstance(read, BadRecord)
        assert read.code == "null_cursor"


def test_one_field_can_serve_several_purposes() -> None:
    record = taken(b'{"id":"2024-01-02T00:00:00Z"}', key="id", version="id", occurred_at="id")
    assert {record.id, record.key, record.version, record.occurred_at} == {"2024-01-02T00:00:00Z"}


SCALARS = st.one_of(
    st.integers().map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    texts.map(json.dumps),
    texts.map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(["true", "false"]),
)


@given(SCALARS, SCALARS)
def test_any_scalar_has_the_same_text_on_the_fast_and_on_the_slow_way(id: str, key: str) -> None:
    record = f'{{"id": {id} ,"k":{key}}}'.encode()
    fast = taken(record, key="k")
    slow = taken(b'{"wrap":%s}' % record, id="wrap.id", key="wrap.k")
    expected = json.loads(id) if id.startswith('"') else id
    assert fast.id == slow.id == bounded_id(expected)
    assert fast.key == slow.key


ODD = st.sampled_from(
    ["0", "-0", "1.5", "null", "true", "[]", "{}", '"a\\u0000b"', '"a@b"', '"2024-01-02T03:04:05Z"', '"soon"', "7"]
)
FIELDS = st.dictionaries(st.sampled_from(["id", "k", "v", "at"]), SCALARS | ODD, max_size=4)
RECORDS = FIELDS.map(lambda fields: "{" + ",".join(f'"{name}": {value}' for name, value in fields.items()) + "}")
GOOD = st.builds('{{"id":"{0}","k":{0},"at":"2024-01-02T03:04:0{1}Z"}}'.format, st.integers(1), st.integers(0, 9))
KEYS = st.fixed_dictionaries(
    {"id": st.sampled_from([["id"], ["id", "k"], []])},
    optional={
        "key": st.just("k"),
        "version": st.sampled_from(["v", "none"]),
        "occurred_at": st.sampled_from(["at", "v"]),
        "incremental": st.fixed_dictionaries(
            {"type": st.sampled_from(["timestamp", "integer"]), "field": st.sampled_from(["at", "v"])},
            optional={"on_null": st.sampled_from(["emit", "skip", "fail"])},
        ),
    },
)


@given(KEYS, st.lists(GOOD | RECORDS, max_size=4), st.lists(GOOD | RECORDS, max_size=2))
def test_a_page_gives_what_its_records_give_one_by_one(keys: Keys, first: list[str], last: list[str]) -> None:
    page = [record.encode() for record in first + last]
    read = PageReader(configured(keys=keys)[1]).read(page, clean=True)
    one_by_one = [reader(**keys).read(record) for record in page]
    assert read.records == [one for one in one_by_one if isinstance(one, SourceRecord)]
    assert [(one.value, str(one.error)) for one in read.refused] == [
        (record, str(one)) for record, one in zip(page, one_by_one, strict=True) if isinstance(one, BadRecord)
    ]
    assert read.skipped == one_by_one.count(None)


def test_a_page_of_plain_records_is_read_at_once() -> None:
    page = [b'{"id":"a","k":7,"at":"2024-01-02T03:04:05Z"}', b'{"id":8,"at":null}']
    assert reader(key="k", occurred_at="at", **TIMESTAMP).columns(page) is not None
