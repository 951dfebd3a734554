"""What JSON forbids, and what its readers disagree on, follows `decode`; the neighbours keep their bytes."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingest.errors import SourceChanged
from ingest.sources.answers import Answer
from ingest.sources.decoding import may_repeat_a_name
from ingest.sources.page import PageReader, Read
from tests.harness.fake_api import FakeApi
from tests.texts import json_texts
from tests.unit.sources import Keys, Watching, configured, opened, read, reply, say

GOOD = [b'{"id": 1, "n":1.10}', b'{"id":18446744073709551616,"\\u006e":"\\/ NaN"}']
TEXT = b'"NaN,\\"NaN\\\\", "\\\\"'


def page(bad: bytes, **decode: str) -> Read:
    """The second of three records on a page."""
    answer = Answer(b'{"data":[%b, %b ,%b]}' % (GOOD[0], bad, GOOD[1]))
    found = answer.records(("data",))
    assert found is not None
    read = PageReader(configured(keys={"decode": decode})[1]).read(found, clean=answer.clean)
    assert [value for value in values(read) if value in GOOD] == GOOD
    return read


def values(read: Read) -> list[bytes]:
    return [record.value for record in read.records]


def made_of(bad: bytes, **decode: str) -> bytes:
    """What is published for it."""
    published = values(page(bad, **decode))
    assert len(published) == 3
    return published[1]


def code(bad: bytes, **decode: str) -> str:
    """Why it is a dead letter."""
    [refused] = page(bad, **decode).refused
    assert refused.value == bad
    return refused.error.code


@pytest.mark.parametrize(
    ("record", "as_null", "as_text"),
    [
        (b'{"id":2,"x":NaN}', b'{"id":2,"x":null}', b'{"id":2,"x":"NaN"}'),
        (b'{"id":2,"x": -Infinity }', b'{"id":2,"x": null }', b'{"id":2,"x": "-Infinity" }'),
        (b'{"id":2,"x":[nan,1.10,inf]}', b'{"id":2,"x":[null,1.10,null]}', b'{"id":2,"x":["nan",1.10,"inf"]}'),
        (
            b'{"id":2,"t":[%b],"NaN":NaN}' % TEXT,
            b'{"id":2,"t":[%b],"NaN":null}' % TEXT,
            b'{"id":2,"t":[%b],"NaN":"NaN"}' % TEXT,
        ),
    ],
)
def test_what_is_no_number_becomes_null_or_its_text(record: bytes, as_null: bytes, as_text: bytes) -> None:
    assert made_of(record) == made_of(record, nan="as_null") == as_null
    assert made_of(record, nan="as_text") == as_text


@pytest.mark.parametrize("nan", ["as_null", "as_text"])
@pytest.mark.parametrize("wrong", [b"{NaN:1}", b"1NaN", b"NaN1", b"--NaN", b"NaN NaN", b"a.NaN", b"-nano"])
def test_what_is_neither_json_nor_nan_is_a_dead_letter_with_its_bytes(wrong: bytes, nan: str) -> None:
    assert code(b'{"id":2,"x":%b}' % wrong, nan=nan) == "not_json"


def test_an_id_that_is_no_number_is_null_or_its_text() -> None:
    assert code(b'{"id":NaN}') == "no_id"
    assert page(b'{"id":NaN}', nan="as_text").records[1].id == "NaN"


def test_bytes_that_are_not_utf8_become_one_character_each() -> None:
    assert made_of(b'{"id":2,"x":"caf\xe9 1.10"}') == '{"id":2,"x":"caf\ufffd 1.10"}'.encode()
    assert (
        made_of(b'{"id":2,"x":"\xed\xa0\x80"}', invalid_utf8="replace") == '{"id":2,"x":"\ufffd\ufffd\ufffd"}'.encode()
    )
    assert code(b'{"id":2,"x":\xff}') == "not_json"


def test_bytes_that_are_not_utf8_are_a_dead_letter_where_the_policy_says_so() -> None:
    assert code(b'{"id":2,"x":"caf\xe9"}', invalid_utf8="dead_letter") == "not_utf8"


REPEATED = [
    pytest.param(b'{"id":2,"x":1,"x":1}', id="at the top"),
    pytest.param(b'{"id":2,"a":[{"b":{"c":1,"c":2}}]}', id="deep inside"),
    pytest.param(b'{"id":2,"x":1,"\\u0078":2}', id="written otherwise"),
    pytest.param(b'{"id":2,"x":1,"x":"\\u003a"}', id="beside a colon that is escaped"),
    pytest.param(b'{"id":2,"x":"a:b:c","x":":"}', id="beside colons"),
    pytest.param(b'{"id":2,"x" : 1e999 , "x":NaN}', id="beside odd numbers"),
    pytest.param(b'{"id":2,"x":"\\ud800","x":1}', id="beside half a surrogate pair"),
]


@pytest.mark.parametrize("record", REPEATED)
def test_a_name_that_comes_twice_in_an_object_is_a_dead_letter(record: bytes) -> None:
    assert code(record) == code(record, duplicate_keys="dead_letter") == "duplicate_key"


@pytest.mark.parametrize("record", REPEATED)
def test_a_name_that_comes_twice_may_stay_and_the_last_one_is_read(record: bytes) -> None:
    assert made_of(record, duplicate_keys="keep", nan="as_text") == record.replace(b"NaN", b'"NaN"')
    assert page(b'{"id":5,"id":2}', duplicate_keys="keep").records[1].id == "2"


@pytest.mark.parametrize(
    "record",
    [
        b'{"id":2,"a":{"id":2},"b":[{"id":2},{"id":2}]}',
        b'{"id":2,"a":"\\"a\\":","b":"\\u003a","c":1e999}',
        b'{"id":2,"":{}}',
    ],
)
def test_a_name_that_comes_again_in_another_object_is_no_duplicate(record: bytes) -> None:
    assert made_of(record) == record


@pytest.mark.parametrize(
    ("policy", "bad", "words"),
    [
        ("nan", b'{"id":2,"x":NaN}', "holds NaN, and `decode.nan` is `fail`"),
        ("invalid_utf8", b'{"id":2,"x":"\xff"}', "is not UTF-8, and `decode.invalid_utf8` is `fail`"),
        (
            "duplicate_keys",
            b'{"id":2,"x":1,"x":2}',
            "holds `x` twice in one object, and `decode.duplicate_keys` is `fail`",
        ),
    ],
)
def test_a_policy_that_says_fail_names_the_record_by_its_place(policy: str, bad: bytes, words: str) -> None:
    with pytest.raises(SourceChanged) as error:
        page(bad, **{policy: "fail"})
    assert str(error.value) == f"record 2 of 3 {words}"


@pytest.mark.parametrize("half", [b"\\ud800", b"\\udc00", b"\\ud83d \\ude00", b"\\\\\\uD800\\n"])
def test_half_a_surrogate_pair_is_published_as_it_came_but_is_no_identity(half: bytes) -> None:
    record = b'{"id":2,"x":"%b"}' % half
    assert made_of(record) == made_of(record, nan="fail", invalid_utf8="fail", duplicate_keys="fail") == record
    assert code(b'{"id":"%b"}' % half) == "not_text"
    assert page(b'{"id":2,"x":"%b"}' % half).changed == 0


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(b'{"id":2,"x":"a\x01b"}', id="raw control character"),
        pytest.param(b'{"id":2,"x":01}', id="leading zero"),
        pytest.param(b'{"id":2,"x":"\\q"}', id="unknown escape"),
        pytest.param(b'{"id":2,"x":"\\ud8zz"}', id="half an escape"),
        pytest.param(b'{"id":2,"x":' + b"[" * 5000 + b"]" * 5000 + b"}", id="nested too deeply"),
        pytest.param(b'{"id":2,,"x":1}', id="two commas"),
    ],
)
def test_what_no_policy_mends_is_a_dead_letter(record: bytes) -> None:
    assert code(record, duplicate_keys="keep") == "not_json"


@pytest.mark.parametrize("record", [b"1", b'"text"', b"null", b"[1]", b"[NaN]", b'"\xff"'])
def test_what_is_no_object_is_a_dead_letter(record: bytes) -> None:
    assert code(record) == "not_object"


async def test_what_was_mended_is_said_once_and_the_run_goes_on() -> None:
    async with FakeApi() as api:
        say(api, [reply(b'{"data":[{"id":1},{"id":2,"x":NaN},{"id":3,"x":"\xff"}]}')])
        async with opened(api.url) as source:
            watch = Watching()
            [page] = await read(source, watch=watch)
    assert [record.value for record in page.records] == [
        b'{"id":1}',
        b'{"id":2,"x":null}',
        b'{"id":3,"x":"\xef\xbf\xbd"}',
    ]
    [notice] = watch.notices
    assert (notice.kind, notice.message[:4]) == ("repaired", "2 of")


def names_repeat(text: str) -> bool:
    """As Python's own reader sees it."""
    seen: list[bool] = []
    json.loads(text, object_pairs_hook=lambda pairs: seen.append(len({name for name, _ in pairs}) < len(pairs)))
    return any(seen)


STRINGS = st.sampled_from(
    ['"a"', '"b"', r'"\u0061"', '":"', r'"\u003a"', r'"\u003A"', r'"\\u003a"', r'"\":"', '"a:b"', '""']
)
SPACE = st.sampled_from(["", " ", "\n"])
VALUES = st.recursive(
    STRINGS | st.sampled_from(["1", "1.10", "null", "1e999", "18446744073709551616"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]")
        | st.lists(st.tuples(STRINGS, SPACE, inner).map(lambda t: f"{t[0]}{t[1]}:{t[1]}{t[2]}"), max_size=4).map(
            lambda members: "{" + ",".join(members) + "}"
        )
    ),
    max_leaves=10,
)


@given(st.lists(VALUES, max_size=4))
@example(['{"a":1,"a":"\\u003a"}'])
def test_no_name_that_comes_twice_is_missed(records: list[str]) -> None:
    if any(map(names_repeat, records)):
        assert may_repeat_a_name([record.encode() for record in records])


@given(st.lists(VALUES.filter(lambda text: r"\u003" not in text and "1e999" not in text), max_size=4))
def test_plain_records_are_not_suspected(records: list[str]) -> None:
    assert may_repeat_a_name([record.encode() for record in records]) == any(map(names_repeat, records))


Both = tuple[str, str]


def _both(values: st.SearchStrategy[Both]) -> st.SearchStrategy[Both]:
    """A list and an object of them: as the API wrote it, and as it is published."""
    lists = st.lists(values, max_size=3).map(lambda items: _each_side("[", items, "]"))
    members = st.tuples(st.sampled_from(['"NaN"', '"a"', r'"\"NaN,"']), values).map(_member)
    return lists | st.lists(members, max_size=3).map(lambda items: _each_side("{", items, "}"))


def _member(member: tuple[str, Both]) -> Both:
    name, (one, other) = member
    return f"{name} :{one}", f"{name} :{other}"


def _each_side(opening: str, items: list[Both], closing: str) -> Both:
    one, other = (opening + ", ".join(side) + closing for side in ([a for a, _ in items], [b for _, b in items]))
    return one, other


NANS = st.sampled_from(["NaN", "Infinity", "-Infinity"]).map(lambda text: (text, "null"))
SAME = (json_texts | st.sampled_from(['"NaN"', '",NaN}"', "1.10"])).map(lambda text: (text, text))


@given(_both(st.recursive(NANS | SAME, _both, max_leaves=6)))
def test_a_record_that_is_written_again_changes_where_the_policy_says_and_nowhere_else(both: tuple[str, str]) -> None:
    raw, fixed = (b'{"id":2,"x":%b}' % side.encode() for side in both)
    assert made_of(raw, duplicate_keys="keep") == fixed


POLICIES = st.fixed_dictionaries(
    {"nan": st.sampled_from(["as_null", "as_text"]), "invalid_utf8": st.sampled_from(["replace", "dead_letter"])}
)
LITTLE = st.lists(
    st.sampled_from([b'"', b"\\", b"\\ud800", b"NaN", b"\xff", b":", b",", b"{", b"}", b"[", b"]", b"1", b'"a"'])
)


@given(json_texts.map(str.encode) | st.binary(max_size=60) | LITTLE.map(b"".join), POLICIES)
def test_whatever_comes_out_is_json_and_whatever_does_not_keeps_its_bytes(record: bytes, policies: Keys) -> None:
    records = [b'{"id":1,"x":%b}' % record, record]
    read = PageReader(configured(keys={"decode": policies})[1]).read(records, clean=False)
    assert len(read.records) + len(read.refused) == 2
    for value in values(read):
        json.loads(value.decode(), parse_constant=_refuse)
    assert all(refused.value in records for refused in read.refused)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} came through")
