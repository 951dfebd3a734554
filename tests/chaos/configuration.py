"""The file that the processes of the chaos tests read: one stream of one source, and its consumer."""

from collections.abc import Sequence
from pathlib import Path

STREAM = "events"
CONSUMER = "warehouse"
ALONE = "replication: 1, min_insync: 1, durability: relaxed"
"""Of topics on a single broker, or in a SQLite file."""

FILE = """
version: 1
topics: {{partitions: {partitions}, {safety}}}
sources:
  {source}:
    base_url: {url}{source_keys}
    streams:
      {stream}:
        path: /events
        records: $.data
        id: id
        version: updated_at
        key: account{stream_keys}
        paginate: {{type: next_url, from: $.next}}
        incremental: {{type: timestamp, field: updated_at, since: {{param: since}}, order: asc}}
consumers:
  {consumer}:
    kind: store
    topics: ["{source}.{stream}"]
    batch: {{records: {batch}, wait: 200ms}}
"""


def write(
    folder: Path,
    source: str,
    url: str,
    *,
    partitions: int,
    batch: int,
    safety: str = ALONE,
    source_keys: Sequence[str] = (),
    stream_keys: Sequence[str] = (),
) -> None:
    """`source_keys` and `stream_keys`: lines `key: value` besides those that are always there."""
    text = FILE.format(
        partitions=partitions,
        safety=safety,
        source=source,
        url=url,
        stream=STREAM,
        consumer=CONSUMER,
        batch=batch,
        source_keys="".join(f"\n    {line}" for line in source_keys),
        stream_keys="".join(f"\n        {line}" for line in stream_keys),
    )
    (folder / "ingest.yaml").write_text(text)
