"""A token endpoint that keeps to its rules: RFC 6749, and refresh tokens that end with their use (RFC 9700, 4.14.2).

`FakeApi.routes` takes `token` for its own path, and `guarded(answer)` for one that wants an access token.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

from tests.harness.listings import Answer, Request

Route = Callable[[Request], Answer]


@dataclass
class Issuer:
    client_id: str = "client"
    client_secret: str = "client-secret"
    refresh_token: str = ""
    """The one that works now. Empty: by the grant `client_credentials`."""
    rotates: bool = True
    expires_in: Any = 3600
    pause: float = 0.0
    """Seconds between the two halves of an answer."""
    asked: list[Request] = field(default_factory=list)
    forms: list[Mapping[str, str]] = field(default_factory=list)
    good: set[str] = field(default_factory=set)
    """Access tokens that are let in."""
    reused: int = 0
    """Times that a refresh token came which had been used before."""
    given: int = 0
    """Tokens given so far."""
    _used: set[str] = field(default_factory=set)

    def token(self, request: Request) -> Answer:
        form = dict(parse_qsl(request.body.decode(), keep_blank_values=True))
        self.asked.append(request)
        self.forms.append(form)
        if self._client(request, form) != (self.client_id, self.client_secret):
            return _said(request, 401, {"error": "invalid_client"})
        wanted = "refresh_token" if self.refresh_token else "client_credentials"
        if form.get("grant_type") != wanted:
            return _said(request, 400, {"error": "unauthorized_client"})
        if wanted == "refresh_token" and form.get("refresh_token") != self.refresh_token:
            self.reused += form.get("refresh_token") in self._used
            return _said(request, 400, {"error": "invalid_grant", "error_description": "token was used"})
        return self._given(request)

    def guarded(self, answer: Route) -> Route:
        """401 without an access token that works."""

        def guard(request: Request) -> Answer:
            kind, _, token = request.headers.get("authorization", "").partition(" ")
            if kind != "Bearer" or token not in self.good:
                return _said(request, 401, {"error": "invalid_token"})
            return answer(request)

        return guard

    def _given(self, request: Request) -> Answer:
        self.given += 1
        access = f"access-token-{self.given:04d}"
        self.good.add(access)
        given: dict[str, Any] = {"access_token": access, "token_type": "Bearer"}
        if self.expires_in is not None:
            given["expires_in"] = self.expires_in
        if self.refresh_token and self.rotates:
            self._used.add(self.refresh_token)
            self.refresh_token = given["refresh_token"] = f"refresh-token-{self.given:04d}"
        return _said(request, 200, given, self.pause)

    def _client(self, request: Request, form: Mapping[str, str]) -> tuple[str, str]:
        kind, _, pair = request.headers.get("authorization", "").partition(" ")
        if kind == "Basic":
            user, _, password = base64.b64decode(pair).decode().partition(":")
            return unquote_plus(user), unquote_plus(password)
        return form.get("client_id", ""), form.get("client_secret", "")


def _said(request: Request, status: int, body: Mapping[str, Any], pause: float = 0.0) -> Answer:
    json_ = (("content-type", "application/json"),)
    return Answer(request, status=status, headers=json_, body=json.dumps(body).encode(), pause=pause)
