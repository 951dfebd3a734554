"""Paths are read once, evaluate to what they say, and never raise over an answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.paths import ABSENT, Every, JsonPath, Root, find, first, parse
from tests.texts import json_texts

ALL_ROOTS = tuple(Root)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("$", ()),
        ("a", ("a",)),
        ("$.a", ("a",)),
        ("a.b", ("a", "b")),
        ("$[0]", (0,)),
        ("a[0].b", ("a", 0, "b")),
        ("a[*].b[*]", ("a", Every.ITEM, "b", Every.ITEM)),
        ("$[*]", (Every.ITEM,)),
        ("a.*", ("a", Every.VALUE)),
        ('["a:b"]', ("a:b",)),
        ('a["x.y"].z', ("a", "x.y", "z")),
        (r'["a\"b\\c"]', ('a"b\\c',)),
        ("@odata.nextLink", ("@odata", "nextLink")),
        ('["@odata.nextLink"]', ("@odata.nextLink",)),
        ("updated-at", ("updated-at",)),
        ("größe", ("größe",)),
        ("  a ", ("a",)),
    ],
)
def test_a_path_is_its_steps(text: str, steps: tuple[object, ...]) -> None:
    assert parse(text) == JsonPath(text, Root.BODY, steps)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "root", "steps"),
    [
        ("header.X-Next", Root.HEADER, ("X-Next",)),
        ("header.X.Y", Root.HEADER, ("X.Y",)),
        ("last.id", Root.LAST, ("id",)),
        ("last.a[0]", Root.LAST, ("a", 0)),
        ("^.total", Root.OUTER, ("total",)),
        ("^~", Root.NAME, ()),
    ],
)
def test_a_prefix_names_where_the_path_begins(text: str, root: Root, steps: tuple[object, ...]) -> None:
    assert parse(text, roots=ALL_ROOTS)[1:3] == (root, steps)


@pytest.mark.parametrize(("text", "up"), [("a", 0), ("^.a", 1), ("^.^.a", 2), ("^.^.^.a", 3)])
def test_each_roof_is_one_object_further_up(text: str, up: int) -> None:
    assert parse(text, roots=ALL_ROOTS) == JsonPath(text, parse(text, roots=ALL_ROOTS).root, ("a",), up)


@pytest.mark.parametrize("text", ["header.x", "last.id"])
def test_a_prefix_that_means_nothing_here_is_a_name(text: str) -> None:
    assert parse(text) == JsonPath(text, Root.BODY, tuple(text.split(".")))


@pytest.mark.parametrize(
    "text", ["", "  ", "a..b", "a.", "a[", "a[x]", "a[-1]", "a b", "^.a", '["a', "a[1", "$x y", "'a'"]
)
def test_what_is_no_path_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="path"):
        parse(text)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.b", [1]),
        ("list[1]", [20]),
        ("list[*]", [10, 20]),
        ("things[*].n", [1, 3]),
        ("map.*", [5, 6]),
        ("list[7]", []),
        ("list.name", []),
        ("a[0]", []),
        ("a[*]", []),
        ("list.*", []),
        ("null", [None]),
        ("missing.deeper", []),
    ],
)
def test_every_value_at_the_path_is_found_in_order(path: str, found: list[object]) -> None:
    value = {
        "a": {"b": 1},
        "list": [10, 20],
        "things": [{"n": 1}, {"m": 2}, {"n": 3}],
        "map": {"x": 5, "y": 6},
        "null": None,
    }
    steps = parse(path).steps
    assert list(find(value, steps)) == found
    assert first(value, steps) == (found[0] if found else ABSENT)


def test_absent_is_false_and_not_none() -> None:
    assert not ABSENT
    assert ABSENT is not None


def test_plain_paths_are_known_by_their_names_alone() -> None:
    assert parse("a.b").plain == ("a", "b")
    assert parse("a[0]").plain is None
    assert parse("a[*]").plain is None


@given(st.text())
def test_any_text_is_a_path_or_a_value_error(text: str) -> None:
    try:
        path = parse(text, roots=ALL_ROOTS)
    except ValueError:
        return
    assert str(path) == text


@given(st.text(max_size=20))
def test_a_quoted_name_stands_for_itself(name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    if "\n" in name:
        return  # a line break cannot stand in a path
    assert parse(f'["{quoted}"]').steps == (name,)


@given(json_texts, st.lists(st.sampled_from([0, 1, "a", "", Every.ITEM, Every.VALUE]), max_size=4))
def test_evaluation_never_raises(text: str, steps: list[int | str | Every]) -> None:
    list(find(json.loads(text), steps))
