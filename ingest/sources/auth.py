"""Credentials: what proves who we are, put on a request at the last moment and taken off everything that is kept."""

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote, unquote_plus, urlencode, urlsplit, urlunsplit

from msgspec.structs import replace

from ingest.config.model import ApiKey, Auth
from ingest.sources.request import Request

Params = Mapping[str, str | list[str]]

MIN_LENGTH = (
    8  # characters of a secret that is looked for under other names; a shorter one may be a value like any other
)


class Credentials(Protocol):
    async def prepare(self, request: Request) -> Request:
        """What is really sent: made anew for every try, since what proves who we are may expire between two.

        A parameter of ours that the URL already has is replaced, not repeated."""

    async def renew(self, request: Request) -> bool:
        """The API answered 401 to what `prepare` made of this. True: there is something fresher to try it with."""

    def strip(self, url: str) -> str:
        """The URL without any parameter of ours; the others keep every byte."""


class Static:
    """Headers and query parameters that stay the same: bearer, basic, api_key, none, and secrets among `params`.

    `secrets`: values that no parameter may have either, under whatever name an API puts them into a link.
    """

    def __init__(self, headers: Mapping[str, str], params: Params, secrets: Collection[str]) -> None:
        self._headers, self._params = headers, params
        self._secrets = frozenset(secret for secret in secrets if len(secret) >= MIN_LENGTH)

    async def prepare(self, request: Request) -> Request:
        headers = {**request.headers, **self._headers}
        if "cookie" in request.headers and "cookie" in self._headers:
            headers["cookie"] = f"{request.headers['cookie']}; {self._headers['cookie']}"
        return replace(request, url=with_params(self.strip(request.url), self._params), headers=headers)

    async def renew(self, request: Request) -> bool:
        return False

    def strip(self, url: str) -> str:
        parts = urlsplit(url)
        if not parts.query or not (self._params or self._secrets):
            return url
        kept = [pair for pair in parts.query.split("&") if not self._ours(pair)]
        return urlunsplit(parts._replace(query="&".join(kept)))

    def _ours(self, pair: str) -> bool:
        name, _, value = pair.partition("=")
        return unquote_plus(name) in self._params or unquote_plus(value) in self._secrets


def credentials(auth: Auth | None, secret_params: Params, secret_headers: Collection[str] = ()) -> Credentials:
    """`secret_params`: configured parameters whose values are secrets; they are treated as credentials too.
    `secret_headers`: values of such headers."""
    headers: dict[str, str] = {}
    params: dict[str, str | list[str]] = dict(secret_params)
    secrets = {*secret_headers}
    if auth is not None and auth.bearer is not None:
        headers["authorization"] = f"Bearer {auth.bearer}"
        secrets.add(auth.bearer)
    elif auth is not None and auth.basic is not None:
        pair = f"{auth.basic.user}:{auth.basic.password}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        secrets.add(auth.basic.password)
    elif auth is not None and auth.api_key is not None:
        _place(auth.api_key, headers, params)
        secrets.add(auth.api_key.value)
    for value in secret_params.values():
        secrets.update([value] if isinstance(value, str) else ())
    return Static(headers, params, secrets)


def _place(key: ApiKey, headers: dict[str, str], params: dict[str, str | list[str]]) -> None:
    if key.place == "query":
        params[key.name] = key.value
    elif key.place == "cookie":
        headers["cookie"] = f"{key.name}={key.value}"
    else:
        headers[key.name.lower()] = key.value


def encoded(pairs: Sequence[tuple[str, str | list[str]]]) -> str:
    """A query string; everything but unreserved characters is percent-encoded (RFC 3986), a list is repeated."""
    return urlencode(pairs, doseq=True, quote_via=quote, safe="")


def with_params(url: str, params: Params) -> str:
    if not params:
        return url
    parts = urlsplit(url)
    added = encoded(list(params.items()))
    return urlunsplit(parts._replace(query="&".join(q for q in (parts.query, added) if q)))
