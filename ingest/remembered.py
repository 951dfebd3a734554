"""What was published last for each id, as far as it is remembered: what has not changed is not published again.

A run that nobody remembers anything from before knows by itself what it saved, while that is not much; else the
database is asked, page by page.
"""

from collections.abc import Mapping, Sequence

from checkpoints import Checkpoints, Save, Seen, StreamId, noted
from ingest.patience import Patience
from ingest.sources import Page, SourceRecord

IN_MEMORY = 10_000  # ids that a run remembers by itself


class Remembered:
    """Of one run of a stream. `asks`: the database remembers ids that this run did not publish."""

    def __init__(self, stream: StreamId, checkpoints: Checkpoints, patience: Patience, *, asks: bool) -> None:
        self._stream, self._checkpoints, self._patience = stream, checkpoints, patience
        self.asks = asks
        self._published: dict[str, Seen] = {}  # all that is remembered, where nobody is asked

    def __len__(self) -> int:
        """How many ids, as far as that is known here."""
        return len(self._published) or int(self.asks)

    async def versions(self, ids: Sequence[str]) -> dict[str, str]:
        """The version published last, as `noted` writes it, for those of the ids that are remembered."""
        if self.asks and ids:
            look_up = self._checkpoints.seen
            found = await self._patience.persist("look up what was seen", lambda: look_up(self._stream, ids))
            return dict(found)
        published = self._published
        return {id: noted(published[id].version, published[id].dead) for id in ids if id in published}

    async def keys(self, ids: Sequence[str]) -> Mapping[str, str]:
        """The keys of those that are remembered with one that is not the id."""
        if not ids:
            return {}
        look_up = self._checkpoints.keys
        return await self._patience.persist("look up keys", lambda: look_up(self._stream, ids))

    def saved(self, save: Save) -> None:
        if self.asks:
            return
        self._published.update({one.id: one for one in save.seen})
        if (below := save.forget_below) is not None and not save.partition:
            self._published = {
                one.id: one for one in self._published.values() if one.position is None or one.position >= below
            }
        if len(self._published) > IN_MEMORY:
            self._published.clear()
            self.asks = True


def changed(records: Sequence[SourceRecord], known: dict[str, str]) -> list[SourceRecord]:
    """Those that are not what `known` says of their id, and then says."""
    fresh = []
    for record in records:
        version = noted(record.version, True) if record.deleted else record.version or ""
        if known.get(record.id) != version:
            known[record.id] = version
            fresh.append(record)
    return fresh


def to_remember(page: Page, published: Sequence[SourceRecord]) -> list[Seen]:
    """What is remembered of a page of which these were published."""
    lowest = page.remember_from
    return [
        Seen(
            record.id,
            record.version or "",
            record.position,
            None if record.key == record.id else record.key,
            record.deleted,
        )
        for record in published
        if page.remember_all or (record.position is not None and (lowest is None or record.position >= lowest))
    ]
