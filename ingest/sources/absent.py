"""Fields that a stream names and no record has: misspelt, most likely.

Nothing is lost by it, and nothing else would say it: the key is the id then, the version a hash, and the cursor does
not move.
"""

from collections.abc import Iterator, Sequence

from ingest.config.model import Stream
from ingest.paths import JsonPath, Root
from ingest.sources import Notice
from ingest.sources.answers import Answer, Undecodable, has

SAMPLE = 100  # records that are looked at
ENOUGH = 3  # fewer say nothing: some APIs leave out what is null


class Absent:
    def __init__(self, stream: Stream) -> None:
        self._named = {} if any(step.explode for step in stream.transform) else dict(_named(stream))

    def notice(self, records: Sequence[bytes]) -> Notice | None:
        """Of the first records of a stream, as the API sent them."""
        left = self._named
        sample = records[:SAMPLE] if len(records) >= ENOUGH else ()
        for record in sample:
            if not left:
                return None
            try:
                answer = Answer(record)
            except Undecodable:
                return None
            left = {key: path for key, path in left.items() if answer.first(path.steps) is None}
        if not sample or not left:
            return None
        names = ", ".join(f"`{path}` (`{key}`)" for key, path in left.items())
        return Notice("absent_field", f"no record of the first page has {names}{has(sample[0])}")


def _named(stream: Stream) -> Iterator[tuple[str, JsonPath]]:
    field = stream.incremental.field if stream.incremental is not None else None
    named = {
        "version": stream.version.path,
        "key": stream.key,
        "occurred_at": stream.occurred_at,
        "incremental.field": field,
    }
    for key, path in named.items():
        if isinstance(path, JsonPath) and path.root is Root.BODY and not _is_kept(path, stream):
            yield key, path


def _is_kept(path: JsonPath, stream: Stream) -> bool:
    """It leads to what is written into the records only here."""
    return bool(path.steps) and path.steps[0] in stream.records.keep
