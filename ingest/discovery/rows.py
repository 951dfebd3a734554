"""An answer that is no JSON as a whole, and yet rows: JSON Lines or CSV, whatever its Content-Type says."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import orjson

from ingest.config.model import Records, Stream
from ingest.errors import SourceChanged
from ingest.paths import parse
from ingest.sources.answers import Undecodable
from ingest.sources.formats import Formats, TooLarge

LIMIT = 64_000_000  # bytes
Format = Literal["jsonl", "csv"]
NAMES: Mapping[Format, str] = {"jsonl": "JSON Lines", "csv": "CSV"}


class Rows(NamedTuple):
    format: Format
    records: list[dict[str, Any]]


def rows(body: bytes) -> Rows | None:
    """None: it is neither. Prose with a comma in it is no table: two rows at least, of two fields at least."""
    for form in NAMES:
        stream = Stream.model_construct(path="", format=form, records=Records(path=parse("$")))
        try:
            answer = Formats(stream).answer([body], "", LIMIT)
            records = [orjson.loads(one) for one in answer.records(()) or ()]
        except (Undecodable, SourceChanged, TooLarge, orjson.JSONDecodeError):
            continue
        if len(records) > 1 and all(isinstance(one, dict) and len(one) > 1 for one in records):
            return Rows(form, records)
    return None
