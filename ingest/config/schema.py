"""The JSON Schema of the file, for editors: every valid file passes it; the loader stays the judge of the rest.

It is the model's own schema with what the loader takes besides: bare words, `defaults`, and parts of a stream that are
completed by `defaults`.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from ingest.config.auth import KINDS
from ingest.config.model import Config, Paginate, Stream
from ingest.config.shape import keys, parts_of
from ingest.config.shorthand import SCHEDULE
from ingest.config.values import BYTES, DURATION_PATTERN, SECONDS, SIZE_PATTERN

DIALECT = "https://json-schema.org/draft/2020-12/schema"
BARE_PAGINATE = ("none", "link", "page", "offset")
"""Types that need no further key."""

Schema = dict[str, Any]


def json_schema() -> Schema:
    schema = Config.model_json_schema(by_alias=True)
    parts: Schema = schema["$defs"]
    for node in _nodes(schema):
        if isinstance(node.get("title"), str):
            del node["title"]
        _spell_default(node)
        if "patternProperties" in node:
            node["additionalProperties"] = False
    for part in parts_of(keys(Stream)["paginate"]):
        if issubclass(part, Paginate):
            parts[part.__name__]["properties"]["end"]["enum"] = list(part.ENDS)
    schema["properties"]["log"] = {
        "description": schema["properties"]["log"]["description"],
        "anyOf": [parts["Log"]["properties"]["url"]["anyOf"][0], *schema["properties"]["log"]["anyOf"]],
    }
    two_ways = [{"required": list(pair)} for pair in combinations(KINDS, 2)]
    parts["Auth"] |= {"minProperties": 1, "not": {"anyOf": two_ways}}
    _shorten(parts["Stream"]["properties"])
    for name in ("Stream", "Records", "RecordSchema"):
        del parts[name]["required"]  # `defaults` may hold them
    parts["Source"]["properties"]["defaults"] = {
        "$ref": "#/$defs/Stream",
        "description": "What the streams of this source share: any key of a stream.",
    }
    return {"$schema": DIALECT, "title": "ingest.yaml", **schema}


def _shorten(stream: Schema) -> None:
    """Bare words, and mappings without a type: `defaults` may hold it."""
    untyped = {"type": "object", "not": {"required": ["type"]}}
    paginate, incremental = stream["paginate"], stream["incremental"]
    stream["paginate"] = {
        "description": paginate["description"],
        "default": "none",
        "anyOf": [{"enum": list(BARE_PAGINATE)}, *paginate["oneOf"], untyped],
    }
    for key, part in (("records", "Records"), ("version", "Version"), ("schema", "RecordSchema")):
        alone = {"type": "string", "description": "The file alone." if key == "schema" else "The path alone."}
        stream[key] = {"description": stream[key]["description"], "anyOf": [alone, {"$ref": f"#/$defs/{part}"}]}
    parent = stream["parent"]
    stream["parent"] = {**parent, "anyOf": [{"type": "string", "description": "The stream alone."}, *parent["anyOf"]]}
    below = {key: stream[key] for key in sorted(SCHEDULE - {"every"})}
    every = stream["every"]["anyOf"]
    whole = {"type": "object", "additionalProperties": False, "properties": {"interval": {"anyOf": every[:2]}, **below}}
    stream["every"] = {**stream["every"], "anyOf": [*every, whole]}
    words = {"type": "string", "description": "A field that holds a time, or none."}
    stream["incremental"] = {**incremental, "anyOf": [words, *incremental["anyOf"], untyped]}


def _nodes(value: Any) -> Iterator[Schema]:
    """Every schema inside this one, itself included."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(inner)


def _spell_default(node: Schema) -> None:
    """Defaults as the file would spell them; nothing where the default is to say nothing, or a whole part."""
    if "default" not in node:
        return
    default = node["default"]
    patterns = {node.get("pattern")} | {option.get("pattern") for option in node.get("anyOf", ())}
    if default is None or isinstance(default, dict):
        del node["default"]
    elif DURATION_PATTERN in patterns:
        node["default"] = spell(default, SECONDS)
    elif SIZE_PATTERN in patterns:
        node["default"] = spell(default, BYTES)


def spell(number: float, units: dict[str, Any]) -> str:
    """Seconds or bytes in the largest unit that leaves a whole number: 300 → 5m."""
    for unit, worth in sorted(units.items(), key=lambda item: -item[1]):
        if unit != "w" and number >= worth and abs(number / worth - round(number / worth)) < 1e-9:
            return f"{round(number / worth)}{unit}"
    return "0" if number == 0 else f"{number:g}{min(units, key=lambda unit: abs(units[unit] - 1))}"
