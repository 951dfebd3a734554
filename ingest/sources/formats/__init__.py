"""From the body of an answer, whatever its format, to JSON: packed or not, in any encoding, JSON, JSON Lines, CSV, XML.

What a body is shows in its bytes; Content-Type is a hint. Whatever it is, never is more of it unpacked than is allowed.
"""

import re
from collections.abc import Sequence

from ingest.config.model import Stream
from ingest.paths import Root
from ingest.sources.answers import Answer, Undecodable
from ingest.sources.formats import elements, lines, table
from ingest.sources.formats.charset import in_utf8
from ingest.sources.formats.joined import joined
from ingest.sources.formats.packing import unpacked
from ingest.sources.gunzip import TooLarge

__all__ = ["ACCEPT", "Formats", "TooLarge"]

ACCEPT = {
    "jsonl": "application/x-ndjson, application/jsonl, application/json;q=0.9, */*;q=0.1",
    "csv": "text/csv, */*;q=0.1",
    "xml": "application/xml, text/xml, */*;q=0.1",
}
"""What is asked for instead of JSON, unless the stream has a header of its own."""

_LINES = re.compile(r"application/(x-)?(ndjson|jsonl|jsonlines|json-lines|stream\+json|json-seq)")
_TABLE = re.compile(r"(text|application)/(x-)?(csv|comma-separated-values|tab-separated-values|tsv)")
_HTML = re.compile(rb"(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
_JSON = re.compile(r"application/(json|[a-z0-9.+-]+\+json)|text/json")
_SAYS_UTF8 = re.compile(r"""charset\s*=\s*["']?utf-?8""", re.IGNORECASE)
_BEFORE = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"  # byte order marks, halves of wider characters, white space
LOOKED_AT = 2000  # bytes at the beginning of a body
GROWTH = 8  # times its size that a table may have as JSON: names are repeated in every row


class Formats:
    """How the answers of one stream are read."""

    def __init__(self, stream: Stream) -> None:
        self._format = stream.format
        explode = next((step.explode.steps for step in stream.transform if step.explode is not None), ())
        self._columns = _columns(stream)
        self._always = elements.lists(stream.records.path.steps, explode)

    def unpacked(self, body: bytes, limit: int) -> Sequence[bytes]:
        """The files in it: itself, unless it is packed. Raises TooLarge, Undecodable and SourceChanged."""
        return unpacked(body, limit)

    def answer(self, files: Sequence[bytes], content_type: str, limit: int) -> Answer:
        """What they hold together. Raises Undecodable, SourceChanged, and TooLarge for what is too large as JSON."""
        return joined([self._one(file, content_type, limit * GROWTH) for file in files])

    def _one(self, file: bytes, content_type: str, limit: int) -> Answer:
        if not file.strip():
            raise Undecodable("it is empty")
        media = content_type.partition(";")[0].strip().lower()
        kind = self._kind(file, media)
        text = in_utf8(file, content_type, utf8_first=kind in ("json", "jsonl"))
        if _HTML.match(text[:LOOKED_AT].lstrip()):
            raise Undecodable(
                "an HTML page where data should be: a login, an error, maintenance"
            )
        if kind == "csv":
            return table.answer(text, limit, self._columns)
        if kind == "xml":
            known = text is not file or _SAYS_UTF8.search(content_type)
            return elements.answer(text, "utf-8" if known else None, self._always)
        return lines.answer(text) if kind == "jsonl" else self._json(text)

    def _kind(self, file: bytes, media: str) -> str:
        """What the bytes begin with decides, then the configuration, then the header."""
        begins = file[:LOOKED_AT].lstrip(_BEFORE)[:1]
        looks_like_json = begins in (b"{", b"[")
        if self._format != "auto":  # an error may be JSON where the data is not
            return "json" if looks_like_json and _JSON.fullmatch(media) else self._format
        if begins == b"<":
            return "xml"
        if looks_like_json:
            return "jsonl" if _LINES.fullmatch(media) else "json"
        return "csv" if _TABLE.fullmatch(media) else "json"

    def _json(self, text: bytes) -> Answer:
        try:
            return Answer(text)
        except Undecodable:
            first, end, rest = text.lstrip().partition(b"\n")
            if self._format == "auto" and end and rest.strip() and lines.is_value(first):
                return lines.answer(text)
            if table.may_be(text):
                raise Undecodable("no JSON; where it is CSV, write `format: csv`") from None
            raise


def _columns(stream: Stream) -> Sequence[str]:
    """What the rows of a table cannot do without."""
    if any(step.explode is not None for step in stream.transform):
        return ()
    names = [path.steps[0] for path in stream.id if path.root is Root.BODY and path.steps]
    return [name for name in names if isinstance(name, str) and name not in stream.records.keep]
