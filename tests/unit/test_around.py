"""What stands around the records: `^.` in the paths of a stream, `records.keep`, lists that are left out."""

import json
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.config.model import Stream
from ingest.errors import SourceChanged
from ingest.paths import Root, parse
from ingest.sources.answers import Answer, Place
from ingest.sources.around import Keeper
from ingest.sources.page import PageReader, Read
from tests.harness.fake_api import FakeApi
from tests.texts import json_texts, texts
from tests.unit.sources import configured, failure, list_all, records, reply, say

GROUPS = (
    b'{"as_of":"2024-01-02T03:04:05Z","groups":[{"name":"a","n":1.10,"rows":[{"id":1},{"id":2}]},'
    b'{"name":"b","n":18446744073709551616,"rows":[]},{"name":"c","rows":[{"id":3}]}]}'
)
BY_NAME = b'{"query":{"total":2,"pages":{"10":{"title":"x"},"2\\u0030":{"title":"y"}}}}'


@cache
def _stream(keys: str) -> Stream:
    return configured(keys=json.loads(keys))[1]


def page(body: bytes, path: str, keep: dict[str, str] | None = None, **keys: Any) -> Read:
    """What is read of an answer."""
    answer = Answer(body)
    stream = _stream(json.dumps({"records": {"path": path, "keep": keep or {}}, **keys}))
    found = answer.records(stream.records.path.steps)
    assert found is not None
    places = answer.places(stream.records.path.steps)
    assert len(places) == len(found)
    headers = {"x-tenant": 'ä"1'}
    return PageReader(stream).read(found, clean=answer.clean, places=places, headers=headers)


def values(read: Read) -> list[bytes]:
    assert not read.refused
    return [record.value for record in read.records]


def test_a_path_with_a_roof_reads_the_object_around_the_list() -> None:
    read = page(GROUPS, "$.groups[*].rows", id=["^.name", "id"], key="^.name", version="^.n", occurred_at="^.^.as_of")
    assert [(one.id, one.key) for one in read.records] == [("a|1", "a"), ("a|2", "a"), ("c|3", "c")]
    assert [one.version for one in read.records][:2] == ["1.10", "1.10"]
    assert (read.records[2].version or "")[:1] == "~"
    assert {one.occurred_at for one in read.records} == {"2024-01-02T03:04:05Z"}
    assert values(read) == [b'{"id":1}', b'{"id":2}', b'{"id":3}']


def test_the_incremental_field_may_stand_around_the_list() -> None:
    incremental = {"type": "timestamp", "field": "^.^.as_of"}
    assert {one.position for one in page(GROUPS, "$.groups[*].rows[*]", incremental=incremental).records} == {
        1_704_164_645_000_000
    }


def test_an_object_whose_values_are_taken_is_one_to_climb_to() -> None:
    body = b'{"t":1,"pages":{"n":7,"x":{"rows":[{"id":1}]}}}'
    assert page(body, "$.pages.*.rows", id=["^.^.^.t", "^.^.n", "id"]).records[0].id == "1|7|1"


def test_lists_on_the_way_are_no_object_to_climb_to() -> None:
    body = b'{"t":1,"a":[[{"rows":[{"id":1}]}]]}'
    assert page(body, "$.a[0][*].rows", id=["^.^.t", "id"]).records[0].id == "1|1"


@pytest.mark.parametrize("path", ["^.name", "^.^.^.name", "^~", "^.n.deeper"])
def test_what_is_not_there_is_missing(path: str) -> None:
    read = page(b'{"n":1,"rows":[{"id":1},{"id":2}]}', "$.rows", key=path)
    assert [one.key for one in read.records] == ["1", "2"]
    [first, _] = page(b'{"n":1,"rows":[{"id":1},{"id":2}]}', "$.rows", id=path).refused
    assert first.error.code == "no_id"


def test_the_name_under_which_a_record_stands_can_be_its_id() -> None:
    read = page(BY_NAME, "$.query.pages.*", id="^~", version="^.total", key="title")
    assert [(one.id, one.version, one.key) for one in read.records] == [("10", "2", "x"), ("20", "2", "y")]


@pytest.mark.parametrize(
    ("around", "code"),
    [
        (b'{"deep":1}', "bad_id"),
        (b"[1]", "bad_id"),
        (b'"\\ud800"', "not_text"),
        (b"NaN", "not_text"),
        (b"null", "no_id"),
    ],
)
def test_an_id_around_the_list_that_is_none_makes_dead_letters_of_its_records_alone(around: bytes, code: str) -> None:
    body = b'[{"a":%b,"rows":[{"n":1},{"n":2}]},{"a":7,"rows":[{"n":1.5}]}]' % around
    read = page(body, "$[*].rows", id=["^.a", "n"])
    assert [one.id for one in read.records] == ["7|1.5"]
    assert [(one.value, one.error.code) for one in read.refused] == [(b'{"n":1}', code), (b'{"n":2}', code)]


def test_what_is_kept_is_written_into_the_record_byte_for_byte() -> None:
    read = page(GROUPS, "$.groups[*].rows", {"name": "^.name", "n": "^.n", "at": "^.^.as_of"})
    at = b'"at":"2024-01-02T03:04:05Z"}'
    assert values(read) == [
        b'{"id":1,"name":"a","n":1.10,' + at,
        b'{"id":2,"name":"a","n":1.10,' + at,
        b'{"id":3,"name":"c",' + at,
    ]


def test_names_and_headers_can_be_kept_too_and_be_the_id() -> None:
    keep = {"pageid": "^~", "tenant": "header.X-Tenant", "none": "header.X-None"}
    read = page(BY_NAME, "$.query.pages.*", keep, id="pageid", key="tenant")
    assert [(one.id, one.key) for one in read.records] == [("10", 'ä"1'), ("20", 'ä"1')]
    assert values(read)[1] == '{"title":"y","pageid":"20","tenant":"ä\\"1"}'.encode()


@pytest.mark.parametrize(
    ("record", "written"),
    [
        (b"{}", b'{"k":[1.10, {}]}'),
        (b"{ }", b'{ "k":[1.10, {}]}'),
        (b'{"k":5}', b'{"k":[1.10, {}]}'),
        (b'{ "a" : 1 ,"k":{"k":5} }', b'{"a" : 1,"k":[1.10, {}]}'),
        (b'{"a":1.10,"\\u006b":5,"b":"c"}', b'{"a":1.10,"b":"c","k":[1.10, {}]}'),
        (b'{"a":{"k":5},"b":"\\"k\\"\\u006b"}', b'{"a":{"k":5},"b":"\\"k\\"\\u006b","k":[1.10, {}]}'),
    ],
)
def test_what_is_kept_takes_the_place_of_a_member_of_that_name(record: bytes, written: bytes) -> None:
    body = b'{"k":[1.10, {}],"rows":[%b]}' % record
    assert values(page(body, "$.rows", {"k": "^.k"}, id=[])) == [written]


def test_a_record_that_is_none_stays_as_it_came_beside_those_that_are_written() -> None:
    read = page(b'{"k":NaN,"rows":[7,{"id":1},{"id":2,"x":01,"k":1}]}', "$.rows", {"k": "^.k"})
    assert [one.value for one in read.records] == [b'{"id":1,"k":null}']
    assert [(one.value, one.error.code) for one in read.refused] == [
        (b"7", "not_object"),
        (b'{"id":2,"x":01,"k":1}', "not_json"),
    ]


@given(st.dictionaries(texts, json_texts, max_size=3), json_texts, texts)
def test_whatever_is_kept_is_there_and_nothing_else_changes(members: dict[str, str], kept: str, name: str) -> None:
    record = "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in members.items()) + "}"
    place = Place((f'{{"kept":{kept}}}'.encode(),))
    [written] = Keeper({name: parse("^.kept", roots=(Root.OUTER,))}).into([record.encode()], [place], {})
    assert json.loads(written) == json.loads(record) | {name: json.loads(kept)}
    assert all(value.strip().encode() in written for key, value in members.items() if key != name)


ROWS = st.lists(st.sampled_from(['{"id":1}', '{"id":"x","k":5}', '{"id":1.5}', "{}", '{"id":[]}']), max_size=4)
SCALARS = st.sampled_from(["1", '"a"', '"\\u00e9"', "null", "true", "[]", "1.10", "-0"])
LISTS = st.lists(st.tuples(SCALARS, ROWS), max_size=3)


@given(LISTS)
def test_a_page_of_several_lists_gives_what_each_list_gives(lists: list[tuple[str, list[str]]]) -> None:
    parts = [f'{{"a":{a},"rows":[{",".join(rows)}]}}' for a, rows in lists]
    keys: dict[str, Any] = {"id": ["^.a", "id"], "key": "^.a", "version": "none"}
    read = page(f"[{','.join(parts)}]".encode(), "$[*].rows", **keys)
    alone = [page(text.encode(), "$.rows", **keys) for text in parts]
    assert read.records == [record for one in alone for record in one.records]
    assert [str(r.error) for r in read.refused] == [str(r.error) for one in alone for r in one.refused]


# ---- lists that an API leaves out


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        yield api


MAY_BE_ABSENT = {"records": {"path": "$.data.items", "absent": "empty"}}


@pytest.mark.parametrize("body", [b'{"data":{}}', b'{"data":{"items":null}}', b'{"data":null}', b"{}"])
async def test_a_list_that_is_left_out_is_an_empty_one_where_the_stream_says_so(api: FakeApi, body: bytes) -> None:
    say(api, [reply(body)])
    [page] = await list_all(api.url, MAY_BE_ABSENT)
    assert (page.records, page.stop) == ([], "single page")
    _, error = await failure(api.url, {"records": "$.data.items"})
    assert isinstance(error, SourceChanged)
    assert "without a list at `records: $.data.items`" in str(error)


@pytest.mark.parametrize("body", [b'{"data":{"items":{}}}', b'{"data":{"items":"none"}}', b'{"data":{"items":7}}'])
async def test_what_is_no_list_is_never_taken_for_an_empty_one(api: FakeApi, body: bytes) -> None:
    say(api, [reply(body)])
    _, error = await failure(api.url, MAY_BE_ABSENT)
    assert isinstance(error, SourceChanged)


async def test_one_of_several_lists_may_be_left_out(api: FakeApi) -> None:
    say(api, [reply(b'{"g":[{"k":1,"rows":null},{"k":2},{"k":3,"rows":[{"id":1}]}]}')])
    keep = {"k": "^.k"}
    [page] = await list_all(api.url, {"records": {"path": "$.g[*].rows", "absent": "empty", "keep": keep}})
    assert [record.value for record in records([page])] == [b'{"id":1,"k":3}']


@pytest.mark.parametrize("path", ["$.groups[*].rows", "$.groups[*].rows[*]", "$.by_name.*.rows"])
async def test_no_groups_are_no_records_and_no_change_of_the_answer(api: FakeApi, path: str) -> None:
    say(api, [reply(b'{"groups":[],"by_name":{ }}')])
    [page] = await list_all(api.url, {"records": path})
    assert page.records == []


async def test_what_is_kept_comes_from_the_headers_of_each_answer(api: FakeApi) -> None:
    say(
        api,
        [
            reply('{"data":[{"id":1}],"next":"/events?p=2"}', X_Batch="first"),
            reply('{"data":[{"id":2}]}', X_Batch="second"),
        ],
    )
    keys = {"records": {"path": "$.data", "keep": {"batch": "header.X-Batch"}}}
    pages = await list_all(api.url, {**keys, "paginate": {"type": "next_url", "from": "$.next"}})
    assert [record.value for record in records(pages)] == [b'{"id":1,"batch":"first"}', b'{"id":2,"batch":"second"}']
