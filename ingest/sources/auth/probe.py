"""Whether we are let in: asked before a listing and at its end, of APIs that answer 200 with less to the unknown."""

from ingest.config.model import Probe as Config
from ingest.config.model import Source, Stream
from ingest.config.records import Records
from ingest.errors import SourceRefused
from ingest.paths import parse
from ingest.redaction import Redactor
from ingest.sources import Watch
from ingest.sources.auth import Credentials
from ingest.sources.auth.errands import UNAUTHORIZED
from ingest.sources.exchange import Response
from ingest.sources.request import Request
from ingest.sources.template import Template
from ingest.sources.transport import Limits, Transport

NOT_LET_IN = (401, 403)


class Probe:
    """With the credentials of one stream, as it shows them."""

    def __init__(
        self, config: Config, source: Source, credentials: Credentials, transport: Transport, redactor: Redactor
    ) -> None:
        as_stream = Stream.model_construct(records=Records(path=parse("$")), path=config.path, method=config.method)
        self._request = Template(source, as_stream, redactor.scrub).request()
        self._credentials, self._transport = credentials, transport

    async def enter(self, limits: Limits, watch: Watch) -> None:
        """Raises SourceRefused when we are not let in, nor with fresher credentials."""
        if not await self.still_in(limits, watch) and not await self.still_in(limits, watch):
            raise SourceRefused(f"{self._shown}: refused, and again with fresh credentials", UNAUTHORIZED)

    async def still_in(self, limits: Limits, watch: Watch) -> bool:
        """Whether what we show lets us in. False: it does not, and there is something fresher now. What was read since
        it was last true may be less than there is.

        Raises SourceRefused where there is nothing fresher; and as `Transport.send` does."""
        shown = _Shown(self._credentials)
        try:
            await self._transport.send(self._request, shown, limits, watch, self._in_place)
        except SourceRefused as exc:
            if exc.status in NOT_LET_IN and shown.sent is not None and await self._credentials.renew(shown.sent):
                return False
            raise SourceRefused(f"{self._shown}: {exc}", UNAUTHORIZED) from exc
        return True

    @property
    def _shown(self) -> str:
        return "`auth.probe` does not find us let in"

    def _in_place(self, response: Response) -> None:
        """A page that asks for a log-in is no answer, though it comes with 200."""
        if response.request.url != self._request.url:
            where = self._transport.shown(response.request)
            raise SourceRefused(f"{self._transport.shown(self._request)} sends us on to {where}", UNAUTHORIZED)


class _Shown:
    """Credentials that are not renewed at a 401: that would hide that they were no good."""

    def __init__(self, inner: Credentials) -> None:
        self._inner = inner
        self.sent: Request | None = None

    async def prepare(self, request: Request) -> Request:
        self.sent = await self._inner.prepare(request)
        return self.sent

    async def renew(self, sent: Request) -> bool:
        return False

    def strip(self, url: str) -> str:
        return self._inner.strip(url)
