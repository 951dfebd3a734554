"""Placeholders in requests: `{parent.…}`, `{job.…}`, `{window.start}`, `{window.end}`, `{cursor}`; every other brace is
literal.

`{{` writes a brace. What looks like a placeholder that was misspelt is refused. A text is taken apart once, before its
references are filled in, so that nothing that is put into it is ever read as a placeholder.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

SUBJECTS = {
    "parent": "{parent.FIELD}",
    "window": "{window.start} or {window.end}",
    "cursor": "{cursor}",
    "job": "{job.id}",
}
_NAME = re.compile(r"(parent|job)(\.[^{}\s]+)+|window\.(start|end)|cursor")
_WORDS = re.compile(r"[\w.\s-]+")  # what a misspelt name may consist of
_BRACES = re.compile(r"\$\{[^}]*\}|\{\{|\{(?P<inside>[^{}]*)\}")


class Pattern(str):
    """A text with placeholders, taken apart; as text it shows them in braces."""

    parts: tuple[str, ...]  # literal, name, literal, name, …, literal

    @classmethod
    def of(cls, parts: Iterable[str]) -> Self:
        parts = tuple(parts)
        pattern = cls("".join(f"{{{part}}}" if n % 2 else part for n, part in enumerate(parts)))
        pattern.parts = parts
        return pattern

    @property
    def names(self) -> tuple[str, ...]:
        return self.parts[1::2]


def parse(text: str, resolve: Callable[[str], str] = str) -> str:
    """The text with `{{` written as a brace, each `${…}` as `resolve` gives it; a Pattern where it has placeholders."""
    parts, at = [""], 0
    for match in _BRACES.finditer(text):
        parts[-1] += text[at : match.start()]
        at = match.end()
        if match["inside"] is not None and _NAME.fullmatch(match["inside"]):
            parts += [match["inside"], ""]
        else:
            parts[-1] += "{" if match[0] == "{{" else resolve(match[0]) if match[0][0] == "$" else match[0]
    parts[-1] += text[at:]
    return _joined(parts)


def literal_names(text: str) -> list[str]:
    """What stands in braces, looks like a name and is sent as it is: in a path, most likely meant as a placeholder."""
    inside = [match["inside"] for match in _BRACES.finditer(text)]
    return [name for name in inside if name and _WORDS.fullmatch(name) and not _NAME.fullmatch(name)]


def behind(prefix: str, text: str) -> str:
    """The text behind a prefix, without slashes at its beginning."""
    first, *rest = text.parts if isinstance(text, Pattern) else (text,)
    return _joined([prefix + first.lstrip("/"), *rest])


def cut(text: str, separator: str, times: int = -1) -> list[str]:
    """As `split`, at separators that stand in the text itself and not in a name."""
    found: list[list[str]] = [[]]
    for n, part in enumerate(text.parts if isinstance(text, Pattern) else (text,)):
        first, *rest = [part] if n % 2 else part.split(separator, times)
        found[-1].append(first)
        found += [[one] for one in rest]
        times -= len(rest) if times > 0 else 0
    return [_joined(parts) for parts in found]


def _joined(parts: Sequence[str]) -> str:
    return Pattern.of(parts) if len(parts) > 1 else parts[0]


def check(text: str) -> str:
    """`text` as it is. Raises ValueError for the near miss of a placeholder."""
    for match in _BRACES.finditer(text):
        inside = match["inside"]
        if inside is None or _NAME.fullmatch(inside) or not _WORDS.fullmatch(inside):
            continue
        subject = inside.strip().lower().split(".")[0]
        if close := difflib.get_close_matches(subject, SUBJECTS, n=1, cutoff=0.75):
            raise ValueError(
                f"`{{{inside}}}` is no placeholder; did you mean `{SUBJECTS[close[0]]}`? (`{{{{` writes a brace)"
            )
    return text


def found(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every placeholder in a value and in what it holds: where it stands, and its name."""
    if isinstance(value, str):
        pattern = value if isinstance(value, Pattern) else parse(value)
        for name in pattern.names if isinstance(pattern, Pattern) else ():
            yield path, name
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from found(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for n, item in enumerate(value):
            yield from found(item, (*path, str(n)))


def check_all(value: Any) -> Any:
    """`check` at any depth. A placeholder stands in a value, never in the name of one. Raises ValueError."""
    if isinstance(value, str):
        return check(value)
    if isinstance(value, Mapping):
        for name, item in value.items():
            if any(found(name)):
                raise ValueError(f"`{name}` is a name; a placeholder stands in a value")
            check_all(item)
    elif isinstance(value, list):
        for item in value:
            check_all(item)
    return value
