"""Access tokens for SASL OAUTHBEARER: given by reference, or fetched by the client-credentials grant of OAuth 2.

aiokafka asks for one whenever it connects. It does not authenticate again on a connection that stands (KIP-368), so a
broker closes it when the token's time is up; the next connection asks here again.
"""

import asyncio
import time
from typing import Any
from urllib.parse import quote_plus

import httpx
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from ingest.config.credentials import Credentials
from ingest.errors import ConfigError, IngestError, LogUnavailable

FETCH_TIMEOUT = 10.0  # seconds
LEEWAY = 60.0  # seconds before its end at which a token is fetched anew; at most half of its life
UNKNOWN_LIFE = 300.0  # seconds that a token counts for when its issuer does not say
SHOWN = 200  # characters of an answer that a message shows


class NoToken(KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """Why there is none, as an error of ours. aiokafka takes it for a connection that failed, and tries again."""

    def __init__(self, meaning: IngestError) -> None:
        super().__init__(str(meaning))
        self.meaning = meaning


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Of one cluster; its clients share what is fetched."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._fetching = asyncio.Lock()
        self._token = ""
        self._renew_at = 0.0  # time.monotonic()

    async def token(self) -> str:
        """Raises NoToken."""
        try:
            if self._credentials.token_url is None:
                return self._credentials.secret()
            async with self._fetching:
                if time.monotonic() >= self._renew_at:
                    self._token, life = await _fetch(self._credentials, self._credentials.token_url)
                    self._renew_at = time.monotonic() + life - min(LEEWAY, life / 2)
                return self._token
        except IngestError as exc:
            raise NoToken(exc) from exc


async def _fetch(credentials: Credentials, url: str) -> tuple[str, float]:
    """A token and its life in seconds (RFC 6749, 4.4). Raises ConfigError and LogUnavailable."""
    doing = f"{credentials.where('token_url')}: POST {_shown(url)}"
    form = {"grant_type": "client_credentials"}
    if credentials.scopes:
        form["scope"] = " ".join(credentials.scopes)
    # RFC 6749, 2.3.1: both are form-encoded before they go into the header; every issuer must take it.
    client = httpx.BasicAuth(quote_plus(credentials.username or ""), quote_plus(credentials.secret()))
    try:
        async with httpx.AsyncClient(verify=credentials.tls or True, timeout=FETCH_TIMEOUT) as http:
            answer = await http.post(url, data=form, auth=client, headers={"Accept": "application/json"})
    except httpx.HTTPError as exc:
        raise LogUnavailable(f"{doing}: no access token: {type(exc).__name__} {exc}".rstrip()) from exc
    shown = f"{doing} answered {answer.status_code}: {answer.text[:SHOWN]}"
    if answer.status_code == 429 or answer.status_code >= 500:
        raise LogUnavailable(f"{shown}; no access token for Kafka")
    if answer.status_code != 200:
        raise ConfigError(f"{shown}; look at `username` (the client id), `password` (its secret) and `scopes`")
    try:
        body: Any = answer.json()
        token, life = body["access_token"], float(body.get("expires_in", UNKNOWN_LIFE))
        if not isinstance(token, str):
            raise TypeError
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise ConfigError(f"{doing}: the answer has no `access_token`; is this the token endpoint?") from exc
    credentials.learned(token)
    return token, life


def _shown(url: str) -> str:
    return url.partition("?")[0]
