"""The schema that editors use, and the reference that people read, say what the loader does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ingest.config import model
from ingest.config.loader import parse
from ingest.config.part import Part
from ingest.config.problems import ConfigErrors
from ingest.config.schema import json_schema
from ingest.config.shape import every_key, keys
from tests.unit.test_config_loader import EXAMPLES, stream

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/configuration.md").read_text()
SCHEMA = json_schema()
SECTIONS: dict[str, type[Part]] = {
    "The file": model.Config,
    "The log": model.Log,
    "Security": model.Security,
    "A source": model.Source,
    "Auth": model.Auth,
    "Basic": model.Basic,
    "API key": model.ApiKey,
    "OAuth 2": model.OAuth2,
    "Session": model.Session,
    "Login": model.Login,
    "Send": model.Send,
    "JWT": model.Jwt,
    "HMAC": model.Hmac,
    "Probe": model.Probe,
    "TLS": model.Tls,
    "Limits": model.Limits,
    "Timeout": model.Timeout,
    "Retry": model.Retry,
    "Errors": model.Rule,
    "When": model.When,
    "A stream": model.Stream,
    "DST": model.Dst,
    "GraphQL": model.GraphQL,
    "Records": model.Records,
    "Version": model.Version,
    "Transform": model.Transform,
    "Schema": model.RecordSchema,
    "Decode": model.Decode,
    "Pagination": model.SinglePage,
    "`type: link`": model.LinkHeader,
    "`type: next_url`": model.NextUrl,
    "`type: cursor`": model.CursorToken,
    "`type: page`": model.PageNumber,
    "`type: offset`": model.Offset,
    "`type: keyset`": model.Keyset,
    "`type: object`": model.ObjectToken,
    "Incremental": model.Incremental,
    "Parent": model.ParentStream,
    "Job": model.Job,
    "Create": model.CreateJob,
    "Poll": model.PollJob,
    "Download": model.DownloadJob,
    "Since": model.Since,
    "Until": model.Until,
    "Deletes": model.Deletes,
    "Sweep": model.SweepPlan,
    "Feed": model.FeedPlan,
    "Expect": model.Expect,
    "A consumer": model.StoreConsumer,
    "Batch": model.BatchLimits,
    "A task": model.Task,
    "Jobs": model.JobsPlan,
    "Topics": model.Topics,
    "Overrides": model.TopicOverride,
    "Operations": model.Ops,
    "Notify": model.Notify,
}
KNOWN = {
    *("$defs", "$ref", "$schema", "title", "description", "default", "examples", "discriminator"),
    *("type", "enum", "const", "anyOf", "oneOf", "not", "pattern", "maxLength", "minimum", "maximum"),
    *("items", "minItems", "uniqueItems", "properties", "patternProperties", "additionalProperties", "propertyNames"),
    *("required", "minProperties", "maxProperties"),
}


def accepts(schema: Any, value: Any) -> bool:
    """The part of JSON Schema 2020-12 that our schema uses; a keyword that is not in KNOWN fails the test."""
    if isinstance(schema, bool):
        return schema
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    types = schema.get("type", [])
    return (
        ("$ref" not in schema or accepts(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], value))
        and (not types or any(is_a(value, kind) for kind in ([types] if isinstance(types, str) else types)))
        and ("enum" not in schema or value in schema["enum"])
        and ("const" not in schema or (value == schema["const"] and not isinstance(value, bool)))
        and ("anyOf" not in schema or any(accepts(option, value) for option in schema["anyOf"]))
        and ("oneOf" not in schema or sum(accepts(option, value) for option in schema["oneOf"]) == 1)
        and ("not" not in schema or not accepts(schema["not"], value))
        and (not isinstance(value, str) or re.search(schema.get("pattern", ""), value) is not None)
        and (not isinstance(value, str) or len(value) <= schema.get("maxLength", len(value)))
        and (not is_a(value, "number") or schema.get("minimum", value) <= value <= schema.get("maximum", value))
        and (not isinstance(value, list) or accepts_items(schema, value))
        and (not isinstance(value, dict) or accepts_object(schema, value))
    )


def is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None)}
    return kind in kinds and isinstance(value, kinds[kind])  # type: ignore[arg-type]


def accepts_items(schema: Any, value: list[Any]) -> bool:
    return len(value) >= schema.get("minItems", 0) and all(accepts(schema.get("items", True), item) for item in value)


def accepts_object(schema: Any, value: dict[str, Any]) -> bool:
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
        return False
    if not set(schema.get("required", ())) <= set(value):
        return False
    for key, item in value.items():
        rules = [rule for pattern, rule in schema.get("patternProperties", {}).items() if re.search(pattern, key)]
        rules += [schema["properties"][key]] if key in schema.get("properties", {}) else []
        rules = rules or [schema.get("additionalProperties", True)]
        if not accepts(schema.get("propertyNames", True), key) or not all(accepts(rule, item) for rule in rules):
            return False
    return True


def plain(text: str) -> Any:
    """As an editor reads it: JSON values, text for keys and dates."""
    return json.loads(json.dumps(YAML(typ="safe", pure=True).load(text), default=str))


def fragments() -> list[str]:
    """The examples of the reference, each made a whole file."""
    found = []
    for block in re.findall(r"```yaml\n(.*?)```", REFERENCE, re.DOTALL):
        first = block.split(":")[0]
        if first == "version":
            found.append(block)
        elif first in keys(model.Config):
            found.append("version: 1\n" + block)
        elif first in keys(model.Source) and first not in keys(model.Stream):
            stream = "base_url: https://x.example\nstreams: {one: {path: /x, records: $}}\n"
            inside = "".join(f"    {line}\n" for line in (stream + block).splitlines())
            found.append(f"version: 1\nsources:\n  api:\n{inside}")
        else:
            whole = "path" in block.split(":")[0]
            given = block if whole else "path: /x\nrecords: $\n" + block
            inside = "".join(f"        {line}\n" for line in given.splitlines())
            found.append(
                f"version: 1\nsources:\n  api:\n    base_url: https://x.example\n    streams:\n      one:\n{inside}"
            )
    return found


GOOD = [EXAMPLES, (ROOT / "ingest/cli/init.yaml").read_text(), *fragments()]


@pytest.mark.parametrize("text", GOOD)
def test_a_good_file_passes_the_loader_and_the_schema(text: str) -> None:
    assert parse(text)
    assert accepts(SCHEMA, plain(text))


@pytest.mark.parametrize(
    "keys_of_the_stream",
    [
        "every: 5",
        "every: soon",
        "evry: 5m",
        "id: 5",
        "paginate: lnik",
        "paginate: cursor",
        "paginate: {type: page, end: no_token}",
        "paginate: {type: keyset}",
        "incremental: {type: sometimes, field: x}",
        "auth: {bearer: plain}",
        "auth: {}",
        "auth: {bearer: '${env:A}', api_key: {name: a, value: '${env:B}'}}",
        "retry: {attempts: 0}",
        "parent: {stream: x, skip_on: [200]}",
        "params: {a: {b: c}}",
    ],
)
def test_a_bad_stream_fails_both(keys_of_the_stream: str) -> None:
    text = stream(f"path: /x, records: $, {keys_of_the_stream}")
    with pytest.raises(ConfigErrors, match=r"ingest\.yaml:6:"):
        parse(text)
    assert not accepts(SCHEMA, plain(text))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "version: 2",
        "version: 1\nsources: {Foo: {base_url: https://x, streams: {a: {path: /x, records: $}}}}",
        "version: 1\nsources: {foo: {base_url: https://x, streams: {}}}",
        "version: 1\nconsumers: {a: {kind: archive, topics: [x]}}",
        "version: 1\ntopics: {max_message: 5}",
        "version: 1\ntopics: {create: 1}",
        "version: 1\nlog: {security: {protocol: TLS}}",
        "version: 1\nlog: {security: {mechanism: PLAIN, username: a, password: b}}",
        "version: 1\nlog: 5",
    ],
)
def test_a_bad_file_fails_the_schema(text: str) -> None:
    assert not accepts(SCHEMA, plain(text))


def test_the_schema_is_json_and_names_its_dialect() -> None:
    assert json.loads(json.dumps(SCHEMA))["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_defaults_are_spelt_as_in_the_file() -> None:
    assert SCHEMA["$defs"]["Timeout"]["properties"]["total"]["default"] == "5m"
    assert SCHEMA["$defs"]["Topics"]["properties"]["retention"]["default"] == "7d"
    assert SCHEMA["$defs"]["Limits"]["properties"]["max_body"]["default"] == "64MB"


def documented(heading: str) -> dict[str, str]:
    """Key → default, from the first table of a section of the reference."""
    [section] = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", REFERENCE, re.DOTALL | re.MULTILINE)
    table = section.split("| Key |", 1)[1].split("\n\n", 1)[0]
    return {
        key: default.strip().strip("`") for key, default in re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE)
    }


def expected(part: type[Part]) -> dict[str, str]:
    schema = SCHEMA if part is model.Config else SCHEMA["$defs"][part.__name__]
    # `defaults` may hold them
    by_default = {model.Stream: {"path", "records"}, model.Records: {"path"}, model.RecordSchema: {"file"}}
    required = by_default.get(part, set(schema.get("required", ())))
    found = {}
    for key, rules in schema["properties"].items():
        default = None if rules.get("default") == [] else rules.get("default")
        found[key] = "required" if key in required else "" if default is None else spelt(default)
    shared = set(keys(model.Paginate)) | {"type"}
    return {
        k: v
        for k, v in found.items()
        if part is model.SinglePage or not issubclass(part, model.Paginate) or k not in shared
    }


def spelt(default: Any) -> str:
    return default if isinstance(default, str) else json.dumps(default)


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_key_and_its_default_is_documented(heading: str) -> None:
    assert documented(heading) == expected(SECTIONS[heading])


def test_every_part_of_the_model_has_a_section() -> None:
    parts = {part.__name__ for part in SECTIONS.values()} - {"Config"}
    assert parts == {name for name, rules in SCHEMA["$defs"].items() if rules.get("type") == "object"}
    assert len(list(every_key())) > len(parts)
