"""Texts for property tests: JSON as any API may write it, white space, escapes and numbers of any size included."""

from hypothesis import strategies as st

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
"""What UTF-8 and Postgres can hold: anything but NUL."""

_white = st.text(" \t\r\n", max_size=3)
_numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
_raw = st.text(st.characters(min_codepoint=0x20, exclude_characters='"\\', exclude_categories=["Cs"]), max_size=8)
_escapes = st.sampled_from([r"\n", r"\t", r"\\", r"\"", r"\/", r"\b", r"\f", r"\r", r"\u0000", r"\\u0000", r"\\N"])
_units = st.integers(0, 0xFFFF).map(lambda unit: rf"\u{unit:04x}")
_strings = st.lists(_raw | _escapes | _units, max_size=4).map(lambda parts: '"' + "".join(parts) + '"')


def _containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    spaced = st.tuples(_white, values, _white).map("".join)
    names = st.tuples(_white, _strings, _white).map("".join)
    arrays = st.lists(spaced, max_size=4).map(lambda items: "[" + ",".join(items) + "]")
    members = st.tuples(names, spaced).map(":".join)
    objects = st.lists(members, max_size=4).map(lambda items: "{" + ",".join(items) + "}")
    return arrays | objects


json_texts: st.SearchStrategy[str] = st.tuples(
    _white,
    st.recursive(_numbers | _strings | st.sampled_from(["true", "false", "null"]), _containers, max_leaves=12),
    _white,
).map("".join)
