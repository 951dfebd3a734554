"""Access tokens of OAuth 2, by the grants `client_credentials` and `refresh_token` (RFC 6749, 4.4 and 6)."""

import base64
import math
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote_plus

import msgspec
from msgspec.structs import replace

from ingest.config.auth import OAuth2
from ingest.errors import SourceChanged, SourceRefused
from ingest.sources.answers import Undecodable
from ingest.sources.auth import Params, encoded
from ingest.sources.auth.errands import UNAUTHORIZED, Errands
from ingest.sources.auth.renewed import Token, renew_at
from ingest.sources.exchange import Response
from ingest.sources.parameters import texts
from ingest.sources.request import Request

FORM = {"content-type": "application/x-www-form-urlencoded"}
NO_ENDPOINT = (404, 405, 501)  # answers of an address that gives no tokens
HINTS = {
    "invalid_client": "`client_id` and `client_secret`",
    "unauthorized_client": "`client_id`, and which grants it may use",
    "invalid_grant": "`refresh_token`: it has ended, was revoked, or was used by something else",
    "invalid_scope": "`scopes`",
}


class Grant(NamedTuple):
    """What a token endpoint gave. `life`: seconds, None where it does not say."""

    access: str
    refresh: str | None
    life: float | None


class Client:
    """Credentials of a token request: everything in its body that is not for everybody's eyes."""

    def __init__(self, oauth2: OAuth2) -> None:
        self._oauth2 = oauth2

    async def prepare(self, request: Request) -> Request:
        return self.put(request, {})

    async def renew(self, sent: Request) -> bool:
        return False

    def strip(self, url: str) -> str:
        return url

    def put(self, request: Request, shown: Params) -> Request:
        """`shown`: what the grant has to show besides."""
        has = self._oauth2
        form: dict[str, str | list[str]] = {**texts(has.params), "grant_type": has.grant, **shown}
        headers = {**request.headers, **FORM}
        if has.scopes:
            form["scope"] = " ".join(has.scopes)
        if has.send_as == "basic":  # both are form-encoded before they go into the header (RFC 6749, 2.3.1)
            pair = f"{quote_plus(has.client_id)}:{quote_plus(has.client_secret or '')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = has.client_id
            if has.client_secret is not None:
                form["client_secret"] = has.client_secret
        return replace(request, headers=headers, body=encoded(list(form.items())).encode())


class ClientCredentials:
    """A token for the client itself."""

    def __init__(self, oauth2: OAuth2, errands: Errands) -> None:
        self._oauth2, self._errands, self._client = oauth2, errands, Client(oauth2)

    async def obtain(self, refused: str | None) -> Token:
        asked_at = self._errands.monotonic()
        grant = await ask(self._errands, self._oauth2.token_url, self._client)
        return Token(grant.access, renew_at(asked_at, grant.life, self._oauth2.leeway))


async def ask(errands: Errands, token_url: str, client: Client) -> Grant:
    """Raises SourceRefused where a person must act, SourceUnavailable, SourceChanged."""

    def decode(response: Response) -> Grant:
        try:
            body: Any = msgspec.json.decode(response.body)
        except msgspec.DecodeError as exc:
            raise Undecodable(str(exc)) from exc
        answer: Mapping[str, Any] = body if isinstance(body, dict) else {}
        if answer.get("error"):  # some say it with status 200
            said = f"{answer['error']} {answer.get('error_description', '')}".rstrip()
            raise SourceRefused(errands.answered(response, said), response.status)
        access, refresh = answer.get("access_token"), answer.get("refresh_token")
        if not isinstance(access, str) or not access:
            said = "there is no `access_token` in it; is `token_url` the token endpoint?"
            raise SourceChanged(f"no access token: {errands.answered(response, said)}")
        return Grant(access, refresh if isinstance(refresh, str) and refresh else None, _life(answer.get("expires_in")))

    try:
        return await errands.send(Request(token_url, method="POST"), client, decode)
    except SourceRefused as exc:
        text = str(exc)
        elsewhere = "`auth.oauth2.token_url`" if exc.status in NO_ENDPOINT else "`auth.oauth2`"
        look = next((hint for code, hint in HINTS.items() if code in text), elsewhere)
        raise SourceRefused(f"no access token: {text}; look at {look}", UNAUTHORIZED) from exc


def _life(said: object) -> float | None:
    """Some say it as text. What makes no sense says nothing."""
    try:
        life = float(said) if isinstance(said, str | int | float) and not isinstance(said, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return life if math.isfinite(life) and life > 0 else None
