"""Records that are not what their schema says, and schemas that are none."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ingest.config.loader import load
from ingest.config.problems import ConfigErrors
from ingest.errors import ConfigError, SourceChanged
from ingest.sources.page import PageReader, Read
from tests.harness.fake_api import FakeApi
from tests.unit.sources import Watching, configured, failure, ids, opened, read, reply, say

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["amount"],
    "properties": {
        "amount": {"type": "integer", "maximum": 18446744073709551616},
        "lines": {"items": {"$ref": "#/$defs/line"}},
        "rate": {"multipleOf": 0.01},
    },
    "$defs": {"line": {"type": "object", "properties": {"n": {"type": "string"}}}},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "record.schema.json"
    path.write_text(json.dumps(SCHEMA))
    return path


def page(file: Path, *records: bytes, on_violation: str = "dlq", **keys: Any) -> Read:
    schema = {"file": str(file), "on_violation": on_violation}
    return PageReader(configured(keys={"schema": schema, **keys})[1]).read(list(records), clean=True)


GOOD = b'{"id":1,"amount":18446744073709551616,"rate":1.10,"lines":[{"n":"\\ud800"}]}'


@pytest.mark.parametrize(
    ("record", "violation"),
    [
        (b'{"id":2}', '"amount" is a required property'),
        (b'{"id":2,"amount":18446744073709551616.5}', 'amount: 18446744073709551616.5 is not of type "integer"'),
        (b'{"id":2,"amount":1,"rate":1.105}', "rate: 1.105 is not a multiple of 0.01"),
        (b'{"id":2,"amount":1,"lines":[{"n":"a"},{"n":1}]}', 'lines.1.n: 1 is not of type "string"'),
        (b'{"id":2,"amount":"%b"}' % (b"x" * 5000), 'amount: "xxx'),
        (b'{"id":2,"amount":%b}' % (b"9" * 5000), "it cannot be told: Integer value out of range"),
        (b'{"id":2,"amount":1e999}', "amount: 1e+999 is greater than the maximum"),
    ],
)  # fmt: skip
def test_a_record_that_is_not_what_the_schema_says_is_a_dead_letter(file: Path, record: bytes, violation: str) -> None:
    read = page(file, GOOD, record, GOOD.replace(b'"id":1', b'"id":3'))
    assert [one.value for one in read.records] == [GOOD, GOOD.replace(b'"id":1', b'"id":3')]
    [bad] = read.refused
    assert (bad.value, bad.error.stage, bad.error.code) == (record, "validate", "schema")
    assert str(bad.error).startswith(f"not what `schema` says: {violation}")
    assert len(str(bad.error)) < 300
    assert [one.id for one in read.listed] == ["1", "2", "3"]


def test_a_violation_may_be_a_warning_and_the_record_is_published(file: Path) -> None:
    read = page(file, GOOD, b'{"id":2}', b'{"id":3}', on_violation="warn")
    assert ([one.id for one in read.records], read.refused) == (["1", "2", "3"], [])
    assert list(read.warnings) == [f'record {n} of a page: "amount" is a required property' for n in (2, 3)]


def test_a_violation_may_fail_the_run(file: Path) -> None:
    with pytest.raises(SourceChanged) as error:
        page(file, GOOD, b'{"id":2}', on_violation="fail")
    assert str(error.value) == 'record 2 of a page is not what `schema` says: "amount" is a required property'


def test_what_is_looked_at_is_what_is_published(file: Path) -> None:
    steps = [{"explode": "rows"}, {"rename": {"sum": "amount"}}, {"filter": "kind != 'x'"}]
    rows = b'{"rows":[{"id":1,"sum":5},{"id":2,"sum":"5"},{"id":3,"sum":"5","kind":"x"},{"id":4}]}'
    read = page(file, rows, transform=steps)
    assert ([one.id for one in read.records], read.skipped) == (["1#0"], 1)
    assert [one.value for one in read.refused] == [b'{"id":2,"sum":"5"}', b'{"id":4}']
    warned = page(file, rows, transform=steps, on_violation="warn").warnings
    assert [warning.partition(":")[0] for warning in warned] == ["record 1#1 of a page", "record 1#3 of a page"]


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        yield api


async def test_a_page_of_violations_alone_is_no_change_of_the_answer_unless_the_stream_says_so(
    api: FakeApi, file: Path
) -> None:
    say(api, [reply('{"data":[{"id":1},{"id":2}]}')])
    async with opened(api.url, {"schema": str(file)}) as source:
        [page] = await read(source)
    assert len(page.refused) == 2
    _, error = await failure(api.url, {"schema": {"file": str(file), "on_violation": "fail"}})
    assert isinstance(error, SourceChanged)
    assert str(error).startswith("ingest.yaml:7:9: record 1 of a page is not what `schema` says")


async def test_a_warning_is_said_once_a_run(api: FakeApi, file: Path) -> None:
    say(api, [reply('{"data":[{"id":1},{"id":2},{"id":3,"amount":1}]}')])
    watch = Watching()
    async with opened(api.url, {"schema": {"file": str(file), "on_violation": "warn"}}) as source:
        assert ids(await read(source, watch=watch)) == ["1", "2", "3"]
    [notice] = watch.notices
    assert notice.kind == "schema"
    said = "2 of a page's records are not what `schema` says; the first, record 1 of a page: "
    assert notice.message == said + '"amount" is a required property'


# ---- the file


CONFIG = (
    "version: 1\nsources:\n  a:\n    base_url: https://x\n    {}\n    streams: {{s: {{path: /s, records: $, {}}}}}\n"
)


def written(folder: Path, stream: str, above: str = "headers: {}") -> Path:
    path = folder / "conf" / "ingest.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(CONFIG.format(above, stream))
    return path


@pytest.mark.parametrize("name", ["r.json", "./r.json", "../conf/r.json", "schemas/r.json"])
def test_the_schema_stands_beside_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config = written(tmp_path, f"schema: {name}")
    (config.parent / name).parent.mkdir(exist_ok=True)
    (config.parent / name).write_text("\ufeff" + json.dumps(SCHEMA))
    for folder, path in (
        (tmp_path, Path("conf/ingest.yaml")),
        (config.parent, Path("ingest.yaml")),
        (Path("/"), config),
    ):
        monkeypatch.chdir(folder)
        stream = load(path).config.sources["a"].streams["s"]
        assert stream.schema_ is not None
        assert Path(stream.schema_.file).read_text()
        assert PageReader(stream).read([b'{"id":1}'], clean=True).refused


def test_a_schema_may_be_shared_in_defaults_and_replaced_key_by_key(tmp_path: Path) -> None:
    config = written(tmp_path, "schema: {on_violation: warn}", "defaults: {schema: r.json}")
    (config.parent / "r.json").write_text("{}")
    schema = load(config).config.sources["a"].streams["s"].schema_
    assert schema is not None
    assert (Path(schema.file).name, schema.on_violation) == ("r.json", "warn")


REMOTE = (
    "is no JSON Schema: Resource 'https://example.com/x.json' is not present in a registry and retrieving it failed:"
    " Retrieval is disabled"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("", "is no JSON: Expecting value: line 1 column 1 (char 0)"),
        ("\xff", "is no JSON: 'utf-8' codec can't decode"),
        ("[" * 100_000, "is no JSON: maximum recursion depth exceeded"),
        ("5", 'is no JSON Schema: 5 is not of types "boolean", "object"'),
        ('{"properties":{"a":{"type":"strin"}}}', 'is no JSON Schema: properties.a.type: "strin" is not valid'),
        ('{"$ref":"#/$defs/x"}', "is no JSON Schema: Pointer '/$defs/x' does not exist"),
        ('{"$ref":"https://example.com/x.json"}', REMOTE),
        ('{"$ref":"other.json"}', "is no JSON Schema: Resource 'other.json' is not present"),
        ('{"$schema":"https://example.com/draft"}', "is no JSON Schema: Unknown meta-schema"),
    ],
)
def test_a_file_that_is_no_schema_is_said_at_load(tmp_path: Path, content: str, message: str) -> None:
    config = written(tmp_path, "schema: {file: r.json}")
    (config.parent / "r.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigErrors) as error:
        load(config)
    assert str(error.value).startswith(f"{config}:6:56: {config.parent / 'r.json'} {message}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.json", "cannot read {folder}/none.json: No such file or directory"),
        (".", "cannot read {folder}: Is a directory"),
        ('"${env:SCHEMA}"', "a file that is read at load holds no reference"),
    ],
)
def test_a_schema_that_is_not_there_is_said_at_load(tmp_path: Path, name: str, message: str) -> None:
    config = written(tmp_path, f"schema: {name}")
    with pytest.raises(ConfigErrors) as error:
        load(config)
    assert str(error.value) == f"{config}:6:49: {message.format(folder=config.parent)}"


def test_a_policy_that_there_is_not_is_said_at_load(tmp_path: Path) -> None:
    config = written(tmp_path, "schema: {file: r.json, on_violation: drop}")
    (config.parent / "r.json").write_text("{}")
    with pytest.raises(ConfigErrors) as error:
        load(config)
    assert str(error.value) == f"{config}:6:78: `drop` is not one of dlq, warn, fail"


def test_a_schema_that_is_gone_when_it_is_used_is_a_mistake_of_a_person(tmp_path: Path) -> None:
    config = written(tmp_path, "schema: r.json")
    (config.parent / "r.json").write_text("{}")
    stream = load(config).config.sources["a"].streams["s"]
    (config.parent / "r.json").unlink()
    with pytest.raises(ConfigError, match=r"schema\.file: cannot read"):
        PageReader(stream)
