"""JSON, JSON Lines, CSV and XML, packed or not, in any encoding: what a body is shows in its bytes."""

import csv
import gzip
import io
import json
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.errors import SourceChanged, SourceUnavailable
from ingest.sources.answers import Answer
from ingest.sources.formats import Formats, TooLarge, elements, table
from ingest.sources.formats.lines import answer as lines_of
from ingest.sources.page import PageReader
from ingest.sources.slices import Undecodable
from tests.harness.fake_api import FakeApi
from tests.texts import json_texts, texts
from tests.unit.sources import Keys, Watching, configured, failure, list_all, opened, read, records, reply, say

LIMIT = 1_000_000


def answer(body: bytes, kind: str = "", *, limit: int = LIMIT, **keys: Any) -> Answer:
    formats = Formats(configured(keys=keys)[1])
    return formats.answer(formats.unpacked(body, limit), kind, limit)


def found(body: bytes, kind: str = "", path: str = "$", **keys: Any) -> list[bytes]:
    """The records of a body, whatever their worth."""
    stream = configured(keys={"records": path, **keys})[1]
    list_ = answer(body, kind, records=path, **keys).records(stream.records.path.steps)
    assert list_ is not None
    return list_


def published(body: bytes, kind: str = "", **keys: Any) -> tuple[list[bytes], list[str]]:
    """What becomes of the records of a body: the values of the good ones, why the others are none."""
    one = answer(body, kind, **keys)
    rows = one.records(())
    assert rows is not None
    result = PageReader(configured(keys=keys)[1]).read(rows, clean=one.clean)
    return [record.value for record in result.records], [refused.error.code for refused in result.refused]


def zipped(**files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    return content.getvalue()


ROWS = [b'{"id":1,"n":1.10}', b'{"id":18446744073709551616}']
BOTH = b"[%b]" % b",".join(ROWS)


# ---- which format


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b" \r\n" + BOTH, "text/plain", ROWS),
        (BOTH, "text/csv", ROWS),
        (BOTH, "application/x-ndjson", [BOTH]),
        (b"\n".join(ROWS), "application/x-ndjson; charset=utf-8", ROWS),
        (b"\n".join(ROWS), "application/json", ROWS),
        (b"\n".join(ROWS) + b"\n", "", ROWS),
        (ROWS[0] + b"\n", "application/jsonl", [ROWS[0]]),
        (b"id,n\n1,1.10\n", "text/csv", [b'{"id":"1","n":"1.10"}']),
        (b'"a;\n",id\n1,2\n', "text/csv", [b'{"a;\\n":"1","id":"2"}']),
        (b"id\tn\n1\t1,10\n", "text/tab-separated-values", [b'{"id":"1","n":"1,10"}']),
        (b"<r><i>1</i></r>", "text/plain", [b'"1"']),
        (b"  <?xml version='1.0'?><r><i>1</i></r>".lstrip(), "application/json", [b'"1"']),
    ],
)
def test_auto_goes_by_the_bytes_and_then_by_the_header(body: bytes, kind: str, expected: list[bytes]) -> None:
    assert found(body, kind, "$.r.i" if b"<r>" in body else "$") == expected


@pytest.mark.parametrize(
    ("format", "body", "kind", "expected"),
    [
        ("csv", b"[a];id\n1;2\n", "application/octet-stream", [b'{"[a]":"1","id":"2"}']),
        ("csv", BOTH, "application/json; charset=utf-8", ROWS),
        ("csv", BOTH, "application/problem+json", ROWS),
        ("jsonl", BOTH, "", [BOTH]),
        ("json", b"[1]", "text/csv", [b"1"]),
    ],
)
def test_a_format_that_is_configured_holds_unless_the_answer_is_json(
    format: str, body: bytes, kind: str, expected: list[bytes]
) -> None:
    assert found(body, kind, format=format) == expected


@pytest.mark.parametrize("format", ["auto", "json", "jsonl", "csv", "xml"])
@pytest.mark.parametrize(
    "page",
    [
        b"<!DOCTYPE html><html><body>Sign in</body></html>",
        b"\n<html lang=en>x",
        b'<?xml version="1.0"?>\n<!-- x --><!doctype HTML PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN">',
        "<HTML>".encode("utf-16"),
    ],
)
def test_a_page_of_html_is_no_data_whatever_was_expected(page: bytes, format: str) -> None:
    with pytest.raises(Undecodable, match="an HTML page where data should be"):
        answer(page, "application/json", format=format)


@pytest.mark.parametrize(
    ("format", "body"),
    [
        ("auto", b'{"data":[\n{"id":1},\n{"id":2}\n'),
        ("xml", b"[1"),
        ("jsonl", b"x\n"),
        ("csv", b" \n"),
        ("json", b"<a/>"),
        ("xml", b""),
    ],
)
def test_a_body_of_another_format_is_undecodable(format: str, body: bytes) -> None:
    with pytest.raises(Undecodable):
        answer(body, "", format=format)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"id,total\n1,2\n", "no JSON; where it is CSV, write `format: csv`"),
        (b"Sorry, we are closed.\nCome back", "JSON is malformed"),
    ],
)
def test_a_table_that_nothing_calls_one_is_told_how_to_be_read(body: bytes, said: str) -> None:
    with pytest.raises(Undecodable, match=said):
        answer(body, "text/plain")


# ---- packed


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(gzip.compress(BOTH), id="gzip"),
        pytest.param(gzip.compress(BOTH[:20]) + gzip.compress(BOTH[20:]), id="gzip of several members"),
        pytest.param(gzip.compress(gzip.compress(BOTH)), id="gzip twice"),
        pytest.param(zipped(a=BOTH), id="zip"),
        pytest.param(zipped(**{"d/": b"", "__MACOSX/a": b"\0", "d/a.json": BOTH}), id="zip with folders"),
        pytest.param(zipped(a=BOTH[:1] + ROWS[0] + b"]", b=BOTH[:1] + ROWS[1] + b"]"), id="zip of several files"),
        pytest.param(gzip.compress(zipped(a=BOTH)), id="zip in gzip"),
    ],
)
def test_what_is_packed_shows_it_in_its_first_bytes(packed: bytes) -> None:
    assert found(packed, "application/json") == ROWS


def test_an_empty_zip_has_no_records() -> None:
    assert found(zipped()) == []


def test_the_files_of_a_zip_may_each_have_a_format_of_their_own() -> None:
    packed = zipped(**{"a.csv": b"id\n1\n", "b.json": b'[{"id":2}]', "c.jsonl": b'{"id":3}\n{"id":4}\n'})
    assert found(packed, "text/csv") == [b'{"id":"1"}', b'{"id":2}', b'{"id":3}', b'{"id":4}']


def test_each_file_of_a_zip_is_read_at_the_configured_path() -> None:
    packed = zipped(a=b'{"next":null,"d":[{"id":1}],"k":1}', b=b'{"next":"t","d":[{"id":2}],"k":2}')
    one = answer(packed)
    assert one.records(("d",)) == [b'{"id":1}', b'{"id":2}']
    assert [bytes(place.above[0])[-2:] for place in one.places(("d",))] == [b"1}", b"2}"]
    assert bytes(one.first(("next",)) or b"") == b"null"
    assert one.records(("none",)) is None
    assert one.records(("none",), may_be_absent=True) == []


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(BOTH)[:-9],
        gzip.compress(BOTH)[:15] + b"\xff" * 20,
        gzip.compress(BOTH) + b"trailing",
        zipped(a=BOTH * 100)[:-30],
        zipped(a=BOTH * 100).replace(b"\x00\x00\x00\x08\x00", b"\x00\x00\x00\x63\x00"),
    ],
)
def test_what_cannot_be_unpacked_is_undecodable(packed: bytes) -> None:
    with pytest.raises(Undecodable, match=r"unpacked|ends before"):
        answer(packed)


def test_a_zip_that_is_encrypted_is_no_matter_of_time() -> None:
    locked = bytearray(zipped(a=BOTH))
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(SourceChanged, match="encrypted: a"):
        answer(bytes(locked))


def test_padding_behind_a_packed_file_is_none_of_it() -> None:
    assert found(gzip.compress(BOTH) + bytes(700)) == found(BOTH)


def test_members_that_hold_nothing_are_passed_over_in_linear_time() -> None:
    assert found(gzip.compress(b"") * 200_000 + gzip.compress(BOTH)) == found(BOTH)  # 4 MB; else it takes minutes


BOMB = b"[" + b" " * 5_000_000 + b"]"


@pytest.mark.parametrize(
    "bomb",
    [
        gzip.compress(BOMB),
        gzip.compress(gzip.compress(BOMB)),
        zipped(a=BOMB),
        zipped(**{str(n): b"[" + b" " * 300_000 + b"]" for n in range(4)}),
        gzip.compress(zipped(a=BOMB)),
        zipped(**{str(n): gzip.compress(b"[" + b" " * 300_000 + b"]") for n in range(4)}),
    ],
)
def test_a_small_body_that_unpacks_to_a_huge_one_is_stopped(bomb: bytes) -> None:
    assert len(bomb) < 30_000
    with pytest.raises(TooLarge):
        answer(bomb)
    assert found(gzip.compress(b"[" + b" " * 900_000 + b"]")) == []


def test_a_table_that_grows_beyond_measure_as_json_is_stopped() -> None:
    with pytest.raises(TooLarge):
        answer(b"x" * 10_000 + b",id\n" + b"1,2\n" * 1000, "text/csv", limit=20_000)


# ---- encodings


TEXT = '[{"id":"é€😀"}]'


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (TEXT.encode("utf-8-sig"), ""),
        (TEXT.encode("utf-16"), "application/json"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "application/json; charset=utf-8"),
        (TEXT.encode("utf-32"), ""),
        *((TEXT.encode(name), "") for name in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")),
        (TEXT.encode(), "application/json; charset=ISO-8859-1"),
        (TEXT.encode(), "application/json; charset=unknown"),
        (TEXT.encode(), 'application/json; charset="rot13"'),
        (TEXT.encode("utf-16-le"), "application/json; charset=utf-16le"),
    ],
)
def test_json_is_read_in_whatever_it_was_written(body: bytes, kind: str) -> None:
    assert published(body, kind) == (['{"id":"é€😀"}'.encode()], [])


def test_json_that_is_not_utf8_is_read_as_the_header_says() -> None:
    latin = '[{"id":"é"}]'.encode("latin-1")
    assert published(latin, "application/json; charset=ISO-8859-1") == (['{"id":"é"}'.encode()], [])
    assert published(latin, "application/json") == (['{"id":"\ufffd"}'.encode()], [])


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("näme\né\n".encode("latin-1"), "text/csv; charset=iso-8859-1"),
        ("näme\né\n".encode("cp1252"), "text/csv; header=present; charset='windows-1252'"),
        ("näme\né\n".encode("utf-8-sig"), "text/csv; charset=latin-1"),
        ("näme\né\n".encode("utf-16"), "text/csv"),
        ("näme\né\n".encode(), "text/csv"),
        ("näme\né\n".encode(), "text/csv; charset=rot13"),
        ("näme\né\n".encode(), "text/csv; charset=base64"),
        ('<?xml version="1.0" encoding="ISO-8859-1"?><r><näme>é</näme></r>'.encode("latin-1"), "text/xml"),
        ('<?xml version="1.0" encoding="utf-16"?><r><näme>é</näme></r>'.encode("utf-16"), "text/xml"),
        ('<?xml version="1.0" encoding="utf-8"?><r><näme>é</näme></r>'.encode("latin-1"), "text/xml;charset=latin-1"),
        ('<?xml version="1.0" encoding="latin-1"?><r><näme>é</näme></r>'.encode(), 'text/xml; charset="UTF-8"'),
    ],
)
def test_tables_and_xml_are_read_in_the_charset_of_the_mark_or_the_header(body: bytes, kind: str) -> None:
    assert found(body, kind, "$.r" if "xml" in kind else "$", id=[]) == ['{"näme":"é"}'.encode()]


def test_bytes_of_a_table_that_are_not_utf8_follow_decode_row_by_row() -> None:
    body = b"id,t\n1,\xc3\xa9\n2,\xff\n"
    assert published(body, "text/csv") == (['{"id":"1","t":"é"}'.encode(), '{"id":"2","t":"\ufffd"}'.encode()], [])
    assert published(body, "text/csv", decode={"invalid_utf8": "dead_letter"})[1] == ["not_utf8"]


def test_half_a_character_is_a_torn_body() -> None:
    with pytest.raises(Undecodable, match="UTF-16"):
        answer(TEXT.encode("utf-16")[:-1])


# ---- JSON Lines


def test_a_line_that_is_no_json_is_a_dead_letter_and_its_neighbours_are_not() -> None:
    body = b'{"id":1}\n\n{"id":2\n{"id":"]"}\r\n [}\n{"id":NaN,"x":1}\n7\n{"id":NaN}'
    values, codes = published(body, format="jsonl", decode={"nan": "as_text"})
    assert values == [b'{"id":1}', b'{"id":"]"}', b'{"id":"NaN","x":1}', b'{"id":"NaN"}']
    assert codes == ["not_json", "not_object", "not_object"]


@pytest.mark.parametrize(
    "torn", [b'{"id":1}\n{"id":2', b'{"id":1}\n{"id":', b'{"id":1}\n[{"id":2}', b'{"id":1}\n{"id":NaN']
)
def test_a_last_line_that_breaks_off_is_a_torn_body(torn: bytes) -> None:
    with pytest.raises(Undecodable, match="torn"):
        answer(torn, format="jsonl")


@given(
    st.lists(json_texts.map(lambda text: text.replace("\n", " ").replace("\r", " ").strip()), max_size=5), st.booleans()
)
def test_lines_are_cut_byte_for_byte(lines: list[str], ended: bool) -> None:
    body = "\n".join(lines).encode() + (b"\n" if ended and lines else b"")
    try:
        assert lines_of(body).records(()) == [line.encode() for line in lines]
    except Undecodable:  # a half of a surrogate pair alone, or in the last line
        assert "\\ud" in body.decode().lower()


# ---- CSV


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'id,t\r\n1,"a,""b""\r\nc"\r\n', [b'{"id":"1","t":"a,\\"b\\"\\r\\nc"}']),
        (b"id;t\n1;a,b\n", [b'{"id":"1","t":"a,b"}']),
        (b"id|t\n1|a\n", [b'{"id":"1","t":"a"}']),
        (b'"a,b,c";id\n1;2\n', [b'{"a,b,c":"1","id":"2"}']),
        (b"id\n1\n\n2", [b'{"id":"1"}', b'{"id":"2"}']),
        (b"id,n\n007,1.10\n", [b'{"id":"007","n":"1.10"}']),
        (b"id,t\n1,\n", [b'{"id":"1","t":""}']),
        (b"id,\n1,x\n", [b'{"id":"1","":"x"}']),
        (b"id,t\n", []),
    ],
)
def test_the_first_row_names_the_fields_of_the_others(body: bytes, expected: list[bytes]) -> None:
    assert found(body, "text/csv") == expected


def test_a_row_of_another_length_is_a_dead_letter_alone() -> None:
    values, codes = published(b"id,t\n1,a\n2\n3,b,c\n4,d\n", "text/csv")
    assert ([json.loads(value)["id"] for value in values], codes) == (["1", "4"], ["not_object"] * 2)
    assert found(b"id,t\n3,b,\xc3\xa9\n", "text/csv") == ['["3","b","é"]'.encode()]


def test_a_name_that_stands_twice_in_the_first_row_is_one_that_comes_twice_in_every_record() -> None:
    body = b"id,a,a\n1,x,y\n"
    assert published(body, "text/csv") == ([], ["duplicate_key"])
    assert published(body, "text/csv", decode={"duplicate_keys": "keep"})[0] == [b'{"id":"1","a":"x","a":"y"}']


@pytest.mark.parametrize("body", [b'id,t\n1,"a', b'id,t\n1,"a"b\n', b"", b"\n\n"])
def test_what_is_no_table_is_undecodable(body: bytes) -> None:
    with pytest.raises(Undecodable):
        answer(body, "text/csv", format="csv")


@pytest.mark.parametrize("body", [b"Internal error, try later\n", b'{"error":"busy"}', b"Error\ninternal failure\n"])
async def test_words_that_are_a_table_only_by_accident_are_no_empty_listing(api: FakeApi, body: bytes) -> None:
    say(api, [reply(body, content_type="text/csv")])
    _, error = await failure(api.url, {"format": "csv", "records": "$", "id": "id"})
    assert isinstance(error, SourceChanged)
    assert f"GET {api.url}" in str(error)
    assert "a table without `id`" in str(error)


def test_a_table_needs_the_columns_of_its_id_and_no_others() -> None:
    assert found(b"a,b\n", "text/csv", id=["b", "a.c"]) == []
    assert found(b"t\n", "text/csv", transform=[{"explode": "$.t"}]) == []


def test_a_field_may_be_long() -> None:
    long = b"x" * 500_000
    assert found(b'id,t\n1,"%b"\n' % long, "text/csv") == [b'{"id":"1","t":"%b"}' % long]


@given(
    st.lists(texts.filter(bool), min_size=2, max_size=4, unique=True),
    st.lists(st.lists(texts, min_size=4, max_size=4), max_size=4),
)
def test_every_text_comes_through_a_table(names: list[str], rows: list[list[str]]) -> None:
    content = io.StringIO(newline="")
    writer = csv.writer(content, quoting=csv.QUOTE_ALL)
    writer.writerows([names, *(row[: len(names)] for row in rows)])
    read = table.answer(content.getvalue().encode(), 10**9).records(())
    assert [json.loads(one) for one in read or ()] == [dict(zip(names, row, strict=False)) for row in rows]


# ---- XML


@pytest.mark.parametrize(
    ("body", "path", "expected"),
    [
        (b"<r><i>1</i><i>2</i></r>", "$.r.i", [b'"1"', b'"2"']),
        (b"<r><i>1</i></r>", "$.r.i", [b'"1"']),
        (b"<r/>", "$.r.i", []),
        (b"<r>\n</r>", "$.r.i[*]", []),
        (
            b'<r><i n="1" o="&lt;&#233;"> a<b/>c </i></r>',
            "$.r.i",
            ['{"@n":"1","@o":"<é","b":null,"#text":" ac "}'.encode()],
        ),
        (
            b"<r><i>\n <id>1</id>\n <t><![CDATA[<&]]>]]&gt;</t>\n <!-- x --><?pi y?></i></r>",
            "$.r.i",
            [b'{"id":"1","t":"<&]]>"}'],
        ),
        (b"<r><i><l>1</l><l/><m/></i></r>", "$.r.i", [b'{"l":["1",null],"m":null}']),
        (b'<r xmlns:d="u"><d:i d:n="1">x</d:i></r>', '$.r["d:i"]', [b'{"@d:n":"1","#text":"x"}']),
        (b"<r><g><i>1</i></g><g/><g><i>2</i><i>3</i></g></r>", "$.r.g[*].i", [b'"1"', b'"2"', b'"3"']),
        (b"<r><g><i>1</i></g></r>", "$.r.g[*].i", [b'"1"']),
        (b"<r><g><i>1</i></g></r>", "$.r.g[0].i", [b'"1"']),
        (b"<r><id>1</id></r>", "$.r", [b'{"id":"1"}']),
        (b"<r><i>" + b"x" * 300_000 + b"</i></r>", "$.r.i", [b'"%b"' % (b"x" * 300_000)]),
    ],
)
def test_elements_become_objects(body: bytes, path: str, expected: list[bytes]) -> None:
    assert found(body, "application/xml", path) == expected


def test_an_element_that_is_exploded_is_a_list_though_it_comes_once() -> None:
    body = b"<r><o><id>1</id><l><n>2</n></l></o><o><id>2</id></o></r>"
    keys: dict[str, Any] = {"records": "$.r.o", "transform": [{"explode": "l"}], "id": "^.id"}
    stream = configured(keys=keys)[1]
    one = answer(body, **keys)
    rows = one.records(stream.records.path.steps)
    assert rows == [b'{"id":"1","l":[{"n":"2"}]}', b'{"id":"2","l":[]}']
    result = PageReader(stream).read(rows, clean=one.clean, places=one.places(stream.records.path.steps))
    assert ([record.id for record in result.records], result.skipped) == (["1#0"], 1)


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><r>&b;</r>',
        b'<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><r>&x;</r>',
        b'<!DOCTYPE r SYSTEM "http://127.0.0.1:1/x.dtd"><r/>',
        b'<!DOCTYPE r [<!ENTITY % p SYSTEM "http://127.0.0.1:1/x.dtd"> %p;]><r/>',
        b"<!DOCTYPE r><r/>",
    ],
)
def test_a_document_type_is_refused_and_nothing_is_fetched(body: bytes) -> None:
    with pytest.raises(SourceChanged, match="document type declaration"):
        answer(body, "text/xml")


@pytest.mark.parametrize(
    "body", [b"<r>", b"<r><i></r>", b"<r/><r/>", b"<r>&x;</r>", b"<r a='1' a='2'/>", b"<r>\xff</r>", b"<r>&#0;</r>"]
)
def test_what_is_no_xml_is_undecodable(body: bytes) -> None:
    with pytest.raises(Undecodable, match="no XML"):
        answer(body, "text/xml")


def test_xml_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(SourceChanged, match="200 levels"):
        answer(b"<a>" * 100_000, "text/xml")


NAMES = st.sampled_from(["a", "b", "c:d", "é"])
TEXTS = st.text(
    st.characters(min_codepoint=0x20, exclude_categories=["Cs"], exclude_characters="\ufffe\uffff"), max_size=8
)
TREES: st.SearchStrategy[Any] = st.recursive(
    TEXTS,
    lambda inner: st.dictionaries(NAMES, st.lists(inner, min_size=1, max_size=3), min_size=1, max_size=3),
    max_leaves=8,
)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _xml(name: str, tree: Any) -> str:
    inside = (
        _escaped(tree) if isinstance(tree, str) else "".join(_xml(n, one) for n, many in tree.items() for one in many)
    )
    return f"<{name}>{inside}</{name}>"


def _plain(tree: Any) -> Any:
    if isinstance(tree, str):
        return tree if tree.strip() else None
    return {name: _plain(many[0]) if len(many) == 1 else [_plain(one) for one in many] for name, many in tree.items()}


@given(TREES)
def test_every_text_comes_through_xml(tree: Any) -> None:
    [record] = found_in_root(_xml("r", tree).encode())
    assert json.loads(record) == _plain(tree)


def found_in_root(body: bytes) -> list[bytes]:
    return elements.answer(body, "utf-8", frozenset({("r",)})).records(("r",)) or []


# ---- in a listing


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        yield api


@pytest.mark.parametrize("format", ["auto", "csv"])
async def test_tables_are_paged_and_published(api: FakeApi, format: str) -> None:
    pages = [b"id,n\n1,1.10\n2,x\n", gzip.compress(b"id,n\n3,y\n"), b"id,n\n"]
    say(api, [reply(body, content_type="text/csv") for body in pages])
    keys = {"format": format, "records": "$", "paginate": {"type": "offset"}}
    found = await list_all(api.url, keys)
    assert [record.value for record in records(found)] == [
        b'{"id":"1","n":"1.10"}',
        b'{"id":"2","n":"x"}',
        b'{"id":"3","n":"y"}',
    ]
    assert [request.query["offset"] for request in api.requests] == ["0", "2", "3"]


@pytest.mark.parametrize(
    ("keys", "accept"),
    [
        ({}, "application/json"),
        ({"format": "json"}, "application/json"),
        ({"format": "csv"}, "text/csv, */*;q=0.1"),
        ({"format": "csv", "headers": {"Accept": "text/tsv"}}, "text/tsv"),
    ],
)
async def test_the_format_is_asked_for(api: FakeApi, keys: Keys, accept: str) -> None:
    say(api, [reply("id\n" if keys.get("format") == "csv" else "[]")])
    await list_all(api.url, {**keys, "records": "$"})
    assert api.requests[0].headers["accept"] == accept


async def test_html_with_200_is_tried_again_and_then_said(api: FakeApi) -> None:
    page = reply("<!DOCTYPE html><title>Maintenance</title>", content_type="text/html")
    say(api, [page, reply('{"data":[{"id":1}]}')])
    watch = Watching()
    async with opened(api.url) as source:
        assert [record.id for record in records(await read(source, watch=watch))] == ["1"]
    [(_, _, reason)] = watch.retries
    assert "an HTML page where data should be: a login, an error, maintenance" in reason
    say(api, [page])
    _, error = await failure(api.url)
    assert isinstance(error, SourceUnavailable)
    assert "an HTML page" in str(error)


async def test_a_torn_last_line_is_tried_again(api: FakeApi) -> None:
    say(api, [reply(b'{"id":1}\n{"id":', content_type="application/x-ndjson"), reply(b'{"id":1}\n{"id":2}\n')])
    watch = Watching()
    async with opened(api.url, {"records": "$"}) as source:
        assert [record.id for record in records(await read(source, watch=watch))] == ["1", "2"]
    assert len(watch.retries) == 1


@pytest.mark.parametrize("empty", [b"", b" \n", gzip.compress(b""), gzip.compress(b"\n")])
async def test_an_empty_body_ends_a_listing_on_its_first_request_alone(api: FakeApi, empty: bytes) -> None:
    say(api, [reply(empty)])
    [page] = await list_all(api.url)
    assert (page.records, page.stop) == ([], "no content")
    say(api, [reply('{"data":[{"id":1}],"next":"/events?p=2"}'), reply(empty), reply('{"data":[]}')])
    watch = Watching()
    async with opened(api.url, {"paginate": {"type": "next_url", "from": "$.next"}}) as source:
        await read(source, watch=watch)
    assert len(watch.retries) == 1


async def test_max_body_holds_for_what_is_unpacked(api: FakeApi) -> None:
    say(api, [reply(gzip.compress(BOMB), content_type="application/json")])
    _, error = await failure(api.url, above={"limits": {"max_body": "1MB"}})
    assert isinstance(error, SourceChanged)
    assert "over limits.max_body (1000000 bytes) when it is unpacked" in str(error)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<error><code>busy</code></error>", "text/xml"),
        (gzip.compress(b'{"error":{"code":"busy"}}'), "application/json"),
        (zipped(a=b'{"error":{"code":"busy"}}'), "application/zip"),
        ('{"error":{"code":"busy"}}'.encode("utf-16"), ""),
    ],
)
@pytest.mark.parametrize("when", [{"has": "$.error.code"}, {"where": "error.code == 'busy'"}])
async def test_errors_are_recognised_in_every_format(api: FakeApi, when: Keys, body: bytes, kind: str) -> None:
    say(api, [reply(body, content_type=kind), reply('{"data":[{"id":1}]}')])
    watch = Watching()
    async with opened(api.url, {"errors": [{"when": when, "do": "retry"}]}) as source:
        assert [record.id for record in records(await read(source, watch=watch))] == ["1"]
    assert len(watch.retries) == 1


async def test_xml_is_listed_with_what_stands_around_its_elements(api: FakeApi) -> None:
    channel = b"<channel><title>News</title><item><guid>a</guid></item></channel>"
    body = b'<?xml version="1.0"?><rss version="2.0">%b</rss>' % channel
    say(api, [reply(body, content_type="application/rss+xml")])
    keys = {"records": {"path": "$.rss.channel[0].item", "keep": {"from": "^.title"}}, "id": "guid"}
    [page] = await list_all(api.url, keys)
    assert [record.value for record in page.records] == [b'{"guid":"a","from":"News"}']
