"""The cursor of a listing, as it is saved: without our secrets. Pure."""

from collections.abc import Callable

from msgspec.structs import replace

from ingest.sources.auth import Credentials, encoded
from ingest.sources.cursor import Cursor, Listing, Validators
from ingest.sources.incremental import Bounds, Progress
from ingest.sources.template import Template
from ingest.sources.times import stamp
from ingest.sources.whole import Past


class Saving:
    """The rules of one stream. `scrub` takes secrets out of a text; `shape`: the fingerprint of what shapes it;
    `mark_of`: as the function."""

    def __init__(
        self,
        bounds: Bounds | None,
        template: Template,
        credentials: Credentials,
        scrub: Callable[[str], str],
        shape: str,
        mark_of: str | None,
    ) -> None:
        self._bounds, self._template, self._credentials, self._scrub = bounds, template, credentials, scrub
        self.fingerprint, self._mark_of = shape, mark_of

    def cursor(
        self, progress: Progress, listing: Listing | None, past: Past, now: int, validators: Validators | None = None
    ) -> bytes:
        """`listing`: the one under way. Until it ends, a run that cannot go on in it starts where it did."""
        mark = progress.mark
        if listing is not None and self._mark_of is not None and not listing.aside:
            mark = listing.window[0]
        return Cursor(
            fingerprint=self.fingerprint,
            updated_at=stamp(now),
            high_water=self._bounds.show(progress.high_water) if self._bounds else None,
            mark=mark if self.fits(mark) else None,
            mark_of=None if mark is None else self._mark_of,
            listing=None if listing is None else self._fit_to_save(listing),
            rows=past.rows,
            swept=past.swept,
            validators=validators if listing is None and validators and self.fits(*validators.texts) else None,
        ).encode()

    def fits(self, *texts: str | None) -> bool:
        """Whether they may be saved: nothing that is may hold a secret of ours."""
        return all(text is None or self._scrub(text) == text for text in texts)

    def _fit_to_save(self, listing: Listing) -> Listing | None:
        """Without our secrets. None where one cannot be taken off: a crash then repeats the window."""
        page, ours = listing.page, self._credentials
        url = None if page.url is None else self._template.relative(ours.strip(page.url))
        params = {name: value for name, value in page.params.items() if ours.strip(f"?{encoded([(name, value)])}")}
        texts = [url, page.token, *page.keys, *params, *params.values(), *listing.window, listing.mark]
        job = listing.job
        if job is not None:
            job = replace(job, url=None if job.url is None else self._template.relative(ours.strip(job.url)))
            texts += [job.id, job.url, *job.values.values()]
        fit = self.fits(*texts)
        return replace(listing, page=replace(page, url=url, params=params), job=job) if fit else None
