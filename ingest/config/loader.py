"""Reads the file: text → tree → shorthands written out → validated model. Every mistake is found in one pass.

    find ─▶ read ─▶ expand ─▶ flatten ─▶ refuse what is not built ─▶ validate ─▶ cross checks
                                                                        └▶ ConfigErrors: file:line:column: message

References are not resolved here; only whether they are well formed is checked.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ingest.config import references, values
from ingest.config.messages import Finding, findings
from ingest.config.model import Config, Stream
from ingest.config.notbuilt import refuse
from ingest.config.problems import START, ConfigErrors, Position, Problem
from ingest.config.shorthand import beside, expand
from ingest.config.tree import MAX_NODES, Builder, Node, Unreadable
from ingest.errors import ConfigError

FILE = "ingest.yaml"
VARIABLE = "INGEST_CONFIG"
MAX_BYTES = 1_048_576  # of the file


class Place(NamedTuple):
    value: Position
    key: Position


@dataclass(frozen=True)
class Loaded:
    """A valid configuration, and where each of its values stands."""

    config: Config
    file: str
    places: Mapping[str, Place] = field(repr=False)
    """Keys joined by dots → where they stand. A value from `defaults` stands there."""

    def position(self, path: str) -> Position:
        """Of the value at `path`, else of the nearest part around it that is in the file."""
        return nearest(self.places, path).value

    def where(self, path: str) -> str:
        """`ingest.yaml:14:17` for `sources.billing.streams.charges.records`."""
        line, column = self.position(path)
        return f"{self.file}:{line}:{column}"

    def within(self, prefix: str) -> Callable[[str], str]:
        """`where` for the paths of one part: within("sources.billing")("auth.bearer")."""
        return lambda path: self.where(f"{prefix}.{path}")


def find(explicit: Path | None) -> Path:
    """The file to read: `--config`, INGEST_CONFIG, ./ingest.yaml. Raises ConfigError when it is not there."""
    named = os.environ.get(VARIABLE)
    path, origin = (explicit, "--config") if explicit else (Path(named), VARIABLE) if named else (Path(FILE), "")
    if not path.is_file():
        said = f" ({origin})" if origin else " in this directory"
        raise ConfigError(f"no configuration: there is no file {path}{said}; run `ingest init` to write one")
    return path


def load(path: Path, *, records: str | None = None) -> Loaded:
    """Raises ConfigErrors with everything that is wrong. `records`: for streams that do not say where theirs are."""
    return parse(_read(path), str(path), records=records)


def parse(text: str, file: str = FILE, *, records: str | None = None) -> Loaded:
    """The same for a text; `file` is its name in messages."""
    try:
        builder, root = Builder.read(text)
        if root is None:
            raise Unreadable(START, "the file is empty; run `ingest init` to write one")
        places: dict[str, Place] = {}
        tree = _Flattener(places).value(beside(expand(root), Path(file).parent), ())
        if records is not None:
            _suppose(tree, records)
    except Unreadable as exc:
        raise ConfigErrors([Problem(file, *exc.at, "", exc.message)]) from exc
    problems = [Problem(file, *at, ".".join(keys), message) for at, keys, message in builder.mistakes]
    config, found = _validate(tree)
    for keys, on_key, message in found:
        dotted = ".".join(keys)
        place = nearest(places, dotted)
        problems.append(Problem(file, *(place.key if on_key else place.value), dotted, message))
    if problems or config is None:
        raise ConfigErrors(problems)
    return Loaded(config, file, places)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}; `ingest init` writes a new file") from exc
    if len(content) > MAX_BYTES:
        raise ConfigErrors([Problem(str(path), *START, "", f"larger than {MAX_BYTES:,} bytes")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = content[: exc.start]
        line, column = before.count(b"\n") + 1, exc.start - before.rfind(b"\n")
        raise ConfigErrors([Problem(str(path), line, column, "", "not UTF-8")]) from exc


@dataclass
class _Flattener:
    """Plain dicts and lists for pydantic; what their values stand at goes into `places`."""

    places: dict[str, Place]

    def value(self, node: Node, path: tuple[str, ...]) -> Any:
        if len(self.places) > MAX_NODES:
            raise Unreadable(node.at, f"more than {MAX_NODES:,} values once `defaults` are merged")
        self.places[".".join(path)] = Place(node.place, node.key_at)
        if isinstance(node.value, dict):
            return {key: self.value(child, (*path, key)) for key, child in node.value.items()}
        if isinstance(node.value, list):
            return [self.value(child, (*path, str(n))) for n, child in enumerate(node.value)]
        return node.value


def nearest(places: Mapping[str, Place], path: str) -> Place:
    while path and path not in places:
        path = path.rpartition(".")[0]
    return places.get(path, Place(START, START))


def _suppose(tree: Any, records: str) -> None:
    for source in _mapping(_mapping(tree).get("sources")).values():
        for stream in _mapping(_mapping(source).get("streams")).values():
            if isinstance(stream, dict) and isinstance(part := stream.setdefault("records", {}), dict):
                part.setdefault("path", records)


def _validate(tree: Any) -> tuple[Config | None, list[Finding]]:
    found = [Finding(keys, False, message) for keys, message in _malformed(tree, ())]
    refused = [Finding(*one) for one in refuse(tree)]
    # A part that lost a key may now miss it, or the `param` in whose stead it stood; that was said already.
    parents = {finding.path[:-1] for finding in refused}
    silent = {finding.path for finding in refused} | parents | {(*parent, "param") for parent in parents}
    found += refused
    config = None
    try:
        config = Config.model_validate(tree)
    except ValidationError as exc:
        found += [one for one in findings(exc.errors(include_url=False)) if one.path not in silent]
    if isinstance(tree, dict):
        found += _crossed(tree)
    return config, found


def _malformed(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _malformed(value, (*path, key))
    elif isinstance(tree, list):
        for n, value in enumerate(tree):
            yield from _malformed(value, (*path, str(n)))
    elif isinstance(tree, str) and (wrong := references.malformed(tree)):
        yield path, wrong


def _crossed(tree: Mapping[str, Any]) -> Iterator[Finding]:
    """Rules about the whole file; they hold for what can be read of it, right or wrong elsewhere."""
    if "source" in _mapping(tree.get("consumers")):
        yield Finding(
            ("consumers", "source"), True, "no consumer may be called `source`: its dead letters are the poller's"
        )
    for name in _mapping(tree.get("tasks")):
        if name in _mapping(tree.get("sources")):
            message = f"a source is called `{name}` too: limits and pauses of jobs go by the name"
            yield Finding(("tasks", name), True, message)
    default = Stream.model_fields["topic"].default
    first: dict[str, str] = {}
    for source, part in _mapping(tree.get("sources")).items():
        for stream, keys in _mapping(_mapping(part).get("streams")).items():
            path = ("sources", source, "streams", stream, "topic")
            written = _mapping(keys).get("topic", default)
            if not isinstance(written, str):
                continue
            topic = written.replace("{source}", source).replace("{stream}", stream)
            if len(topic) > values.TOPIC_LENGTH:
                yield Finding(path, False, f"a topic of {len(topic)} characters; {values.TOPIC_LENGTH} at most")
            other = first.setdefault(topic.replace(".", "_"), topic)
            if other != topic:
                yield Finding(
                    path,
                    False,
                    f"the topics `{topic}` and `{other}` differ only in `.` and `_`: Kafka's metrics mix them up",
                )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
