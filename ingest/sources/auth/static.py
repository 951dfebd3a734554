"""Headers and parameters that stay the same: bearer, basic, api_key, and secrets among the configured parameters."""

import base64
from collections.abc import Collection, Container, Mapping
from urllib.parse import unquote_plus, urlsplit, urlunsplit

from msgspec.structs import replace

from ingest.config.model import ApiKey, Auth
from ingest.sources.auth import Params, with_params
from ingest.sources.request import NO_HEADERS, Request

MIN_LENGTH = (
    8  # characters of a secret that is looked for under other names; a shorter one may be a value like any other
)


class Static:
    """`secrets`: values that no parameter may have either, under whatever name an API puts them into a link."""

    def __init__(self, headers: Mapping[str, str], params: Params, secrets: Collection[str]) -> None:
        self._headers, self._params = headers, params
        self._secrets = frozenset(secret for secret in secrets if len(secret) >= MIN_LENGTH)

    async def prepare(self, request: Request) -> Request:
        return self.put(request)

    async def renew(self, sent: Request) -> bool:
        return False

    def put(self, request: Request) -> Request:
        headers = {**request.headers, **self._headers}
        if "cookie" in request.headers and "cookie" in self._headers:
            headers["cookie"] = f"{request.headers['cookie']}; {self._headers['cookie']}"
        return replace(request, url=with_params(self.strip(request.url), self._params), headers=headers)

    def strip(self, url: str) -> str:
        return without(url, self._params, self._secrets)


def without(url: str, names: Container[str], values: Container[str]) -> str:
    """The URL without the parameters that have one of these names or values; the others keep every byte."""
    parts = urlsplit(url)
    if not parts.query:
        return url
    kept = []
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if unquote_plus(name) not in names and unquote_plus(value) not in values:
            kept.append(pair)
    return urlunsplit(parts._replace(query="&".join(kept)))


def credentials(auth: Auth | None, secret_params: Params, secret_headers: Mapping[str, str] = NO_HEADERS) -> Static:
    """`secret_params` and `secret_headers`: those that are configured with secrets; they are credentials too."""
    headers: dict[str, str] = dict(secret_headers)
    params: dict[str, str | list[str]] = dict(secret_params)
    secrets = {*secret_headers.values()}
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
        cookies = [headers["cookie"]] if "cookie" in headers else []
        headers["cookie"] = "; ".join([*cookies, f"{key.name}={key.value}"])
    else:
        headers[key.name.lower()] = key.value
