"""Who we are to an API: the part `auth` of a source or a stream."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from ingest.config.part import Mistake, Part
from ingest.config.session import Session
from ingest.config.signing import Hmac, Jwt
from ingest.config.values import Duration, Params, RequestPath, Secret, TokenUrl, token

KINDS = ("bearer", "basic", "api_key", "oauth2", "session", "jwt", "hmac")
RESERVED = frozenset({"grant_type", "scope", "refresh_token", "client_id", "client_secret"})


class Basic(Part):
    user: str
    password: Secret


class ApiKey(Part):
    place: Literal["header", "query", "cookie"] = Field("header", alias="in")
    """Where it goes."""
    name: str
    """The name of that header, parameter or cookie."""
    value: Secret

    def mistakes(self) -> Iterable[Mistake]:
        if self.place != "query" and "${" not in self.name:
            try:
                token(self.name)
            except ValueError as exc:
                yield "name", str(exc)


class OAuth2(Part):
    """Access tokens that are fetched, and fetched anew before they end (RFC 6749)."""

    token_url: TokenUrl
    """Where tokens are fetched, on whatever host."""
    grant: Literal["client_credentials", "refresh_token"] = "client_credentials"
    """What we have to show for a token."""
    client_id: str
    client_secret: Secret | None = None
    refresh_token: Secret | None = None
    """The first one. Where each use gives another, the newest is kept in the state store, sealed."""
    scopes: tuple[str, ...] = ()
    """What the tokens are asked for."""
    params: Params = Field({})
    """Further parameters of the token request, such as `audience`."""
    send_as: Literal["body", "basic"] = "body"
    """Where client id and secret go: among the parameters, or as HTTP Basic."""
    leeway: Duration = 60.0
    """How long before its end a token is fetched anew; at most half of its life."""

    def mistakes(self) -> Iterable[Mistake]:
        refreshes = self.grant == "refresh_token"
        if refreshes and self.refresh_token is None:
            yield "grant", "`refresh_token` is missing: the first one, by reference"
        if not refreshes and self.refresh_token is not None:
            yield "refresh_token", f"`refresh_token` means nothing with grant: {self.grant}; write grant: refresh_token"
        if self.client_secret is None and (not refreshes or self.send_as == "basic"):
            why = "send_as: basic" if refreshes else f"grant: {self.grant}"
            yield "send_as" if refreshes else "", f"`client_secret` is missing: {why} needs it"
        for name in RESERVED & set(self.params):
            yield f"params.{name}", f"`{name}` is set by `grant` and its keys"


class Probe(Part):
    """A request that gets a 2xx only when we are let in."""

    method: Literal["GET", "POST"] = "GET"
    path: RequestPath
    """What follows base_url: /me."""


class Auth(Part):
    """At most one way in, and how to see that it is open."""

    bearer: Secret | None = None
    """A token, sent as `Authorization: Bearer …`."""
    basic: Basic | None = None
    """User and password (RFC 7617)."""
    api_key: ApiKey | None = None
    """A key in a header, a parameter or a cookie."""
    oauth2: OAuth2 | None = None
    """Access tokens that are fetched and renewed."""
    session: Session | None = None
    """A token that a login gives."""
    jwt: Jwt | None = None
    """A token that we sign ourselves."""
    hmac: Hmac | None = None
    """A signature of every request."""

    probe: Probe | None = None
    """Asked before and after every listing, for APIs that answer 200 with less to a bad credential."""

    def mistakes(self) -> Iterable[Mistake]:
        ways = sum(getattr(self, kind) is not None for kind in KINDS)
        if ways > 1 or not (ways or self.probe):
            yield "", f"name {'only' if ways else 'exactly'} one of {', '.join(KINDS)}"
