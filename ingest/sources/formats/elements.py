"""XML as JSON.

    <a x="1"><b>t</b><b/>text</a>  →  {"a":{"@x":"1","b":["t",null],"#text":"text"}}

An element is an object of its attributes (`@name`), its elements by name, and its text (`#text`). One that has nothing
but text is that text, an empty one is null. Several elements of one name are a list; so is one alone, or none, where a
path takes it for one (`always`). All values are texts. Names are as they are written, prefixes included.

A document type declaration is refused, and with it every entity that is not one of XML's own five: nothing is fetched,
nothing grows.
"""

from collections.abc import Collection, Sequence
from xml.parsers import expat

import msgspec

from ingest.errors import SourceChanged
from ingest.paths import Every, Step
from ingest.sources.answers import Answer, Undecodable

MAX_DEPTH = 200

Names = tuple[str, ...]
"""Of the elements on the way to one, itself included."""


class _Element:
    """One that is not closed yet."""

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self.inside: dict[str, list[bytes]] = {}  # name → JSON of each element
        self.text: list[str] = []


class _Builder:
    """What is closed is JSON already: of the elements there are as many as the document is deep."""

    def __init__(self, always: Collection[Names]) -> None:
        self._always = always
        self._names: Names = ()
        self._open = [_Element({})]

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._names) == MAX_DEPTH:
            raise SourceChanged(f"XML that is nested more than {MAX_DEPTH} levels deep")
        self._names += (name,)
        self._open.append(_Element(attributes))

    def data(self, text: str) -> None:
        self._open[-1].text.append(text)

    def end(self, name: str) -> None:
        value = self.json(self._open.pop())
        self._names = self._names[:-1]
        self._open[-1].inside.setdefault(name, []).append(value)

    def json(self, element: _Element) -> bytes:
        """Of the innermost element, or of the document."""
        for names in self._always:
            if names[:-1] == self._names:
                element.inside.setdefault(names[-1], [])
        text = "".join(element.text)
        members = [b"%b:%b" % (_quoted(f"@{name}"), _quoted(value)) for name, value in element.attributes.items()]
        members += [
            b"%b:%b" % (_quoted(name), self._one_or_all(name, values)) for name, values in element.inside.items()
        ]
        if not members:
            return _quoted(text) if text.strip() else b"null"
        if text.strip():
            members.append(b'"#text":' + _quoted(text))
        return b"{%b}" % b",".join(members)

    def _one_or_all(self, name: str, values: Sequence[bytes]) -> bytes:
        if len(values) == 1 and (*self._names, name) not in self._always:
            return values[0]
        return b"[%b]" % b",".join(values)

    @property
    def document(self) -> bytes:
        return self.json(self._open[0])


def answer(text: bytes, encoding: str | None, always: Collection[Names]) -> Answer:
    """`encoding`: where it is known better than the document does. `always`: elements that are lists. Raises
    Undecodable for what is no XML, SourceChanged for what is none that is read."""
    builder = _Builder(always)
    parser = expat.ParserCreate(encoding)
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = _refuse
    try:
        parser.Parse(text, True)
    except expat.ExpatError as exc:
        raise Undecodable(f"no XML: {exc}") from exc
    return Answer(builder.document)


def lists(*paths: Sequence[Step]) -> frozenset[Names]:
    """The elements that paths take for lists: their last names, and those before `[…]`. Each goes on where the one
    before it ends."""
    found: set[Names] = set()
    names: Names = ()
    for path in paths:
        for step, following in zip(path, (*path[1:], Every.ITEM), strict=False):
            if isinstance(step, str):
                names += (step,)
                if not isinstance(following, str):
                    found.add(names)
            elif step is Every.VALUE:
                return frozenset(found)  # names that nobody knows
    return frozenset(found)


def _quoted(text: str) -> bytes:
    return msgspec.json.encode(text)


def _refuse(*_: object) -> None:
    raise SourceChanged("XML with a document type declaration (<!DOCTYPE …>) is not read: it may define entities")
