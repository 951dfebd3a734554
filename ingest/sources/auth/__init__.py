"""Credentials: what proves who we are, put on a request at the last moment and taken off everything that is kept.

Port only. `static.py` has those that stay the same, `renewed.py` those that end and are fetched anew; `keyring.py`
makes and shares what a configuration asks for.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from checkpoints import Leases, Tokens
from ingest.sources.request import Request

Params = Mapping[str, str | list[str]]


class Credentials(Protocol):
    async def prepare(self, request: Request) -> Request:
        """What is really sent: made anew for every try, since what proves who we are may expire between two.

        A parameter of ours that the URL already has is replaced, not repeated. Raises SourceRefused and
        SourceUnavailable when nothing can be had that proves who we are."""

    async def renew(self, sent: Request) -> bool:
        """The API answered 401 to `sent`, which `prepare` made. True: there is something fresher to try it with.

        Raises as `prepare` does."""

    def strip(self, url: str) -> str:
        """The URL without any parameter of ours; the others keep every byte."""


class State(NamedTuple):
    """Where tokens are kept that several processes share, and who we are to its leases."""

    tokens: Tokens
    leases: Leases
    holder: str


def encoded(pairs: Sequence[tuple[str, str | list[str]]]) -> str:
    """A query string; everything but unreserved characters is percent-encoded (RFC 3986), a list is repeated."""
    return urlencode(pairs, doseq=True, quote_via=quote, safe="")


def with_params(url: str, params: Params) -> str:
    if not params:
        return url
    parts = urlsplit(url)
    added = encoded(list(params.items()))
    return urlunsplit(parts._replace(query="&".join(q for q in (parts.query, added) if q)))
