"""`explain`: the configuration with everything filled in, and where each value came from."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import tzinfo
from typing import Annotated, Any

import typer

from ingest.cli.context import ConfigOption, JsonOption, loaded
from ingest.config.loader import Loaded
from ingest.config.part import Part
from ingest.config.spelling import spelled
from ingest.paths import JsonPath
from ingest.redaction import MASK

_PASSWORDS = re.compile(r"(://[^/\s:@]*:)(?!\$\{)[^/\s]+(?=@)|([?&](?:ssl)?password=)(?!\$\{)[^&\s]+")  # in URLs


def explain(
    source: Annotated[str | None, typer.Option("--source", "-s", help="Only this source.")] = None,
    stream: Annotated[str | None, typer.Option("--stream", "-t", help="Only this stream of it.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every value and where it comes from. That is the place in the file, or a default."""
    configuration = loaded(config)
    found = [one for one in _values(configuration.config, "") if _wanted(one[0], source, stream)]
    rows = [(path, _text(value), _origin(configuration, path)) for path, value in found]
    if as_json:
        print(json.dumps([dict(zip(("key", "value", "from"), row, strict=True)) for row in rows], indent=2))
        return
    width = max((len(f"{path}: {text}") for path, text, _ in rows), default=0)
    for path, text, origin in rows:
        print(f"{f'{path}: {text}':<{min(width, 80)}}  # {origin}")


def _wanted(path: str, source: str | None, stream: str | None) -> bool:
    steps = path.split(".")
    if steps[0] != "sources":
        return source is None and stream is None
    if source is not None and steps[1] != source:
        return False
    return stream is None or steps[2] != "streams" or steps[3] == stream


def _values(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value that is no part of its own. What is absent by default is left out."""
    if isinstance(value, Part):
        for name, field in type(value).model_fields.items():
            inner = getattr(value, name)
            if inner is not None:
                yield from _values(spelled(field, inner), f"{path}.{field.alias or name}".lstrip("."))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _values(inner, f"{path}.{name}")
    elif isinstance(value, list | tuple) and not isinstance(value, JsonPath):
        if all(isinstance(one, Part) for one in value) and value:
            for n, inner in enumerate(value):
                yield from _values(inner, f"{path}.{n}")
        else:
            yield path, [_plain(one) for one in value]
    else:
        yield path, _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, JsonPath | tzinfo):
        return str(value)
    return sorted(value) if isinstance(value, frozenset | set) else value


def _text(value: Any) -> str:
    """Without the passwords that stand in it."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return _PASSWORDS.sub(lambda found: f"{found[1] or found[2]}{MASK}", text)


def _origin(configuration: Loaded, path: str) -> str:
    """A value that a shorthand or `defaults` gave stands there."""
    return configuration.where(path) if path in configuration.places else "default"
