"""Tokens that a login gives: the part `auth.session`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ingest.config.part import Mistake, Part
from ingest.config.requests import Json
from ingest.config.values import HeaderName, HeaderValue, Params, RequestPath, SessionPath, Wait, one_line, token
from ingest.paths import Root

_SECRET_NAME = re.compile(
    r"(?i)(passw(or)?d|passphrase|\bpass|pwd|secret|token|credentials?|api[_-]?key|private[_-]?key|\bpin)$"
)


class Login(Part):
    """The request that gives a token."""

    method: Literal["POST", "GET", "PUT"] = "POST"
    path: RequestPath
    """What follows base_url: /login."""
    params: Params = Field({})
    """Query parameters, beside the source's."""
    headers: Mapping[HeaderName, HeaderValue] = Field({})
    """Headers, beside the source's."""
    json_: Json | None = Field(None, alias="json")
    """A body: JSON, written here as YAML."""
    form: Params | None = None
    """A body: the fields of a form."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.json_ is not None and self.form is not None:
            yield "form", "a request has one body; `json` is one already"
        for key, body in (("json", self.json_), ("form", self.form), ("params", self.params)):
            for path in _written_out(body, (key,)):
                yield ".".join(path), "secrets only by reference: write ${env:NAME} or ${file:/run/secrets/name}"


class Send(Part):
    """Where a token goes: into one of them."""

    header: HeaderName | None = None
    query: str | None = None
    """The query parameter that takes it."""
    cookie: Annotated[str, AfterValidator(token)] | None = None
    value: Annotated[str, AfterValidator(one_line)] = "{token}"
    """What the header or cookie holds: `Bearer {token}`."""

    def mistakes(self) -> Iterable[Mistake]:
        places = [key for key in ("header", "query", "cookie") if getattr(self, key) is not None]
        if len(places) != 1:
            yield "", "name exactly one of header, query, cookie"
        elif "{token}" not in self.value or (self.query is not None and self.value != "{token}"):
            yield "value", "`value` is what the header or cookie holds, with `{token}` in it: Bearer {token}"


class Session(Part):
    """A token that a login gives, and that is asked for again when it ends."""

    login: Login
    token: SessionPath
    """Where it stands in the answer: $.token, header.X-Session or cookie.NAME."""
    send: Send | None = None
    """Where it goes in every request; absent, for a cookie: back as that cookie."""
    ttl: Wait | None = None
    """How long it is good for; absent: until the API answers 401."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.send is None and self.token.root is not Root.COOKIE:
            yield "", "`send` is missing: where the token goes, such as {header: X-Session}"


def _written_out(body: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Values that look like secrets by their names, and stand in the file."""
    if isinstance(body, Mapping):
        for name, value in body.items():
            if isinstance(value, str) and value and "${" not in value and _SECRET_NAME.search(name):
                yield (*path, name)
            yield from _written_out(value, (*path, name))
    elif isinstance(body, list):
        for n, item in enumerate(body):
            yield from _written_out(item, (*path, str(n)))
