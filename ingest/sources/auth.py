"""Credentials: what proves who we are, put on a request at the last moment and taken off everything that is kept."""

import base64
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from ingest.config.model import ApiKey, Auth


Params = Mapping[str, str | list[str]]


class Credentials(Protocol):
    def apply(self, url: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        """The URL and headers to send. A parameter of ours that the URL already has is replaced, not repeated."""

    def strip(self, url: str) -> str:
        """The URL without anything of ours, fit to be saved."""


class Static:
    """Headers and query parameters that stay the same: bearer, basic, api_key, none, and secrets among `params`."""

    def __init__(self, headers: Mapping[str, str], params: Params) -> None:
        self._headers, self._params = headers, params

    def apply(self, url: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        if self._params:
            url = with_params(self.strip(url), self._params)
        return url, {**headers, **self._headers}

    def strip(self, url: str) -> str:
        if not self._params:
            return url
        parts = urlsplit(url)
        kept = [(n, v) for n, v in parse_qsl(parts.query, keep_blank_values=True) if n not in self._params]
        return urlunsplit(parts._replace(query=encoded(kept)))


def credentials(auth: Auth | None, secret_params: Params) -> Credentials:
    """`secret_params`: configured parameters whose values are secrets; they are treated as credentials too."""
    headers: dict[str, str] = {}
    params: dict[str, str | list[str]] = dict(secret_params)
    if auth is not None and auth.bearer is not None:
        headers["authorization"] = f"Bearer {auth.bearer}"
    elif auth is not None and auth.basic is not None:
        pair = f"{auth.basic.user}:{auth.basic.password}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    elif auth is not None and auth.api_key is not None:
        _place(auth.api_key, headers, params)
    return Static(headers, params)


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
    parts = urlsplit(url)
    added = encoded(list(params.items()))
    return urlunsplit(parts._replace(query="&".join(q for q in (parts.query, added) if q)))
