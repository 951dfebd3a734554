"""References to secrets and settings: `${env:NAME}`, `${env:NAME:-default}`, `${file:/run/secrets/x}`.

The file holds references, a running part holds what they stand for: `resolve` copies the part that is used, when it is
used, so that a process needs the secrets of its own parts alone. What came by reference is known to the redactor before
anyone else can see it.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ingest.config import placeholders
from ingest.config.model import Source, Stream
from ingest.config.part import Part
from ingest.config.values import base_url, host, one_line, token_url
from ingest.errors import ConfigError
from ingest.paths import JsonPath
from ingest.redaction import Redactor

P = TypeVar("P", bound=Part)
Where = Callable[[str], str]
"""Keys joined by dots, relative to the part that is resolved → `file:line:column`."""

MAX_FILE = 65_536  # bytes that a referenced file may have

_REFERENCE = re.compile(r"\$\{(?:env:(?P<env>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?|file:(?P<file>[^}]+))\}")
_ANY = re.compile(r"\$\{[^}]*\}?")
_OPEN = frozenset(  # keys whose values may be shown
    {"user", "username", "name", "listen", "client_id", "allow_hosts", "auth_hosts", "ca", "cert"}
)
_URLS = {"base_url": base_url, "token_url": token_url}  # whose hosts may be shown
_CHECKED = {**_URLS, "allow_hosts": host, "auth_hosts": host}  # when they are known
_TEMPLATES = frozenset({"path", "headers", "params", "json", "form"})  # where placeholders stand, and `{{` is a brace
_TEMPLATES_WITHIN = (
    ("graphql", "variables"),
    ("incremental", "since", "value"),
    ("incremental", "until", "value"),
    *(("job", part, key) for part in ("create", "poll", "download") for key in ("path", "params", "json", "form")),
    ("job", "create", "graphql", "variables"),
)


class Unresolved(NamedTuple):
    path: str
    message: str


def nowhere(path: str) -> str:
    """For parts that did not come from a file."""
    return path


def malformed(text: str) -> str | None:
    """What is wrong with the references in a text of the file, if anything is."""
    for match in _ANY.finditer(text):
        if _REFERENCE.fullmatch(match[0]):
            continue
        inside = match[0].removeprefix("${").removesuffix("}")
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", inside):
            return f"`{match[0]}` is no reference; did you mean `${{env:{inside}}}`?"
        return "malformed reference; write ${env:NAME}, ${env:NAME:-default} or ${file:/run/secrets/name}"
    return None


def has_reference(text: str) -> bool:
    return "${" in text


def files(value: object) -> frozenset[Path]:
    """Every file that a part refers to."""
    if isinstance(value, str):
        return frozenset(Path(match["file"]) for match in _REFERENCE.finditer(value) if match["file"] is not None)
    if isinstance(value, Part):
        value = [getattr(value, name) for name in type(value).model_fields]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return frozenset(path for one in inner for path in files(one))


def resolve(part: P, secrets: Redactor, where: Where = nowhere) -> P:
    """A copy of the part in which every reference is replaced.

    Raises ConfigError with a line for each variable that is not set and each file that cannot be read.
    """
    filler = _Filler(secrets, requests=isinstance(part, Source | Stream))
    filled = filler.part(part, "")
    if filler.missing:
        raise ConfigError("\n".join(f"{where(path)}: {message}" for path, message in filler.missing))
    return filled


def resolve_text(text: str, where: str) -> str:
    """One text outside a part, such as a URL; what came by reference is not made a secret. Raises ConfigError."""
    try:
        return _REFERENCE.sub(lambda match: _value(match)[0], text)
    except ValueError as exc:
        raise ConfigError(f"{where}: {exc}") from exc


class _Filler:
    def __init__(self, secrets: Redactor, *, requests: bool) -> None:
        self._secrets, self._requests = secrets, requests
        self.missing: list[Unresolved] = []

    def part(self, part: P, path: str) -> P:
        changed: dict[str, Any] = {}
        for name, field in type(part).model_fields.items():
            value = getattr(part, name)
            filled = self.value(value, f"{path}.{field.alias or name}".lstrip("."))
            if filled is not value:
                changed[name] = filled
        return part.model_copy(update=changed) if changed else part

    def value(self, value: Any, path: str) -> Any:
        if isinstance(value, str):
            return self.text(value, path)
        if isinstance(value, Part):
            return self.part(value, path)
        if isinstance(value, Mapping):
            return {key: self.value(item, f"{path}.{key}") for key, item in value.items()}
        if isinstance(value, list | tuple) and not isinstance(value, JsonPath):
            return type(value)(self.value(item, f"{path}.{n}") for n, item in enumerate(value))
        return value

    def text(self, text: str, path: str) -> str:
        steps = path.split(".")
        key = next(step for step in reversed(steps) if not step.isdecimal())
        template = self._requests and _is_template(steps)

        def fill(match: re.Match[str]) -> str:
            try:
                value, given = _value(match, lines=steps[-2:] == ["jwt", "key"])
            except ValueError as exc:
                self.missing.append(Unresolved(path, str(exc)))
                return ""
            shown = (key in _OPEN and not template) or (key in _URLS and _names_the_host(match))
            shown = shown or _keys(steps)[:1] == ("transform",)  # it becomes part of what is published
            if given and not shown:
                self._secrets.add(value)
            return value

        if template:
            return placeholders.parse(text, lambda reference: _REFERENCE.sub(fill, reference))
        if not has_reference(text):
            return text
        found = len(self.missing)
        filled = _REFERENCE.sub(fill, text)
        if key in _CHECKED and len(self.missing) == found:
            try:
                _CHECKED[key](filled)
            except ValueError as exc:
                self.missing.append(Unresolved(path, f"{exc} (after its references were resolved)"))
        return filled


def _is_template(steps: Sequence[str]) -> bool:
    """Whether the key, seen from a source or from a stream, is one whose texts may hold placeholders."""
    keys = _keys(steps)
    return keys[:1] != () and (keys[0] in _TEMPLATES or any(keys[: len(one)] == one for one in _TEMPLATES_WITHIN))


def _keys(steps: Sequence[str]) -> tuple[str, ...]:
    """Of a source, or of the stream that they lead into."""
    return tuple(steps[2:] if steps[0] == "streams" else steps)


def _value(match: re.Match[str], *, lines: bool = False) -> tuple[str, bool]:
    """What a reference stands for, and whether it is more than the default in the file. `lines`: it may have several.

    Raises ValueError."""
    if match["file"] is not None:
        what, value = f"the file {match['file']}", _read(Path(match["file"]))
    else:
        what, value = f"the environment variable {match['env']}", os.environ.get(match["env"], "")
        if not value and match["default"] is not None:
            return match["default"].removeprefix(":-"), False
        if match["env"] not in os.environ:
            raise ValueError(f"{what} is not set")
    if not value:
        raise ValueError(f"{what} is empty")
    try:
        return value if lines else one_line(value), True
    except ValueError as exc:
        raise ValueError(f"{what} {exc}") from exc


def _read(path: Path) -> str:
    """The file without the line end that editors leave at its end."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ValueError(f"the file {path} has more than {MAX_FILE:,} bytes")
        return content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as exc:
        raise ValueError(f"the file {path} is not UTF-8") from exc
    except OSError as exc:
        raise ValueError(f"the file {path} cannot be read: {exc.strerror}") from exc


def _names_the_host(match: re.Match[str]) -> bool:
    """In a URL: scheme and host may be shown, what follows may be a token."""
    scheme, separator, host = match.string[: match.start()].partition("://")
    return not scheme or (bool(separator) and "/" not in host)
