"""What a listing does before its first request where an API makes reports: order one, and wait until it is done.

Where nothing comes of it (the API does not know the job or its file any more, or says that it failed) another one is
ordered, once in a run.
"""

import time

from msgspec.structs import replace

from ingest.errors import SourceRefused
from ingest.sources import Page, Watch
from ingest.sources.listing import Lister
from ingest.sources.opening import RESTARTED, State
from ingest.sources.parent import Parent
from ingest.sources.reports import Failed, Reports

GONE = (400, 403, 404, 410, 422)  # what APIs answer when they do not know a job any more, or its file


class Ordering:
    """The reports of one stream."""

    def __init__(self, lister: Lister, reports: Reports) -> None:
        self._lister, self._reports = lister, reports

    def is_due(self, state: State) -> bool:
        """There is no report yet that could be read."""
        return state.listing.n == 0 and state.report is None

    async def step(self, state: State, watch: Watch, parent: Parent) -> tuple[Page | None, State]:
        """A page that saves a job, or the end of one that holds nothing. None: the report can be read.

        Raises as `Reports` does."""
        job = state.listing.job
        values, puts = self._lister.asking.asked_for(state.listing, parent)
        if job is None:
            return self._lister.holding(state, await self._reports.create(values, puts, watch), _now())
        try:
            report = await self._reports.wait(job, values, watch)
        except Failed as exc:
            if not exc.final and not state.reordered:
                return self._anew(state, str(exc), watch)
            page, state = self._lister.holding(state, None, _now())
            return page, state._replace(failed=str(exc))
        if report.empty:
            now = _now()
            return self._lister.take(None, state, now, now, parent)
        return None, state._replace(listing=replace(state.listing, job=report.job), report=report, resumed=False)

    def another(self, state: State, refused: SourceRefused, watch: Watch) -> tuple[Page, State] | None:
        """What follows when a request about a job is refused. None: the refusal counts."""
        if state.listing.job is None or state.reordered or refused.status not in GONE:
            return None
        return self._anew(state, f"the API does not know the job any more: {refused}", watch)

    def unusable(self, state: State, why: str) -> tuple[Page, State]:
        """The report is there, and nobody can read it: this run fails, and the next one orders another."""
        page, state = self._lister.holding(state, None, _now())
        return page, state._replace(failed=f"{why}; the next run has another report made")

    def _anew(self, state: State, why: str, watch: Watch) -> tuple[Page, State]:
        watch.restarted(f"another report is ordered: {why}")
        doubt = RESTARTED if state.listing.n else None
        page, state = self._lister.holding(self._lister.opening.again(state, _now(), doubt=doubt), None, _now())
        return page, state._replace(reordered=True)


def _now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
