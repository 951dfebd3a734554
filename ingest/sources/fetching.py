"""One page of an API, asked for and read as its stream says: which format, where the records are.

An answer without the configured list is an error that names the lists it does have.
"""

from collections.abc import Awaitable
from typing import NamedTuple

from ingest.config.model import Source, Stream
from ingest.errors import SourceChanged, Unlisted
from ingest.paths import Every
from ingest.redaction import Redactor
from ingest.sources import Watch
from ingest.sources.answers import Answer
from ingest.sources.auth import Credentials
from ingest.sources.conditional import NOT_MODIFIED
from ingest.sources.exchange import Response
from ingest.sources.formats import Formats, TooLarge
from ingest.sources.pagination import Received
from ingest.sources.request import Request
from ingest.sources.rules import Rules, Told
from ingest.sources.shelf import Reader
from ingest.sources.transport import SHOWN, Limits, Transport
from ingest.telltale import masked


class Fetched(NamedTuple):
    received: Received | None  # None: the API says that there is nothing
    asked: int  # microseconds since 1970
    answered: int
    skew: float  # seconds by which the API's clock is ahead of ours, as far as it matters
    unchanged: bool = False  # the API says that its answer is the one before

    @property
    def size(self) -> int:
        """Bytes."""
        return 0 if self.received is None else len(self.received.body.body)


class Fetching:
    """The pages of one stream. `others`: who list it too."""

    def __init__(
        self,
        source: Source,
        stream: Stream,
        transport: Transport,
        credentials: Credentials,
        limits: Limits,
        redactor: Redactor,
        others: Reader[Fetched] | None,
    ) -> None:
        self._stream, self._transport, self._credentials = stream, transport, credentials
        self._redactor, self._others = redactor, others
        self._formats = Formats(stream)
        errors = source.errors if stream.errors is None else stream.errors
        self._limits = limits._replace(rules=Rules(errors, self._read))

    def begin(self) -> None:
        """A listing begins."""
        if self._others is not None:
            self._others.begin()

    async def page(self, request: Request, watch: Watch, *, first: bool) -> Fetched:
        """One page; nothing where the API says so: 204, 205, or an empty answer to the `first` request.

        Raises what `Transport.send` does."""

        def read(response: Response) -> Fetched:
            skew = response.skew
            times = int((response.asked_at + skew) * 1e6), int((response.answered_at + skew) * 1e6), skew
            if response.status == NOT_MODIFIED:
                return Fetched(None, *times, unchanged=True)
            answer = None if response.status in (204, 205) else self._answer(response, first=first)
            if answer is None:
                return Fetched(None, *times)
            config = self._stream.records
            records = answer.records(config.path.steps, may_be_absent=config.absent == "empty")
            if records is None:
                raise self._no_records(response, answer)
            return Fetched(Received(response.request.url, response.headers, answer, records), *times)

        def ask() -> Awaitable[Fetched]:
            return self._transport.send(request, self._credentials, self._limits, watch, read)

        return await (ask() if self._others is None else self._others.get(request.mark(), ask))

    def _answer(self, response: Response, *, first: bool) -> Answer | None:
        """What it says. None: nothing, in answer to the first request."""
        limit = self._limits.max_body
        try:
            files = self._formats.unpacked(response.body, limit)
            if first and len(files) == 1 and not files[0].strip():
                return None
            return self._formats.answer(files, response.headers.get("content-type", ""), limit)
        except TooLarge:
            asked = self._transport.shown(response.request)
            raise SourceChanged(
                f"{asked}: the body is over limits.max_body ({limit} bytes) when it is unpacked; ask for smaller pages,"
                " or raise it"
            ) from None
        except SourceChanged as exc:
            raise type(exc)(f"{self._transport.shown(response.request)} answered {response.status}: {exc}") from exc

    def _read(self, told: Told) -> Answer:
        limit = self._limits.max_body
        return self._formats.answer(
            self._formats.unpacked(told.body, limit), told.headers.get("content-type", ""), limit
        )

    def _no_records(self, response: Response, answer: Answer) -> Unlisted:
        lists = ", ".join(f"{path} ({count})" for path, count in answer.lists()[:5]) or "none"
        begins = masked(self._redactor.scrub(answer.body[: 10 * SHOWN].decode("utf-8", "replace")))[:SHOWN]
        one_line = self._stream.format == "auto" and not self._stream.records.path.steps and answer.body[:1] == b"{"
        hint = "; if that is one record of JSON Lines, write `format: jsonl`" if one_line else ""
        if any(isinstance(step, Every) for step in self._stream.records.path.steps[:-1]):
            hint += "; where some may leave the list out, write `records: {path: …, absent: empty}`"
        return Unlisted(
            f"{self._transport.shown(response.request)} answered {response.status} without a list at"
            f" `records: {self._stream.records.path}`; lists found: {lists}; the answer begins {begins!r}{hint}"
        )
