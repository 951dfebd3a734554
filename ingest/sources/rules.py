"""What the configuration says about an answer before anything else looks at it: the first rule that matches counts.

A body is read once, however many rules look at it, and not at all where none does. One that cannot be read has nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ingest.config.rules import Action, Rule, When
from ingest.errors import SourceChanged
from ingest.paths import JsonPath, Root
from ingest.sources.answers import Answer, Undecodable
from ingest.sources.gunzip import TooLarge


class Told(Protocol):
    """An answer, as far as rules care."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""

    @property
    def body(self) -> bytes: ...


class Ruled(Exception):
    """A rule says what the answer means for the listing. The text says what came back."""

    def __init__(self, action: Action, said: str, status: int) -> None:
        super().__init__(said)
        self.action, self.status = action, status


Read = Callable[[Told], Answer]
"""How a body is read. Raises Undecodable, TooLarge and SourceChanged."""


def _as_json(told: Told) -> Answer:
    return Answer(told.body)


class Rules:
    """Those of one stream; the first that matches counts."""

    def __init__(self, rules: Sequence[Rule] = (), read: Read = _as_json) -> None:
        self._rules = [(_Condition(rule.when), rule.do) for rule in rules]
        self._read = read

    def match(self, answer: Told) -> Action | None:
        if not self._rules:
            return None
        body = _Body(answer, self._read)
        return next((do for condition, do in self._rules if condition.holds(answer, body)), None)


class _Condition:
    def __init__(self, when: When) -> None:
        self._statuses, self._has = frozenset(when.status), when.has
        self._headers = {name.lower(): value for name, value in when.header.items()}
        self._where = None
        if when.where is not None:
            import jmespath

            self._where = jmespath.compile(when.where)

    def holds(self, answer: Told, body: "_Body") -> bool:
        if self._statuses and answer.status not in self._statuses:
            return False
        if any(answer.headers.get(name, "").strip() != value for name, value in self._headers.items()):
            return False
        if self._has is not None and not _has(answer, body, self._has):
            return False
        return self._where is None or body.where(self._where)


def _has(answer: Told, body: "_Body", path: JsonPath) -> bool:
    if path.root is Root.HEADER:
        return str(path.steps[0]).lower() in answer.headers
    return body.has(path)


class _Body:
    def __init__(self, told: Told, read: Read) -> None:
        self._told, self._read = told, read
        self._answer: Answer | None = None
        self._plain: Any = None

    def _as_read(self) -> Answer:
        self._answer = self._answer or self._read(self._told)
        return self._answer

    def has(self, path: JsonPath) -> bool:
        try:
            found = self._as_read().first(path.steps)
            return found is not None and bytes(found) != b"null"
        except (Undecodable, TooLarge, SourceChanged):
            return False

    def where(self, expression: Any) -> bool:
        from jmespath.exceptions import JMESPathError

        try:
            self._plain = self._plain or msgspec.json.decode(self._as_read().body)
            return _is_true(expression.search(self._plain))
        except (Undecodable, TooLarge, SourceChanged, msgspec.DecodeError, RecursionError, JMESPathError):
            return False


def _is_true(value: object) -> bool:
    """To JMESPath; 0 is."""
    return value is not None and value is not False and value not in ("", [], {})
