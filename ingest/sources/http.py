"""Pages of an HTTP API, one after another, from where the cursor stands to where the API says that it ends.

What comes next is decided by `listing.py`; here requests are made. An answer without the configured list names the lists
that it does have.
"""

import time
from collections.abc import AsyncGenerator

from ingest.config.model import Source, Stream
from ingest.errors import SourceChanged, SourceRefused
from ingest.redaction import Redactor
from ingest.sources import Page, Watch
from ingest.sources.answers import Answer
from ingest.sources.auth import credentials
from ingest.sources.listing import Lister, LoopGuard, texts
from ingest.sources.pagination import Received
from ingest.sources.transport import Limits, Response, Transport

TOKEN_REFUSED = (400, 404, 410, 422)  # what APIs answer to a page token that has expired


class HttpSource:
    """One stream of one source, references resolved. `where`: file:line:column of the stream, for messages."""

    def __init__(self, source: Source, stream: Stream, transport: Transport, redactor: Redactor, where: str) -> None:
        self._stream, self._transport, self._where = stream, transport, where
        self._headers = {name.lower(): value for name, value in {**source.headers, **stream.headers}.items()}
        params = texts({**source.params, **stream.params})
        secret = {n: v for n, v in params.items() if isinstance(v, str) and redactor.scrub(v) != v}
        plain = {name: value for name, value in params.items() if name not in secret}
        url = source.base_url.rstrip("/") + "/" + stream.path.lstrip("/")
        self._credentials = credentials(stream.auth or source.auth, secret)
        self._lister = Lister(source, stream, url, plain, self._credentials)
        self._limits = Limits(stream.timeout or source.timeout, stream.retry or source.retry, source.limits.max_body)

    async def pages(self, cursor: bytes | None, watch: Watch) -> AsyncGenerator[Page, None]:
        state = self._lister.start(cursor, _now())
        guard = LoopGuard(has_ids=bool(self._stream.id))
        while True:
            try:
                url = self._lister.request(state.listing)
                guard.request(url)
                received = await self._fetch(url, watch, first=state.listing.n == 0)
                page, state = self._lister.take(received, state, _now())
                guard.page(page)
            except SourceRefused as exc:
                restarted = self._lister.restart(state, _now()) if exc.status in TOKEN_REFUSED else None
                if restarted is None:
                    raise
                state, guard = restarted, LoopGuard(has_ids=bool(self._stream.id))
                watch.restarted(str(exc))
                continue
            except SourceChanged as exc:
                raise SourceChanged(f"{self._where}: {exc}") from exc
            yield page
            if page.stop is not None:
                return

    async def _fetch(self, url: str, watch: Watch, *, first: bool) -> Received | None:
        """None: the API says that there is nothing (204, 205, or an empty answer to the first request)."""

        def read(response: Response) -> Received | None:
            if response.status in (204, 205) or (first and not response.body):
                return None
            answer = Answer(response.body)
            records = answer.records(self._stream.records.steps)
            if records is None:
                raise self._no_records(response, answer)
            return Received(response.url, response.headers, answer, records)

        return await self._transport.get(url, self._headers, self._credentials, self._limits, watch, read)

    def _no_records(self, response: Response, answer: Answer) -> SourceChanged:
        lists = ", ".join(f"{path} ({count})" for path, count in answer.lists()[:5]) or "none"
        shown = self._transport.shown
        return SourceChanged(
            f"GET {shown(response.url)} answered {response.status} without a list at `records: {self._stream.records}`;"
            f" lists found: {lists}; the answer begins {shown(answer.body[:200].decode('utf-8', 'replace'))!r}"
        )


def _now() -> int:
    return time.time_ns() // 1000

