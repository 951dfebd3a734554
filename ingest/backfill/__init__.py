"""Reads a range of a stream again, or for the first time, beside whoever polls the stream.

    range ──plan──▶ slices ──enqueue──▶ jobs ──handler──▶ poll → publish → save the slice's own cursor

Each slice is a job of its own, with a cursor and a lease of its own, so any number of workers share them and a crash
repeats one page of one slice. The stream's own cursor, and what was `seen` under it, are never touched; the events are
the stream's, so what was published before is the same event once more, which a store ignores.
"""

from typing import NamedTuple

import msgspec

from checkpoints.jobs import NewJob
from ingest.sources.incremental import Stretch
from ingest.sources.times import DAY, parse_rfc3339, rfc3339

KIND = QUEUE = "backfill"
AT_ONCE = 4  # of the queue, unless the configuration says otherwise
PRIORITY = 10  # behind what keeps streams up to date, which has 0
ATTEMPTS = 10  # an outage of an hour or so is borne


class Slice(NamedTuple):
    """A part of a stream: from one position to before another. `micros`: they are instants."""

    stretch: Stretch
    micros: bool

    @property
    def name(self) -> str:
        """`2024-01-01..2024-02-01`, or `1..5000`: what its cursor and its lease are called behind the stream's name."""
        return "..".join(short(position, self.micros) for position in self.stretch)


class Payload(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """A slice as the job has it. Times are RFC 3339 in UTC."""

    stream: str
    start: str | int
    end: str | int

    @property
    def slice(self) -> Slice:
        if isinstance(self.start, int) or isinstance(self.end, int):
            return Slice(Stretch(int(self.start), int(self.end)), micros=False)
        return Slice(Stretch(parse_rfc3339(self.start, None), parse_rfc3339(self.end, None)), micros=True)


def job(source: str, stream: str, slice: Slice, queue: str, done_for: float) -> NewJob:
    """`done_for`: seconds for which a slice that was read is not read again."""
    start, end = (rfc3339(one) if slice.micros else one for one in slice.stretch)
    return NewJob(
        KIND,
        source,
        msgspec.json.encode(Payload(stream, start, end)),
        queue,
        PRIORITY,
        max_attempts=ATTEMPTS,
        dedupe_key=f"{KIND}:{source}/{stream}@{slice.name}",
        dedupe_for=done_for,
    )


def short(position: int, micros: bool) -> str:
    """A bare date where it is midnight UTC."""
    if not micros:
        return str(position)
    text = rfc3339(position)
    return text[:10] if position % DAY == 0 else text
