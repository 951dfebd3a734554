"""A stream that is listed once for each record of another stream: {parent.FIELD} in its requests.

The parents are listed here once more, with a cursor of our own: the parent stream's does not stand for its children.
Each parent has a cursor too. A round that was cut off goes on with the parents that were not done, each on the page
where it was; `rounds.py` says when one is complete, `tour.py` lists the children of several parents side by side.
"""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from ingest.config.model import Stream
from ingest.sources import Notice, Page, Saved, Sweep, Watch, nothing_saved
from ingest.sources.cursor import Round
from ingest.sources.http import HttpSource
from ingest.sources.parent import Parents
from ingest.sources.rounds import Rounds, said
from ingest.sources.tour import Above, Tour


class ChildSource:
    """`own` makes the requests; `above` lists the parents, which `parents` reads. `side_by_side`: how many parents are
    listed at once."""

    def __init__(self, stream: Stream, own: HttpSource, above: Above, parents: Parents, *, side_by_side: int) -> None:
        assert stream.parent is not None
        self._config, self._own, self._above, self._parents = stream.parent, own, above, parents
        self._side_by_side = side_by_side
        which = "changed" if stream.parent.changed_only else "all"
        self.fingerprint = f"{own.fingerprint} {which} {above.fingerprint}"
        self._rounds = Rounds(stream, self.fingerprint)

    async def pages(
        self, cursor: bytes | None, watch: Watch, saved: Saved = nothing_saved
    ) -> AsyncGenerator[Page, None]:
        await self._own.begin(watch)
        following: Round | None
        place, following = self._rounds.start(cursor, _now())
        begun_again = False
        while following is not None:
            tour = Tour(
                self._config, self._own, self._above, self._parents, self._rounds, place, following, watch, saved
            )
            async with aclosing(tour.pages(self._side_by_side)) as pages:
                async for page in pages:
                    yield page
            round, settled = tour.end()
            if not await self._own.still_in(watch, begun_again):
                following, begun_again = self._rounds.again(place, round, _now()), True
                continue
            if (lacking := self._rounds.lacking(place, round)) is not None:
                yield self._last(self._rounds.abandoned(place, _now()).encode(), round, settled)
                raise self._own.changed(lacking)
            sweep = self._rounds.sweep(round, ends=True)
            if sweep is not None and not sweep.ends:
                watch.noticed(_doubted(round.doubt))
            place, following = self._rounds.finish(place, round, _now())
            stands = place.encode() if following is None else self._rounds.under_way(place, following, _now())
            yield self._last(stands, round, settled, stop=None if following else said(round), sweep=sweep)

    async def enter(self, watch: Watch) -> bool:
        """As `HttpSource.enter`."""
        return await self._own.enter(watch)

    def _last(
        self,
        cursor: bytes,
        round: Round,
        settled: Mapping[str, bytes | None],
        stop: str | None = None,
        sweep: Sweep | None = None,
    ) -> Page:
        return Page(
            records=(),
            refused=(),
            cursor=cursor,
            remember_from=None,
            remember_all=self._own.remembers_all,
            stop=stop,
            sweep=sweep,
            whole=round.whole,
            doubt=round.doubt,
            counted=round.counted,
            partitions=settled,
            partitions_limit=self._config.state_limit,
        )


def _doubted(why: str | None) -> Notice:
    return Notice("sweep_in_doubt", f"no delete is concluded from this sweep, and the next run sweeps: {why}")


def _now() -> int:
    return time.time_ns() // 1000
