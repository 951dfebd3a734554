"""One answer, as far as paging cares: the tokens, flags and objects that paths lead to."""

from collections.abc import Mapping, Sequence

import msgspec

from ingest.errors import SourceChanged
from ingest.paths import JsonPath, Root
from ingest.sources.answers import Answer, Undecodable, scalar

_NOTHING = (b"null", b"false", b'""')
_EMPTY = (b"[]", b"{}")


class Received(msgspec.Struct):
    url: str  # that was asked
    headers: Mapping[str, str]  # names in lower case
    body: Answer
    records: Sequence[bytes]

    def find(self, path: JsonPath) -> str | None:
        """The token at the path: None where it is absent, null, empty or false.

        Raises SourceChanged for what is neither text nor a number."""
        if path.root is Root.HEADER:
            text = self.headers.get(str(path.steps[0]).lower(), "")
            return None if text.lower() in ("", "false") else text
        found = self._at(path)
        try:
            return None if found == b"false" else scalar(found) or None
        except TypeError:
            raise SourceChanged(f"`{path}` is an object or a list; a token is text or a number") from None
        except (Undecodable, UnicodeDecodeError) as exc:
            raise SourceChanged(f"`{path}` cannot be read: {exc}") from exc

    def find_json(self, path: JsonPath) -> tuple[str | None, bool]:
        """As `find`; what is no text comes as the JSON that it is, and true with it."""
        found = None if path.root is Root.HEADER else self._at(path)
        if found is None or found[:1] == b'"' or found in _NOTHING:
            return self.find(path), False
        return (None, False) if found in _EMPTY else (found.decode(), True)

    def find_object(self, path: JsonPath) -> Mapping[str, str]:
        """What the object at the path holds, as texts; nothing where it is absent, null or false.

        Raises SourceChanged for what is no flat object."""
        found = self._at(path)
        if found is None or found in _NOTHING:
            return {}
        try:
            members = Answer(found).members()
            texts = {name: scalar(value) for name, value in members.items()}
        except TypeError:
            raise SourceChanged(f"`{path}` is no object of texts and numbers: {found[:80]!r}") from None
        except (Undecodable, UnicodeDecodeError) as exc:
            raise SourceChanged(f"`{path}` cannot be read: {exc}") from exc
        return {name: text for name, text in texts.items() if text is not None}

    def flag(self, path: JsonPath) -> bool | None:
        """What the answer says at the path; None: nothing."""
        if path.root is Root.HEADER:
            text = self.headers.get(str(path.steps[0]).lower())
        else:
            text = None if self._at(path) in (None, b"null") else self.find(path) or "false"
        return None if text is None else text.strip().lower() not in ("", "0", "false")

    def count(self, path: JsonPath) -> int | None:
        """The number at the path; None: nothing there. Raises SourceChanged for what is no whole number."""
        if (text := self.find(path)) is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise SourceChanged(f"{path} is {text[:40]!r}, no count") from None

    def _at(self, path: JsonPath) -> bytes | None:
        try:
            if path.root is not Root.LAST:
                found = self.body.first(path.steps)
            else:
                found = Answer(self.records[-1]).first(path.steps) if self.records else None
        except Undecodable as exc:
            raise SourceChanged(f"`{path}` cannot be read: {exc}") from exc
        return None if found is None else bytes(found)
