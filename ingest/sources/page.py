"""From the records of an answer to what is published: kept members → `decode` → `transform` → `schema` → identity.

A record that cannot go on is refused with the bytes that came; its neighbours go on.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat, zip_longest
from typing import NamedTuple

from ingest.config.model import Stream
from ingest.errors import BadRecord
from ingest.sources import Refused, SourceRecord
from ingest.sources.answers import Place
from ingest.sources.around import NO_HEADERS, Headers, Keeper
from ingest.sources.conformance import Conformance
from ingest.sources.decoding import Decoder
from ingest.sources.parent import NO_PARENT, Parent
from ingest.sources.records import RecordReader
from ingest.sources.soft import Soft
from ingest.sources.transform import NOWHERE, Made, Transform


class Read(NamedTuple):
    """What a page holds."""

    records: Sequence[SourceRecord]
    refused: Sequence[Refused]
    skipped: int  # records that the configuration leaves out
    listed: Sequence[SourceRecord]  # all that the API listed, also what a filter leaves out: for paging and cursors
    changed: int = 0  # records that `decode` mended
    warnings: Sequence[str] = ()  # what `schema` says of records that are published nevertheless
    unknown: int = 0  # whose id nobody could read


NOTHING = Read([], [], 0, [])


class PageReader:
    """Made once per stream; holds no state of a listing. `as_sent`: the records are not published, and `transform` only
    says which there are."""

    def __init__(self, stream: Stream, *, as_sent: bool = False) -> None:
        self._as_sent = as_sent
        self._decoder = Decoder(stream.decode)
        self._keeper = Keeper(stream.records.keep) if stream.records.keep else None
        self._transform = Transform(stream.transform) if stream.transform else None
        self._conformance = Conformance(stream.schema_) if stream.schema_ is not None else None
        self._soft = Soft(stream.deletes.soft) if stream.deletes and stream.deletes.soft else None
        self._reader = RecordReader(stream)

    @property
    def looks_around(self) -> bool:
        """Whether the places of the records are wanted."""
        return self._keeper is not None or self._reader.looks_around

    def read(
        self,
        records: Sequence[bytes],
        *,
        clean: bool,
        places: Sequence[Place] = (),
        headers: Headers = NO_HEADERS,
        parent: Parent = NO_PARENT,
    ) -> Read:
        """`clean`: the answer is known to be strict JSON in UTF-8. `places` of the records and `headers` of the answer
        are wanted where the reader looks around. Raises SourceChanged where a policy says `fail`."""
        written = self._keeper.into(records, places, headers, parent.record) if self._keeper else records
        fit, at, wrong, changed = self._decoder.page(written, clean=clean)
        refused = [Refused(records[n], error) for n, error in wrong]
        came = records if fit is records else [records[n] for n in at]
        around = [places[n] for n in at] if self._reader.looks_around else ()
        if self._transform is not None or self._conformance is not None:
            warnings: list[str] = []
            return self._sorted(self._made(fit, at, around, came, warnings), refused, changed, warnings, parent.id)
        found = self._reader.columns(fit, around, parent=parent.id)
        if found is not None and self._soft is not None:
            found = self._soft.all_marked(found, fit)
        if found is not None:
            return Read(found, refused, 0, found, changed, unknown=len(refused))
        good: list[SourceRecord] = []
        left_out: list[SourceRecord | None] = []
        for record, place, original in zip_longest(fit, around, came):
            one = self._reader.read(record, place, parent=parent.id)
            if self._soft is not None and isinstance(one, SourceRecord):
                one = self._soft.marked(one, record)
            if isinstance(one, SourceRecord):
                good.append(one)
            elif one is not None:
                refused.append(Refused(original, one))
            else:
                left_out.append(self._reader.left_out(record, place, parent=parent.id))
        named = [other for other in left_out if other is not None]
        listed, unknown = [*good, *named] if named else good, len(refused) + len(left_out) - len(named)
        return Read(good, refused, len(records) - len(good) - len(refused), listed, changed, unknown=unknown)

    def _made(
        self,
        records: Sequence[bytes],
        at: Sequence[int],
        places: Sequence[Place],
        came: Sequence[bytes],
        warnings: list[str],
    ) -> Iterator[tuple[Made, bytes]]:
        """What becomes of each of them, and the bytes that a dead letter of it keeps."""
        for n, record, place, original in zip_longest(at, records, places, came):
            transform, around = self._transform, place or NOWHERE
            for made in transform.made(record, around) if transform else [Made(record, around, "", record)]:
                if self._conformance is not None and isinstance(made.value, bytes):
                    bad, warning = self._conformance.look(made.value, f"record {n + 1}{made.suffix} of a page")
                    made = made if bad is None else made._replace(value=bad)
                    warnings += [] if warning is None else [warning]
                yield made, made.source if made.suffix and made.source is not None else original

    def _sorted(
        self,
        made: Iterable[tuple[Made, bytes]],
        refused: list[Refused],
        changed: int,
        warnings: Sequence[str],
        parent: str,
    ) -> Read:
        good: list[SourceRecord] = []
        listed: list[SourceRecord] = []
        skipped, unknown = 0, len(refused)
        made = list(made)
        for (one, original), found in zip(made, self._found([one for one, _ in made], parent), strict=True):
            bad = one.value if isinstance(one.value, BadRecord) else found if isinstance(found, BadRecord) else None
            named = found
            if found is None and one.source is not None:
                named = self._reader.left_out(one.source, one.place, one.source, one.suffix, parent)
            if isinstance(named, SourceRecord):
                listed.append(named)
            else:
                unknown += one.unknown or one.source is not None
            if one.value is None or (found is None and bad is None):
                skipped += 1
            elif bad is not None:
                refused.append(Refused(original, bad))
            elif isinstance(found, SourceRecord):
                good.append(found)
        return Read(good, refused, skipped, listed, changed, warnings, unknown)

    def _found(self, made: Sequence[Made], parent: str) -> Iterable[SourceRecord | BadRecord | None]:
        """What identifies each of them; None also where nothing can."""
        rows = [(one, one.source) for one in made if one.source is not None]
        sources = [source for _, source in rows]
        published = [None if self._as_sent else one.value for one, _ in rows]
        values = [one if isinstance(one, bytes) else source for one, (_, source) in zip(published, rows, strict=True)]
        places, suffixes = [one.place for one, _ in rows], [one.suffix for one, _ in rows]
        at_once = self._reader.columns(sources, places, values, suffixes, parent)
        each = map(self._reader.read, sources, places, values, suffixes, repeat(parent))
        found = iter(each if at_once is None else at_once)
        if self._soft is not None:
            found = map(self._marked, found, sources, places, suffixes)
        return (None if one.source is None else next(found) for one in made)

    def _marked(
        self, record: SourceRecord | BadRecord | None, source: bytes, place: Place, suffix: str
    ) -> SourceRecord | BadRecord | None:
        if self._soft is None or not isinstance(record, SourceRecord):
            return record
        around = place.above[:1] if suffix else ()  # of a part, the record that it is of
        return self._soft.marked(record, source, *map(bytes, around))
