"""`transform` changes what it names and nothing else; what identifies a record is read before."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import StreamId
from ingest.cli import show
from ingest.config.loader import parse as load_text
from ingest.config.references import resolve
from ingest.paths import parse
from ingest.redaction import Redactor
from ingest.report import Report
from ingest.sources.answers import Answer
from ingest.sources.casting import CASTS, MAX_EXPONENT
from ingest.sources.document import Document
from ingest.sources.identity import bounded_id, version_hash
from ingest.sources.page import PageReader, Read
from tests.harness.fake_api import FakeApi
from tests.texts import json_texts
from tests.unit.sources import Keys, configured, cursor, failure, ids, list_all, load, records, reply, say
from tests.unit.test_config_loader import stream as written

Steps = Sequence[Mapping[str, Any]]


@cache
def _reader(keys: str) -> PageReader:
    return PageReader(configured(keys=json.loads(keys))[1])


def page(body: bytes, *steps: Mapping[str, Any], **keys: Any) -> Read:
    """What is read of a list of records."""
    answer = Answer(body)
    found = answer.records(())
    assert found is not None
    reader = _reader(json.dumps({"transform": steps, **keys}))
    return reader.read(found, clean=answer.clean, places=answer.places(()))


def made(record: bytes, *steps: Mapping[str, Any], **keys: Any) -> bytes:
    """What is published for a record."""
    read = page(b"[%b]" % record, *steps, **{"id": [], **keys})
    assert not read.refused
    [one] = read.records
    return one.value


def refused(record: bytes, *steps: Mapping[str, Any]) -> tuple[str, str]:
    """Why it is a dead letter, beside a good neighbour."""
    read = page(b'[{"id":"good"},%b]' % record, *steps)
    [bad] = read.refused
    assert ([one.id for one in read.records], bad.value, bad.error.stage) == (["good"], record, "transform")
    return bad.error.code, str(bad.error)


RECORD = b'{"id":18446744073709551616,"a":{"b":1.10,"c":[{"d":"\\u00e9","e":1e2},{"e":2}]},"f":-0}'


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"drop": "f"}, RECORD.replace(b',"f":-0', b"")),
        ({"drop": ["a", "f", "missing", "f.x", "id[0]"]}, b'{"id":18446744073709551616}'),
        ({"drop": ["a.b"]}, RECORD.replace(b'"b":1.10,', b"")),
        ({"drop": ["a.c[*].e"]}, RECORD.replace(b',"e":1e2', b"").replace(b'"e":2', b"")),
        ({"drop": ["a.c[0]"]}, RECORD.replace(b'{"d":"\\u00e9","e":1e2},', b"")),
        ({"drop": ["a.c[*]"]}, RECORD.replace(b'{"d":"\\u00e9","e":1e2},{"e":2}', b"")),
        ({"drop": ["a.*"]}, RECORD.replace(b'"b":1.10,"c":[{"d":"\\u00e9","e":1e2},{"e":2}]', b"")),
        ({"rename": {"a": "z", "missing": "y"}}, RECORD.replace(b'"a"', b'"z"')),
        ({"rename": {"a.c[*].e": "é"}}, RECORD.replace(b'"e"', '"é"'.encode())),
        ({"rename": {"f": "id"}}, b'{"a":' + RECORD.partition(b'"a":')[2].replace(b'"f":-0', b'"id":-0')),
        ({"rename": {"f": "f"}}, RECORD),
        (
            {"add": {"x": "1.10", "a.b": None, "y.z": True}},
            RECORD.replace(b"1.10", b"null")[:-1] + b',"x":"1.10","y":{"z":true}}',
        ),
        ({"add": {"a": 5}}, b'{"id":18446744073709551616,"a":5,"f":-0}'),
        (
            {"cast": {"id": "text", "a.b": "text", "a.c[*].e": "integer"}},
            RECORD.replace(b"18446744073709551616", b'"18446744073709551616"')
            .replace(b"1.10", b'"1.10"')
            .replace(b"1e2", b"100"),
        ),
        ({"cast": {"missing": "integer", "a.c[*].d": "text", "f": "decimal"}}, RECORD),
    ],
)
def test_a_step_changes_what_it_names_and_every_other_value_keeps_its_bytes(
    step: dict[str, Any], expected: bytes
) -> None:
    assert made(RECORD, step) == expected


def test_steps_are_taken_in_their_order() -> None:
    record = b'{"a":"1","b":2}'
    assert made(record, {"rename": {"a": "b"}}, {"cast": {"b": "integer"}}, {"add": {"a": 3}}) == b'{"b":1,"a":3}'
    assert made(record, {"add": {"c": "x"}}, {"drop": "c"}, {"filter": "!c"}) == record


def test_a_record_that_no_step_changes_keeps_its_white_space() -> None:
    record = b'{ "id" : 1.10 ,"t":"a" }'
    assert made(record, {"filter": "t == 'a'"}) == record


def test_fractions_in_the_configuration_keep_their_digits() -> None:
    steps = "transform: [{add: {a: 1.10, b: 18446744073709551617, c: 1e-7, d: .5, e: -0.0}}]"
    config = load_text(written(f"path: /x, records: $, {steps}")).config
    [record] = PageReader(config.sources["api"].streams["items"]).read([b"{}"], clean=True).records
    assert record.value == b'{"a":1.10,"b":18446744073709551617,"c":1E-7,"d":0.5,"e":-0.0}'


def test_what_is_added_by_reference_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCOUNT", 'acme "1"')
    secrets = Redactor()
    keys = {"transform": [{"add": {"account": "${env:ACCOUNT}-${env:NONE:-x}"}}], "id": []}
    stream = resolve(load("http://x", keys).config.sources["api"], secrets).streams["events"]
    [record] = PageReader(stream).read([b"{}"], clean=True).records
    assert json.loads(record.value) == {"account": 'acme "1"-x'}
    assert secrets.scrub('acme "1"') == 'acme "1"'


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("type == 'invoice'", [1, 3]),
        ("total > `10.1`", [2, 3]),
        ("total == `10.1`", [1]),
        ("big == `18446744073709551616`", [1]),
        ("big == `18446744073709551617`", [2]),
        ("lines[?paid]", [3]),
        ("contains(keys(@), 'nothing')", []),
        ("paid", [2]),
        ("zero", [3]),
        ("text || map", [2]),
    ],
)
def test_a_filter_keeps_the_records_for_which_it_is_true(expression: str, kept: list[int]) -> None:
    body = (
        b'[{"id":1,"type":"invoice","total":10.10,"big":18446744073709551616,"lines":[{}],"paid":false,"text":""},'
        b'{"id":2,"type":"quote","total":1e999,"big":18446744073709551617,"paid":true,"text":"t","map":{}},'
        b'{"id":3,"type":"invoice","total":18446744073709551616,"lines":[{"paid":1}],"zero":0,"map":{}}]'
    )
    read = page(body, {"filter": expression})
    assert [int(one.id) for one in read.records] == kept
    assert read.skipped == 3 - len(kept)
    assert [int(one.id) for one in read.listed] == [1, 2, 3]


@pytest.mark.parametrize(
    ("record", "step", "code", "words"),
    [
        (b'{"id":1,"n":"abc"}', {"cast": {"n": "integer"}}, "bad_cast", 'cannot cast `n` to integer: "abc"'),
        (b'{"id":1,"n":[1]}', {"cast": {"n": "decimal"}}, "bad_cast", "cannot cast `n` to decimal: [1]"),
        (b'{"id":1,"n":null}', {"filter": "length(n) > `1`"}, "bad_filter", "`filter: length(n) > `1``"),
        (b'{"id":1,"a":5}', {"add": {"a.b": 1}}, "bad_add", "cannot add `a.b`: `a` is no object"),
        (b'{"id":1,"n":{}}', {"explode": "n"}, "not_a_list", "`explode`: `n` is no list"),
    ],
)  # fmt: skip
def test_what_a_step_cannot_do_is_a_dead_letter_with_the_bytes_that_came(
    record: bytes, step: dict[str, Any], code: str, words: str
) -> None:
    good: Keys = {"id": "good", "n": [{}] if "explode" in step else "x" if "filter" in step else 1}
    read = page(b"[%b,%b]" % (json.dumps(good).encode(), record), step, id="^.id" if "explode" in step else "id")
    [bad] = read.refused
    assert (bad.value, bad.error.stage, bad.error.code) == (record, "transform", code)
    assert words in str(bad.error)


def test_what_identifies_a_record_is_read_before_it_is_changed_and_its_hash_after() -> None:
    steps: Steps = [{"drop": ["id", "seen"]}, {"rename": {"k": "key"}}, {"add": {"rev": 9}}]
    keys: Keys = {"key": "k", "occurred_at": "at", "incremental": {"type": "integer", "field": "n"}}
    body = b'[{"id":1,"k":"a","at":0,"n":7,"rev":1,"seen":%b}]'
    [one] = page(body % b"5", *steps, **keys).records
    assert (one.id, one.key, one.occurred_at, one.position) == ("1", "a", "1970-01-01T00:00:00Z", 7)
    assert one.value == b'{"key":"a","at":0,"n":7,"rev":9}'
    assert one.version == version_hash(one.value)
    assert page(body % b"6", *steps, **keys).records == [one]
    assert page(body % b"6", *steps, **keys, version="rev").records[0].version == "1"
    assert page(body % b"6", *steps, **{**keys, "id": []}).records[0].id == version_hash(one.value)


WHOLE = b'{"id":"inv","at":7,"lines":[{"id":"l1","n":1.10},{"id":"l2","n":2},{"id":"l3","n":3}],"kind":"a"}'


def test_every_item_of_a_list_becomes_a_record_with_its_place_in_its_id() -> None:
    read = page(b"[%b]" % WHOLE, {"explode": "$.lines"})
    assert [(one.id, one.key, one.value) for one in read.records] == [
        ("l1#0", "l1#0", b'{"id":"l1","n":1.10}'),
        ("l2#1", "l2#1", b'{"id":"l2","n":2}'),
        ("l3#2", "l3#2", b'{"id":"l3","n":3}'),
    ]


@pytest.mark.parametrize("id", ['"%s"' % ("x" * 999), '"%s"' % ("x" * 1000), "9" * 999, "9" * 999 + ".0"])
def test_an_id_is_no_longer_for_its_place_than_ids_may_be(id: str) -> None:
    [record] = page(b'[{"lines":[{"id":%b}]}]' % id.encode(), {"explode": "lines"}).records
    assert record.id == bounded_id(id.strip('"') + "#0")
    assert len(record.id) < 40


def test_a_part_reaches_the_whole_and_what_is_around_that() -> None:
    body = b'{"tenant":"t","data":[%b]}' % WHOLE
    answer = Answer(body)
    found = answer.records(("data",))
    assert found is not None
    keys = {
        "id": ["^.^.tenant", "^.id"],
        "key": "^.kind",
        "version": "n",
        "transform": [{"drop": ["id"]}, {"explode": "lines"}],
    }
    read = PageReader(configured(keys=keys)[1]).read(found, clean=True, places=answer.places(("data",)))
    assert [(one.id, one.key, one.version) for one in read.records][:2] == [
        ("t|inv#0", "a", "1.10"),
        ("t|inv#1", "a", "2"),
    ]
    incremental = {"type": "integer", "field": "^.at"}
    assert {one.position for one in page(b"[%b]" % WHOLE, {"explode": "lines"}, incremental=incremental).records} == {7}


def test_steps_before_it_change_the_whole_and_steps_behind_it_each_part() -> None:
    read = page(
        b"[%b]" % WHOLE,
        {"rename": {"lines": "rows"}},
        {"drop": "rows[0].n"},
        {"explode": "rows"},
        {"filter": "id != 'l2'"},
        {"drop": "id"},
        version="n",
    )
    assert [(one.id, one.value) for one in read.records] == [("l1#0", b"{}"), ("l3#2", b'{"n":3}')]
    assert (read.skipped, [one.id for one in read.listed]) == (1, ["l1#0", "l2#1", "l3#2"])


def test_parts_of_a_record_that_a_filter_leaves_out_are_left_out_but_listed() -> None:
    read = page(b"[%b]" % WHOLE, {"filter": "kind == 'b'"}, {"cast": {"kind": "integer"}}, {"explode": "lines"})
    assert (read.records, read.refused, read.skipped) == ([], [], 1)
    read = page(b"[%b]" % WHOLE, {"filter": "kind == 'b'"}, {"filter": "kind == 'a'"}, {"explode": "lines"})
    assert (read.records, read.skipped, [one.id for one in read.listed]) == ([], 3, ["l1#0", "l2#1", "l3#2"])


@pytest.mark.parametrize("lines", [b"[]", b"null", b"{}"])
def test_a_record_without_parts_is_left_out(lines: bytes) -> None:
    body = b'[{"id":1,"lines":%b},{"id":2}]' % lines
    read = page(body, {"explode": "lines.*" if lines == b"{}" else "lines"})
    assert (read.records, read.refused, read.skipped) == ([], [], 2)


def test_a_part_that_is_no_record_is_a_dead_letter_alone() -> None:
    read = page(
        b'[{"lines":[{"id":1},7,{"id":null},{"id":4,"n":"x"}]}]', {"explode": "lines"}, {"cast": {"n": "integer"}}
    )
    assert [one.id for one in read.records] == ["1#0"]
    assert [(one.value, one.error.code) for one in read.refused] == [
        (b"7", "not_object"),
        (b'{"id":null}', "no_id"),
        (b'{"id":4,"n":"x"}', "bad_cast"),
    ]


@pytest.mark.parametrize("record", [b"7", b'"x"', b"[1]"])
def test_what_is_no_object_is_no_record_whatever_the_steps_are(record: bytes) -> None:
    for step in ({"filter": "type == 'a'"}, {"drop": "a"}, {"explode": "a"}, {"add": {"a": 1}}):
        [bad] = page(b'[%b,{"id":1,"a":[]}]' % record, step).refused
        assert (bad.value, bad.error.code) == (record, "not_object")


def test_half_a_surrogate_pair_is_no_obstacle() -> None:
    record = b'{"id":1,"a":"\\ud800","b":{"c":"\\udc00","d":1.10},"e":5}'
    steps: Steps = [{"drop": ["b.d", "e"]}, {"filter": "starts_with(id || 'x', 'x') || id == `1`"}, {"add": {"f": 1}}]
    assert made(record, *steps[:1], *steps[2:]) == b'{"id":1,"a":"\\ud800","b":{"c":"\\udc00"},"f":1}'
    assert made(record, {"filter": "id == `1`"}) == record
    listed = b'{"id":1,"l":[{"c":"\\udc00","d":1},{"d":1.10}]}'
    assert made(listed, {"drop": "l[0].d"}) == b'{"id":1,"l":[{"c":"\\udc00"},{"d":1.10}]}'


# ---- casts


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("decimal", '"1.10"', "1.10"),
        ("decimal", '" -0.50 "', "-0.50"),
        ("decimal", '"+1.50"', "1.50"),
        ("decimal", '"007.50"', "7.50"),
        ("decimal", '".5"', "0.5"),
        ("decimal", '"1e400"', "1e400"),
        ("decimal", "18446744073709551616.000000000000000000001", "18446744073709551616.000000000000000000001"),
        ("integer", '"42"', "42"),
        ("integer", "42.00", "42"),
        ("integer", '"18446744073709551616.000"', "18446744073709551616"),
        ("integer", "1e3", "1000"),
        ("integer", '"-007"', "-7"),
        ("boolean", '"True"', "true"),
        ("boolean", "0", "false"),
        ("boolean", '"1"', "true"),
        ("boolean", "false", "false"),
        ("text", "1.10", '"1.10"'),
        ("text", "true", '"true"'),
        ("text", '"a\\u00e9"', '"a\\u00e9"'),
        ("text", '{"a":"b"}', '"{\\"a\\":\\"b\\"}"'),
    ],
)
def test_a_cast_writes_the_same_value_as_another_type(kind: str, value: str, expected: str) -> None:
    assert made(b'{"v":%b}' % value.encode(), {"cast": {"v": kind}}) == b'{"v":%b}' % expected.encode()
    assert made(b'{"v":null}', {"cast": {"v": kind}}) == b'{"v":null}'


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(
            ("decimal", value)
            for value in ('""', '"1,5"', '"1_000"', '"NaN"', '"0x1F"', "true", '"١"', '"1 2"', "{}", '"\\ud800"')
        ),
        *(("integer", value) for value in ("1.5", '"1e401"', '"1e99999999999"', '"a"', "false", '"1e-1"')),
        *(("boolean", value) for value in ('"yes"', "2", '""', "[]", "1.0")),
    ],
)
def test_what_is_no_such_value_is_a_dead_letter(kind: str, value: str) -> None:
    read = page(b'[{"id":1,"v":%b}]' % value.encode(), {"cast": {"v": kind}})
    assert [one.error.code for one in read.refused] == ["bad_cast"]


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@given(NUMBERS)
def test_a_number_is_the_same_number_after_any_cast(number: str) -> None:
    value = number.encode()
    assert CASTS["decimal"](value) == CASTS["decimal"](CASTS["text"](value)) == value
    try:
        assert Decimal(CASTS["integer"](value).decode()) == Decimal(number)
    except ValueError:
        exponent = Decimal(number).as_tuple().exponent
        assert Decimal(number) != Decimal(number).to_integral_value() or abs(int(exponent)) > MAX_EXPONENT


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "é"]), json_texts, min_size=1))
def test_what_is_not_touched_keeps_its_bytes(members: dict[str, str]) -> None:
    record = ("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items()) + "}").encode()
    document = Document(record)
    document.each(parse("a").steps, lambda container, key: container.pop(key))
    document.each(parse("b.x[*].y").steps, lambda container, key: container.pop(key))
    kept = {name: value for name, value in members.items() if name != "a"}
    assert all(value.strip().encode() in document.text for name, value in kept.items() if name != "b")
    assert json.loads(document.text).keys() == kept.keys()


# ---- in a listing


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        yield api


async def test_what_a_filter_leaves_out_counts_for_paging_and_for_the_cursor(api: FakeApi) -> None:
    first = [{"id": n, "n": n, "type": "b"} for n in (1, 2)]
    second = [{"id": 3, "n": 3, "type": "a"}, {"id": 4, "n": 4, "type": "b"}]
    say(api, [reply(json.dumps({"data": rows})) for rows in (first, second, [])])
    incremental = {"type": "integer", "field": "n", "order": "asc", "since": {"param": "after"}}
    keys = {"paginate": {"type": "offset"}, "transform": [{"filter": "type == 'a'"}], "incremental": incremental}
    pages = await list_all(api.url, keys)
    assert ids(pages) == ["3"]
    assert [page.skipped for page in pages] == [2, 1, 0]
    assert [cursor(page)["high_water"] for page in pages] == [2, 4, 4]
    assert [request.query["offset"] for request in api.requests] == ["0", "2", "4"]


def test_what_was_left_out_is_shown_at_the_end_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(StreamId("api", "events"), events=1, unchanged=2, skipped=3)
    show.reports([report], as_json=False, scrub=str)
    assert "2 (3 skipped)" in capsys.readouterr().out
    show.reports([report], as_json=True, scrub=str)
    assert json.loads(capsys.readouterr().out)[0]["skipped"] == 3


async def test_pages_that_differ_only_in_what_a_filter_leaves_out_are_no_circle(api: FakeApi) -> None:
    pinned = {"id": "pinned", "type": "a"}
    bodies = [{"data": [pinned, {"id": n, "type": "b"}], "next": f"/events?p={n}"} for n in range(3)]
    say(api, [reply(json.dumps(body)) for body in [*bodies, {"data": []}]])
    keys = {"paginate": {"type": "next_url", "from": "$.next"}, "transform": [{"filter": "type == 'a'"}]}
    assert ids(await list_all(api.url, keys)) == ["pinned"] * 3


async def test_a_page_whose_records_all_fail_in_a_step_is_no_change_of_the_answer(api: FakeApi) -> None:
    say(api, [reply('{"data":[{"id":1,"n":"x"},{"id":2,"n":"y"}]}')])
    [page] = await list_all(api.url, {"transform": [{"cast": {"n": "integer"}}]})
    assert (records([page]), len(page.refused)) == ([], 2)
    _, error = await failure(api.url, {"transform": [{"explode": "n"}]})
    assert "no record of the first page is good" in str(error)
