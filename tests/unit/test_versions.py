"""Versions by hash: which parts of a record count, and what says that most records of a listing came as new ones."""

import json
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.changes import SAMPLE_BYTES, Changes, changed_fields
from ingest.report import Report
from ingest.sources import SourceRecord
from ingest.sources.identity import Hash, hash_of, version_hash
from tests.harness.fake_api import FakeApi
from tests.texts import json_texts
from tests.unit.polling import process
from tests.unit.sources import configured
from tests.unit.test_records import taken


@cache
def _hash(keys: str) -> Hash:
    return hash_of(configured(keys={"version": json.loads(keys)})[1].version)


def hashed(record: bytes, **keys: Any) -> str:
    return _hash(json.dumps(keys))(record)


RECORD = b'{"id":1,"a":{"b":1.10,"c":[1,2]},"lines":[{"n":1,"seen":5},{"n":2,"seen":6}],"views":18446744073709551616}'


@pytest.mark.parametrize(
    ("keys", "old", "new"),
    [
        ({"except": "views"}, b"18446744073709551616", b"18446744073709551617"),
        ({"except": ["views", "lines[*].seen"]}, b'"seen":5', b'"seen":7'),
        ({"except": ["a.b"]}, b"1.10", b"1.20"),
        ({"except": ["a.c[1]"]}, b"[1,2]", b"[1,9]"),
        ({"except": ["a.*"]}, b"[1,2]", b"null"),
        ({"except": ["lines[*]"]}, b'{"n":1,"seen":5},', b""),
        ({"hash": "id"}, b"1.10", b"1.20"),
        ({"hash": ["a", "lines"], "except": ["lines[*].seen"]}, b'"seen":5', b'"seen":7'),
    ],
)
def test_what_does_not_count_may_change(keys: dict[str, Any], old: bytes, new: bytes) -> None:
    assert hashed(RECORD.replace(old, new), **keys) == hashed(RECORD, **keys)
    assert hashed(RECORD.replace(old, new)) != hashed(RECORD)


@pytest.mark.parametrize(
    ("keys", "old", "new"),
    [
        ({"except": "views"}, b"1.10", b"1.1000000000000000000001"),
        ({"except": ["id"]}, b"18446744073709551616", b"18446744073709551617"),
        ({"except": ["lines[*].seen"]}, b'"n":1', b'"n":3'),
        ({"except": ["a.c[1]"]}, b"[1,2]", b"[9,2]"),
        ({"except": ["a.c[7]", "id.x", "views[*]", "missing"]}, b'"id":1', b'"id":2'),
        ({"hash": "id"}, b'"id":1', b'"id":"1"'),
        ({"hash": ["a.b", "a.c"]}, b"1.10", b"1.20"),
        ({"hash": ["lines[*].n"]}, b'"n":2', b'"n":3'),
        ({"hash": ["a", "lines"], "except": ["lines[*].seen"]}, b'"n":1', b'"n":3'),
        ({"hash": "views"}, b'"views"', b'"seen"'),
    ],
)
def test_what_counts_makes_a_new_version(keys: dict[str, Any], old: bytes, new: bytes) -> None:
    assert hashed(RECORD.replace(old, new), **keys) != hashed(RECORD, **keys)


def test_the_order_of_names_and_the_way_they_are_written_do_not_count() -> None:
    one, other = b'{"id":1,"e":"\xc3\xa9","n":[1.10]}', b'{ "n" : [ 1.10 ] , "\\u0065":"\\u00e9","id":1 }'
    assert hashed(one, **{"except": "x"}) == hashed(other, **{"except": "x"})
    assert hashed(one, hash="$") == hashed(other, hash="$")
    assert hashed(one) != hashed(other)


@pytest.mark.parametrize("value", [b'"\\ud800"', b'{"\\udc00":1}', b"9" * 5000, b"1e999"])
def test_values_that_few_readers_take_count_too(value: bytes) -> None:
    record = b'{"a":%b,"b":1}' % value
    assert hashed(record, **{"except": "x"}) != hashed(record.replace(b'"a"', b'"c"'), **{"except": "x"})
    assert hashed(record, **{"except": "x"}) == hashed(record, **{"except": "x"})


def test_halves_of_two_surrogate_pairs_are_two_versions() -> None:
    assert hashed(b'{"a":"\\ud800"}', hash="a") != hashed(b'{"a":"\\ud801"}', hash="a")


@given(st.dictionaries(st.sampled_from(["a", "b", "é", '"']), json_texts, min_size=1), st.randoms())
def test_a_hash_of_everything_is_one_of_the_members_in_any_order(members: dict[str, str], chance: Any) -> None:
    names = list(members)
    texts = []
    for _ in range(2):
        chance.shuffle(names)
        texts.append(("{" + ", ".join(f"{json.dumps(name)}: {members[name]}" for name in names) + "}").encode())
    assert hashed(texts[0], hash="$") == hashed(texts[1], hash="$")


def test_a_hash_that_is_configured_is_the_version_and_the_id_of_a_record_without_one() -> None:
    version = {"except": ["seen"]}
    one, other = b'{"id":1,"seen":1}', b'{"id":1,"seen":2}'
    assert taken(one, version=version).version == taken(other, version=version).version
    assert taken(one, version=version, id=[]).id == taken(other, version=version, id=[]).id
    assert taken(one).version == version_hash(one)


# ---- most of a listing comes as new versions


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        yield api


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": n, "meta": {"seen": 0, "kind": "a"}, **more} for n in range(count)]


async def listed(
    api: FakeApi, path: Path, *runs: list[dict[str, Any]], in_one_process: bool = True, **keys: Any
) -> Report:
    """The report of the last of the runs."""
    changes = Changes()
    async with process(path) as one:
        for records in runs:
            api.serve("events", records, style="cursor", page_size=7)
            report = await one.poll(
                api.url,
                {"paginate": {"type": "cursor", "from": "$.next_cursor", "param": "cursor"}, **keys},
                changes=changes if in_one_process else None,
            )
    return report


async def test_fields_that_change_in_most_records_are_named(api: FakeApi, tmp_path: Path) -> None:
    changed = [{**row, "at": 1, "meta": {"seen": 1, "kind": "a"}} for row in rows(12)] + rows(20)[12:]
    report = await listed(api, tmp_path / "x.db", rows(20), changed)
    assert report.notices["new_versions"] == (
        "12 of 20 records that were listed before come as new versions; in a sample of 20 changed: at, meta.seen. What"
        " does not matter is left out by `version: {except: [at, meta.seen]}`"
    )
    assert (
        await listed(api, tmp_path / "y.db", rows(20), changed, version={"except": ["at", "meta.seen"]})
    ).events == 0


async def test_a_new_process_says_so_without_the_names(api: FakeApi, tmp_path: Path) -> None:
    report = await listed(api, tmp_path / "x.db", rows(20), rows(20, at=1), in_one_process=False)
    assert report.notices["new_versions"].startswith(
        "20 of 20 records that were listed before come as new versions; a pro"
    )


@pytest.mark.parametrize(
    ("first", "second", "keys"),
    [
        pytest.param(rows(20), rows(9, at=1) + rows(20)[9:], {}, id="less than half"),
        pytest.param(rows(9), rows(9, at=1), {}, id="too few to tell"),
        pytest.param(rows(20), rows(20), {}, id="nothing"),
        pytest.param([], rows(20), {}, id="the first time"),
        pytest.param(
            rows(20, n=1),
            rows(20, n=2),
            {"incremental": {"type": "integer", "field": "n", "since": {"param": "since"}}},
            id="what is asked for because it changed",
        ),
    ],
)
async def test_fewer_changes_and_changes_that_were_asked_for_are_no_news(
    api: FakeApi, tmp_path: Path, first: list[dict[str, Any]], second: list[dict[str, Any]], keys: dict[str, Any]
) -> None:
    assert "new_versions" not in (await listed(api, tmp_path / "x.db", first, second, **keys)).notices


def test_the_sample_is_bounded_and_what_cannot_be_compared_is_no_error() -> None:
    changes = Changes()
    for half in (b"0", b"1"):
        large = SourceRecord("0", "v", "0", None, None, b'{"x":"%b"}' % (b"x" * SAMPLE_BYTES))
        odd = [SourceRecord(str(n), half.decode(), "k", None, None, b'{"x":"\\ud80%b"}' % half) for n in range(12)]
        changes.page([*odd, large], {one.id for one in odd} if half == b"1" else set(), odd)
        notice = changes.end()
    assert notice is not None
    assert sum(map(len, changes._before.values())) <= SAMPLE_BYTES


@pytest.mark.parametrize(
    ("before", "now", "fields"),
    [
        (b'{"a":1,"b":{"c":[1],"d":1}}', b'{"b":{"d":1,"c":[2]},"a":1}', ["b.c"]),
        (b'{"a":{}}', b'{"a":null,"e":1}', ["a", "e"]),
        (b'{"x.y":{"z":1}}', b'{"x.y":{"z":2}}', ['["x.y"].z']),
    ],
)
def test_changed_fields_are_paths_that_can_be_configured(before: bytes, now: bytes, fields: list[str]) -> None:
    assert sorted(changed_fields(before, now)) == fields
    assert hashed(before, **{"except": fields}) == hashed(now, **{"except": fields})
