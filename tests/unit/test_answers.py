"""Answers come apart without a changed byte, and a bad record does not take its neighbours along."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.paths import parse
from ingest.sources.answers import Answer, Undecodable, scalar
from ingest.sources.slices import Strict, Tolerant
from tests.texts import json_texts

DEEP = b"[" * 100_000 + b"]" * 100_000
BAD_RECORDS = [
    pytest.param(b'{"id":2,"x":NaN}', id="NaN"),
    pytest.param(b'{"id":2,"x":-Infinity}', id="Infinity"),
    pytest.param(b'{"id":2,"x":"\\ud800"}', id="lone surrogate"),
    pytest.param(b'{"id":2,"x":"a\x01b"}', id="raw control character"),
    pytest.param(b'{"id":2,"x":"a\nb"}', id="raw line break"),
    pytest.param(b'{"id":2,"x":01}', id="leading zero"),
    pytest.param(b'{"id":2,"x":"\\q"}', id="unknown escape"),
    pytest.param(b'{"id":2,"x":{"deep":' + DEEP + b"}}", id="nested too deeply"),
]


def slices(parts: list[bytes]) -> bytes:
    return b"[" + b",".join(parts) + b"]"


@pytest.mark.parametrize("bad", BAD_RECORDS)
def test_the_neighbours_of_a_bad_record_keep_their_bytes(bad: bytes) -> None:
    good = [b'{"id": 1, "t":"[}\\"{"}', b'{"id":3,"n":1.10}']
    answer = Answer(b' {"data" : ' + slices([good[0], bad, good[1]]) + b', "next":"t2"}\n')
    assert not answer.strict
    assert answer.records(parse("$.data").steps) == [good[0], bad, good[1]]
    assert scalar(answer.first(parse("$.next").steps)) == "t2"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"<html></html>",
        b"nonsense",
        b'{"data":[{"id":1},{"id"',
        b'{"data":[1,2',
        b'{"data":[1 2]}',
        b'{"data":[1,,2]}',
        b'{"data":[1,]}',
        b'{"data" [1]}',
        b"{data:[1]}",
        b'{"a":1}{"b":2}',
        b"[1] trailing",
        b'["unterminated]',
        b'[{"a":"unterminated]}',
        b"[1}",
        b'{"a":1]',
    ],
)
def test_a_body_that_cannot_be_followed_is_undecodable(body: bytes) -> None:
    with pytest.raises(Undecodable):
        Answer(body).records(("data",))


def test_a_long_string_without_an_end_is_given_up_at_once() -> None:
    with pytest.raises(Undecodable):
        Answer(b'{"data":[{"log":"' + b'\\"quoted\\" ' * 200_000)


def test_a_byte_order_mark_and_white_space_around_are_no_part_of_the_answer() -> None:
    assert Answer(b'\xef\xbb\xbf [{"id":1}]\r\n').records(()) == [b'{"id":1}']


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$.data", [b"1", b'{"a":[2]}']),
        ("$.nested.items", [b'"x"']),
        ("$.empty", []),
        ("$.by_id.*", [b'{"n":1}', b'{"n":2}']),
        ("$.none.*", []),
        ("$.groups[*].rows", [b"1", b"2", b"3"]),
        ("$.groups[*].rows[*]", [b"1", b"2", b"3"]),
        ("$.some[*].rows", None),
        ("$.some[*].deep.rows", None),
        ("$.deep[*].a.*.rows", None),
        ("$.mixed.*.rows", [b"1"]),
        ("$.empty[*]", []),
        ("$.missing", None),
        ("$.missing[*]", None),
        ("$.object", None),
        ("$.text", None),
        ("$.null", None),
        ("$.data.*", None),
        ("$", None),
    ],
)
def test_records_are_the_items_of_the_list_that_the_path_names(path: str, expected: list[bytes] | None) -> None:
    answer = Answer(
        b'{"data":[1,{"a":[2]}],"nested":{"items":["x"]},"empty":[],"by_id":{"p":{"n":1},"q":{"n":2}},"none":{},'
        b'"groups":[{"rows":[1,2]},{"rows":[3]}],"object":{"a":1},"text":"abc","null":null,'
        b'"some":[{"rows":[1],"deep":{"rows":[1]}},{"error":"x","deep":{}}],"mixed":{"n":1,"a":{"rows":[1]},"b":null},'
        b'"deep":[{"a":{"x":{"rows":[1]}}},{"a":{"y":{"rows":[2]},"z":{}}}]}'
    )
    assert answer.records(parse(path).steps) == expected


def test_a_bare_list_is_an_answer() -> None:
    assert Answer(b'[{"id":1},{"id":2}]').records(parse("$").steps) == [b'{"id":1}', b'{"id":2}']


def test_a_bare_scalar_is_an_answer_without_records() -> None:
    assert Answer(b'"maintenance"').records(parse("$").steps) is None


def test_the_lists_of_an_answer_are_named_with_their_lengths() -> None:
    answer = Answer(b'{"items":[1,2],"meta":{"errors":[],"deep":{"er":{"too":[1]}}},"count":2}')
    assert answer.lists() == [("$.items", 2), ("$.meta.errors", 0)]
    assert Answer(b"[1]").lists() == [("$", 1)]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'"abc"', "abc"),
        (b'"a\\u00e9\\n"', "aé\n"),
        (b'""', ""),
        (b"18446744073709551616", "18446744073709551616"),
        (b"1.10", "1.10"),
        (b"-0", "-0"),
        (b"1e2", "1e2"),
        (b"true", "true"),
        (b"false", "false"),
        (b"null", None),
        (None, None),
    ],
)
def test_a_scalar_is_its_own_text(raw: bytes | None, text: str | None) -> None:
    assert scalar(raw) == text


@pytest.mark.parametrize("raw", [b"{}", b"[]", b'{"a":1}'])
def test_an_object_or_a_list_is_no_scalar(raw: bytes) -> None:
    with pytest.raises(TypeError):
        scalar(raw)


@pytest.mark.parametrize(("raw", "error"), [(b'"\\ud800"', Undecodable), (b'"\xff"', UnicodeDecodeError)])
def test_text_that_is_none_is_no_scalar(raw: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        scalar(raw)


def _decodes(text: str) -> bool:
    """What the strict reader takes: lone surrogates are JSON to Python, and not to it."""
    try:
        Strict().items(text.encode())
    except (Undecodable, TypeError):
        return False
    return True


@given(st.lists(json_texts, max_size=6).map(lambda items: "[" + ",".join(items) + "]").filter(_decodes))
def test_the_tolerant_reader_cuts_a_list_as_the_strict_one_does(text: str) -> None:
    body = text.encode()
    assert [bytes(part) for part in Tolerant().items(body)] == [bytes(part) for part in Strict().items(body)]


@given(json_texts)
def test_the_tolerant_reader_cuts_an_object_as_the_strict_one_does(text: str) -> None:
    body = f'{{"a":{text}, "b" : {text},"\\u0063":1}}'.encode()
    try:
        strict = Strict().members(body)
    except Undecodable:
        return
    tolerant = Tolerant().members(body)
    assert {name: bytes(part) for name, part in tolerant.items()} == {n: bytes(part) for n, part in strict.items()}


@given(json_texts)
def test_what_any_json_holds_is_found_byte_for_byte(text: str) -> None:
    record = json.dumps({"id": 1}).encode()
    found = Answer(b'{"other":%s,"data":[%s]}' % (text.encode(), record)).records(("data",))
    assert found == [record]


@given(st.binary(max_size=60) | json_texts.map(lambda text: text.encode()[:-1]) | json_texts.map(str.encode))
def test_any_bytes_are_an_answer_or_undecodable(body: bytes) -> None:
    try:
        answer = Answer(body)
        answer.lists()
        answer.records(("a",))
        answer.records(())
    except Undecodable:
        return
