"""Conditional requests (RFC 9110, 13): an API that has nothing new says so with 304, and sends nothing.

What tells a state of the answer (`ETag`, `Last-Modified`) is part of the cursor, so it is saved only when everything of
that answer is acknowledged. It is sent with the very same request alone, and only while what becomes of the answer's
records is configured as it was.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b

from msgspec.structs import replace

from ingest.config.model import Stream
from ingest.sources.cursor import Validators
from ingest.sources.request import Request

NOT_MODIFIED = 304


class Conditional:
    """The rules of one stream. `scrub` takes secrets out of a text."""

    def __init__(self, stream: Stream, scrub: Callable[[str], str]) -> None:
        shown = stream.model_copy(update={"every": 0.0, "retry": None, "timeout": None})
        self._shape = blake2b(scrub(repr(shown)).encode(), digest_size=8).digest()

    def asking(self, request: Request, known: Validators | None) -> Request:
        """The request, for an answer only where there is another than the one that is known."""
        if known is None or known.request != self._mark(request):
            return request
        told = {"if-none-match": known.etag, "if-modified-since": known.last_modified}
        return replace(request, headers={**request.headers, **{name: text for name, text in told.items() if text}})

    def told(self, request: Request, headers: Mapping[str, str]) -> Validators | None:
        """What an answer to the request says of its state. None: nothing."""
        etag, last_modified = headers.get("etag"), headers.get("last-modified")
        return Validators(self._mark(request), etag, last_modified) if etag or last_modified else None

    def _mark(self, request: Request) -> str:
        return blake2b(request.mark() + self._shape, digest_size=8).hexdigest()


def is_conditional(request: Request) -> bool:
    return "if-none-match" in request.headers or "if-modified-since" in request.headers
