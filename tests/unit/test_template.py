"""A request is what the configuration says: every value in its place and encoded for it, and secrets apart."""

import json
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.config.placeholders import parse
from ingest.errors import ConfigError, SourceChanged
from ingest.redaction import Redactor
from ingest.sources.filling import Values, filled
from ingest.sources.placement import Placement, Put
from ingest.sources.request import Request
from ingest.sources.template import Template
from tests.texts import texts
from tests.unit.sources import NONE, Keys, configured

BASE = "http://api.example.com"
INCREMENTAL = {"incremental": "updated_at"}  # what fills {cursor} and {window.…}


def template(keys: Keys, above: Keys = NONE, redactor: Redactor | None = None) -> Template:
    redactor = redactor or Redactor()
    source, stream = configured(BASE, {**INCREMENTAL, **keys}, above, redactor)
    return Template(source, stream, redactor.scrub)


def made(keys: Keys, values: Values = NONE, *puts: Put) -> Request:
    return template(keys).request(values, puts)


def url(keys: Keys, values: Values = NONE, *puts: Put) -> str:
    return made(keys, values, *puts).url.removeprefix(BASE)


def body(keys: Keys, values: Values = NONE, *puts: Put) -> Any:
    return json.loads(made(keys, values, *puts).body or b"null")


def param(name: str, value: str | int) -> Put:
    return Put(Placement(param=name), value)


# ---- what is configured


def test_a_request_is_a_get_without_a_body_unless_the_stream_says_otherwise() -> None:
    request = made({"path": "/a", "params": {"b": True, "c": 1.10}, "headers": {"X-D": "e"}})
    assert request == Request(f"{BASE}/a?b=true&c=1.1", headers={"x-d": "e"})
    assert made({"method": "PUT"}).method == "PUT"


@pytest.mark.parametrize(("base", "path"), [("/v1", "/a"), ("/v1/", "a"), ("/v1", "a"), ("/v1/", "//a")])
def test_base_url_and_path_are_joined_with_one_slash(base: str, path: str) -> None:
    source, stream = configured(BASE + base, {"path": path})
    assert Template(source, stream, str).request().url == f"{BASE}/v1/a"


@pytest.mark.parametrize(
    ("keys", "kind", "sent"),
    [
        ({"json": {"a": [1, 2.5, None, {"b": "é"}]}}, "application/json", '{"a":[1,2.5,null,{"b":"é"}]}'),
        ({"json": []}, "application/json", "[]"),
        ({"form": {"a b": "c&d", "n": 1, "l": [1, 2]}}, "application/x-www-form-urlencoded", "a%20b=c%26d&n=1&l=1&l=2"),
        (
            {"graphql": {"query": "{ a { cursor } }", "variables": {"n": 5}}},
            "application/json",
            '{"query":"{ a { cursor } }","variables":{"n":5}}',
        ),
    ],
)
def test_a_body_is_posted_with_its_content_type(keys: Keys, kind: str, sent: str) -> None:
    request = made(keys)
    assert (request.method, request.headers["content-type"]) == ("POST", kind)
    assert request.body == sent.encode()
    assert made({**keys, "method": "GET"}).method == "GET"
    assert made({**keys, "headers": {"Content-Type": "application/x"}}).headers["content-type"] == "application/x"


@pytest.mark.parametrize(
    ("style", "query"),
    [
        ("repeat", "a=1&a=x%2Cy&b=2"),
        ("comma", "a=1%2Cx%2Cy&b=2"),
        ("brackets", "a%5B%5D=1&a%5B%5D=x%2Cy&b=2"),
        ("json", "a=%5B%221%22%2C%22x%2Cy%22%5D&b=2"),
    ],
)
def test_a_list_is_sent_in_the_style_of_the_api(style: str, query: str) -> None:
    params = {"a": [1, "x,y"], "b": 2}
    assert url({"params": params, "list_style": style}) == f"/events?{query}"
    assert made({"form": params, "list_style": style}).body == query.encode()


# ---- placeholders


@pytest.mark.parametrize(
    ("value", "in_path", "in_query"),
    [
        ("a b/c?d#e&f=g%+", "a%20b%2Fc%3Fd%23e%26f%3Dg%25%2B", "a%20b%2Fc%3Fd%23e%26f%3Dg%25%2B"),
        ("..a", "..a", "..a"),
        ("{cursor}{{", "%7Bcursor%7D%7B%7B", "%7Bcursor%7D%7B%7B"),
        ("é", "%C3%A9", "%C3%A9"),
        (7, "7", "7"),
    ],
)
def test_a_value_is_percent_encoded_in_path_and_query(value: str | int, in_path: str, in_query: str) -> None:
    keys = {"path": "/a/{cursor}/b?c={cursor}", "params": {"d": ">{cursor}"}}
    assert url(keys, {"cursor": value}) == f"/a/{in_path}/b?c={in_query}&d=%3E{in_query}"


@given(texts.filter(lambda text: text not in ("", ".", "..")))
def test_any_value_arrives_as_it_is(value: str) -> None:
    keys = {"path": "/a/{cursor}", "params": {"q": "'{cursor}'"}, "json": {"x": ["{cursor}"], "y": "<{cursor}>"}}
    request = made(keys, {"cursor": value})
    parts = urlsplit(request.url)
    assert unquote(parts.path, errors="strict") == f"/a/{value}"
    assert parts.path.count("/") == 2
    assert parse_qsl(parts.query, keep_blank_values=True) == [("q", f"'{value}'")]
    assert json.loads(request.body or b"") == {"x": [value], "y": f"<{value}>"}


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_a_value_cannot_make_another_path(value: str) -> None:
    with pytest.raises(SourceChanged, match="cannot be a part of a path"):
        url({"path": "/a/{cursor}/b"}, {"cursor": value})


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\0", "\x7f"])
def test_a_value_cannot_end_its_header(value: str) -> None:
    with pytest.raises(SourceChanged, match="`x-from`"):
        made({"headers": {"X-From": "{cursor}"}}, {"cursor": value})
    with pytest.raises(SourceChanged, match="`x-from`"):
        made({}, NONE, Put(Placement(header="x-from"), value))


def test_a_header_takes_a_value_byte_for_byte() -> None:
    assert made({"headers": {"X-From": 'W/"{cursor}"'}}, {"cursor": "a b%2F=="}).headers == {"x-from": 'W/"a b%2F=="'}


def test_a_body_is_filled_at_any_depth_and_a_number_stays_one_where_it_stands_alone() -> None:
    keys = {"json": {"a": {"b": [{"c": "{cursor}", "d": "id > {cursor}", "e": "{window.start}"}]}}}
    values: Values = {"cursor": msgspec.Raw(b"12345678901234567890.10"), "window.start": 5}
    request = made(keys, values)
    assert request.body == (b'{"a":{"b":[{"c":12345678901234567890.10,"d":"id > 12345678901234567890.10","e":5}]}}')


def test_the_fields_of_a_form_and_the_variables_of_a_query_are_filled_and_the_query_is_not() -> None:
    assert made({"form": {"a": "{cursor}"}}, {"cursor": "x&y"}).body == b"a=x%26y"
    sent = body({"graphql": {"query": "{a{cursor}}", "variables": {"v": "{cursor}"}}}, {"cursor": 'a"b'})
    assert sent == {"query": "{a{cursor}}", "variables": {"v": 'a"b'}}


def test_two_braces_write_one_and_other_braces_stay() -> None:
    keys = {"path": "/{id}/{{cursor}", "params": {"q": '{{window.end} {"a":1}'}, "json": {"{x}": "{{{cursor}}"}}
    assert url(keys, {"cursor": "v"}) == "/{id}/{cursor}?q=%7Bwindow.end%7D%20%7B%22a%22%3A1%7D"
    assert body(keys, {"cursor": "v"}) == {"{x}": "{v}"}


def test_what_has_no_value_yet_is_left_out_with_what_holds_it() -> None:
    keys = {
        "path": "/a?b={cursor}&c=1",
        "params": {"d": "> {cursor}", "e": ["{cursor}", "x"]},
        "headers": {"X-From": "{cursor}"},
        "json": {"f": {"g": "{cursor}", "h": None}, "i": ["{window.start}", 1]},
    }
    request = made(keys, {"cursor": None})
    assert request.url == f"{BASE}/a?c=1&e=x"
    assert request.headers == {"content-type": "application/json"}
    assert json.loads(request.body or b"") == {"f": {"h": None}, "i": [1]}


def test_the_bounds_of_a_window_stand_where_they_are_named() -> None:
    keys = {"path": "/a/{window.start}", "params": {"to": "{window.end}"}}
    assert url(keys, {"window.start": 1, "window.end": 2}) == "/a/1?to=2"


def test_a_value_that_a_parent_lacks_is_never_left_out() -> None:
    """A request without it would list something else."""
    with pytest.raises(SourceChanged, match=r"no `owner\.login`"):
        filled(parse("{parent.owner.login}"), {"parent.id": 5, "parent.owner.login": None})


def test_a_path_without_a_value_is_a_matter_for_a_person() -> None:
    with pytest.raises(ConfigError, match="first"):
        url({"path": "/a/{cursor}"})


# ---- what is put in


def test_what_is_put_in_replaces_the_same_name_wherever_it_stands() -> None:
    keys = {
        "path": "/a?page=9&b=1",
        "params": {"page": 8, "c": 2},
        "headers": {"X-Page": "7"},
        "json": {"page": {"after": 6, "size": 5}, "d": 3},
    }
    puts = [param("page", 1), Put(Placement(header="x-page"), 2), Put(Placement(body=("page", "after")), 3)]
    request = made(keys, NONE, *puts)
    assert request.url == f"{BASE}/a?b=1&page=1&c=2"
    assert request.headers["x-page"] == "2"
    assert json.loads(request.body or b"") == {"page": {"after": 3, "size": 5}, "d": 3}
    assert json.loads(made(keys).body or b"")["page"]["after"] == 6


def test_of_two_values_for_one_place_the_later_one_stays() -> None:
    assert url({}, NONE, param("a", 1), param("a", 2)) == "/events?a=2"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {"a": [None, {"b": "t"}]}),
        ({"a": 5}, {"a": [None, {"b": "t"}]}),
        ({"a": [1]}, {"a": [1, {"b": "t"}]}),
        ({"a": [1, {"b": 1, "c": 2}]}, {"a": [1, {"b": "t", "c": 2}]}),
    ],
)
def test_a_body_gets_what_is_missing_on_the_way(before: Any, after: Any) -> None:
    keys = {"json": before} if before else {}
    place = {"paginate": {"type": "cursor", "from": "$.n", "body": "$.a[1].b"}}
    assert body({**keys, **place}, NONE, Put(Placement(body=("a", 1, "b")), "t")) == after
    assert made({**keys, **place}).method == "POST"


def test_a_token_in_the_path_stands_at_its_placeholder_or_at_the_end() -> None:
    token = Put(Placement(in_path=True), "a/b")
    paginate = {"type": "cursor", "from": "$.n", "in_path": True}
    assert url({"path": "/x/?y=1", "paginate": paginate}, NONE, token) == "/x/a%2Fb?y=1"
    path = {"path": "/x/{cursor}/y", "paginate": {**paginate, "first": "*"}}
    assert url(path, {"cursor": "not this"}, token) == "/x/a%2Fb/y"


def test_a_value_for_a_form_is_one_of_its_fields() -> None:
    keys = {"form": {"a": "1", "page": "9"}}
    assert made(keys, NONE, Put(Placement(body=("page",)), 2)).body == b"a=1&page=2"


def test_a_url_that_the_api_named_keeps_its_parameters_and_gets_headers_and_body() -> None:
    keys = {"params": {"a": 1}, "headers": {"X-B": "2"}, "json": {"c": 3}}
    puts = [param("d", 4), Put(Placement(body=("e",)), 5)]
    request = template(keys).request({}, puts, f"{BASE}/next?x=%zz")
    assert (request.url, request.method, dict(request.headers)["x-b"]) == (f"{BASE}/next?x=%zz", "POST", "2")
    assert json.loads(request.body or b"") == {"c": 3, "e": 5}


# ---- secrets


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KEY", "s3cr{cursor}{{et")
    return "s3cr{cursor}{{et"


def test_what_came_by_reference_is_no_placeholder(secret: str) -> None:
    keys = {
        "path": "/{${env:KEY}/{cursor}",
        "headers": {"X-Key": "${env:KEY}"},
        "json": {"key": ["{${env:KEY}}"]},
    }
    request = made(keys, {"cursor": "v"})
    assert unquote(request.url) == f"{BASE}/{{{secret}/v"
    assert "x-key" not in request.headers
    assert template(keys).secret_headers == {"x-key": secret}
    assert json.loads(request.body or b"") == {"key": [f"{{{secret}}}"]}


def test_secrets_among_the_parameters_are_left_to_the_credentials(secret: str) -> None:
    keys = {"path": "/a?k=${env:KEY}&x=1", "params": {"t": ["${env:KEY}", "u"], "y": 2}, "list_style": "brackets"}
    rules = template(keys, redactor=Redactor())
    assert rules.secret_params == {"k": secret, "t[]": [secret, "u"]}
    assert rules.request().url == f"{BASE}/a?x=1&y=2"


@pytest.mark.parametrize(
    "keys", [{"json": {"name": "${env:KEY}"}}, {"form": {"user": "${env:KEY}"}}, {"path": "/${env:KEY}"}]
)
def test_a_secret_in_a_body_or_a_path_is_known_to_the_redactor(keys: Keys, secret: str) -> None:
    redactor = Redactor()
    request = template(keys, redactor=redactor).request()
    assert secret not in redactor.scrub(request.url + (request.body or b"").decode())
    assert "***" in redactor.scrub(request.url + (request.body or b"").decode())


def test_a_secret_for_a_parameter_that_paging_sets_is_replaced_like_any_other(secret: str) -> None:
    rules = template({"params": {"page": "${env:KEY}"}, "paginate": "page"})
    assert not rules.secret_params
    assert rules.request(NONE, [param("page", 3)]).url == f"{BASE}/events?page=3"


@given(st.text(alphabet="{}$cursor.windw", max_size=12))
def test_no_value_is_ever_expanded(value: str) -> None:
    assert parse_qsl(urlsplit(url({"params": {"q": "x{cursor}"}}, {"cursor": value})).query) == [("q", f"x{value}")]
