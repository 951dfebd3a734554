"""Notices when most records of a listing come as new versions, and names the fields that changed.

That is as it should be where most things change; where a field tells nothing about the record, such as when it was
fetched, every run publishes everything again. A sample of the listing before is remembered to tell which field it was.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import msgspec

from ingest.sources import Notice, SourceRecord

ENOUGH = 10  # records listed again, for most of them to mean something
SAMPLE = 20  # records
SAMPLE_BYTES = 262_144  # of all of them
NAMED = 5  # fields

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Changes:
    """Of one stream that lists everything in every run; lives as long as the process polls it."""

    def __init__(self) -> None:
        self._before: dict[str, bytes] = {}  # id → value, in the listing before
        self._sample: dict[str, bytes] = {}
        self._room = SAMPLE_BYTES
        self._again = self._changed = 0
        self._fields: Counter[str] = Counter()

    def page(self, records: Sequence[SourceRecord], known: Collection[str], fresh: Sequence[SourceRecord]) -> None:
        """`known`: ids that were published before; `fresh`: what comes as a new version, or for the first time."""
        self._again += len(known)
        self._changed += len({record.id for record in fresh if record.id in known}) if known else 0
        for record in fresh if known else ():
            if record.id in known and (before := self._before.get(record.id)) is not None:
                with suppress(msgspec.DecodeError):  # half a surrogate pair
                    self._fields.update(changed_fields(before, record.value))
        for record in records:
            if len(self._sample) == SAMPLE or len(record.value) > self._room:
                break
            self._sample[record.id] = record.value
            self._room -= len(record.value)

    def end(self) -> Notice | None:
        """The listing is complete."""
        again, changed, fields = self._again, self._changed, self._fields
        before, self._before = self._before, self._sample
        self._sample, self._room, self._again, self._changed, self._fields = {}, SAMPLE_BYTES, 0, 0, Counter()
        if again < ENOUGH or changed * 2 <= again:
            return None
        what = f"{changed} of {again} records that were listed before come as new versions"
        names = [name for name, _ in fields.most_common(NAMED)]
        if not names:
            return Notice("new_versions", f"{what}; a process that lists them again can name the fields that change")
        return Notice(
            "new_versions",
            f"{what}; in a sample of {len(before)} changed: {', '.join(names)}. What does not matter is left out by"
            f" `version: {{except: [{', '.join(names)}]}}`",
        )


def changed_fields(before: bytes, now: bytes, path: str = "") -> Iterator[str]:
    """Paths to what differs: into objects, and no further than lists."""
    was, became = (_MEMBERS.decode(text) for text in (before, now))
    for name in sorted(was.keys() | became.keys()):
        one, other = bytes(was.get(name, b"")), bytes(became.get(name, b""))
        if one == other:
            continue
        here = f"{path}.{name}".lstrip(".") if name.replace("_", "").replace("-", "").isalnum() else f'{path}["{name}"]'
        if one[:1] == other[:1] == b"{":
            yield from changed_fields(one, other, here)
        else:
            yield here
