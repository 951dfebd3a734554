"""Records that say themselves that they are gone: `deletes.soft`."""

from collections.abc import Sequence

from msgspec.structs import replace

from ingest.errors import BadRecord
from ingest.sources import SourceRecord
from ingest.sources.expression import predicate
from ingest.sources.identity import version_hash


class Soft:
    def __init__(self, expression: str) -> None:
        self._gone = predicate(expression, "deletes.soft", "validate")

    def marked(self, record: SourceRecord, *sources: bytes) -> SourceRecord | BadRecord:
        """As a delete, where one of the sources says so: the record as the API sent it, and what it is a part of."""
        try:
            if not any(map(self._gone, sources)):
                return record
        except BadRecord as exc:
            return exc
        return replace(record, deleted=True, version=record.version or version_hash(record.value))

    def all_marked(self, records: Sequence[SourceRecord], sources: Sequence[bytes]) -> list[SourceRecord] | None:
        """None: of one it cannot be said."""
        found = list(map(self.marked, records, sources))
        return None if any(isinstance(one, BadRecord) for one in found) else found  # type: ignore[return-value]
