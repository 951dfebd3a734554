"""The credentials of a source. Streams that are configured alike share what is fetched."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeVar

from ingest.config.model import Auth, Jwt, OAuth2, Part, Session, Source
from ingest.errors import ConfigError
from ingest.redaction import MASK, Redactor
from ingest.sources.auth import Credentials, Params, State
from ingest.sources.auth.errands import Errands
from ingest.sources.auth.oauth2 import ClientCredentials
from ingest.sources.auth.probe import Probe
from ingest.sources.auth.renewed import Obtain, Place, Renewed, Supply, Token
from ingest.sources.auth.session import Login, place
from ingest.sources.auth.signature import Signed
from ingest.sources.auth.static import credentials
from ingest.sources.transport import Limits, Transport

P = TypeVar("P", bound=Part)

TOTAL = 30.0  # seconds at most for one try of an errand: who waits for a token waits with its own request
BEARER = Place("header", "authorization", "Bearer {token}")


class Keyring:
    """Made by `open_keyring`, or by `keyring`: then `aclose` is the caller's."""

    def __init__(self, source: Source, errands: Errands, state: State | None, *, offline: bool = False) -> None:
        self._source, self._errands, self._state, self._offline = source, errands, state, offline
        self._supplies: list[tuple[Part, Supply]] = []

    def credentials(
        self, auth: Auth | None, secret_params: Params, secret_headers: Collection[str] = ()
    ) -> Credentials:
        """As `static.credentials`. Raises ConfigError for a key that cannot be used."""
        rest = credentials(auth, secret_params, secret_headers)
        if auth is None:
            return rest
        if auth.oauth2 is not None:
            return Renewed(rest, BEARER, self._supply(auth.oauth2, self._granted))
        if auth.session is not None:
            return Renewed(rest, place(auth.session), self._supply(auth.session, self._logged_in))
        if auth.jwt is not None:
            return Renewed(rest, BEARER, self._supply(auth.jwt, self._signed))
        return rest if auth.hmac is None else Signed(rest, auth.hmac, self._errands.transport.clock.wall)

    def probe(self, auth: Auth | None, credentials: Credentials) -> Probe | None:
        """How to see that `credentials` let us in, where `auth` says it."""
        if auth is None or auth.probe is None:
            return None
        return Probe(auth.probe, self._source, credentials, self._errands.transport, self._errands.redactor)

    def _supply(self, part: P, obtaining: Callable[[P], Obtain]) -> Supply:
        for known, supply in self._supplies:
            if known == part:
                return supply
        learn = self._learning(f"token {len(self._supplies)}")
        supply = Supply(_nothing if self._offline else obtaining(part), learn, self._errands.monotonic)
        self._supplies.append((part, supply))
        return supply

    def _granted(self, oauth2: OAuth2) -> Obtain:
        errands = self._errands.toward(oauth2.token_url)
        if oauth2.grant == "client_credentials":
            return ClientCredentials(oauth2, errands).obtain
        if self._state is None:
            raise ConfigError("`grant: refresh_token` needs the state store, where the newest token is kept")
        from ingest.sources.auth.refresh import RefreshToken  # what seals and signs takes 30 ms to import

        return RefreshToken(oauth2, errands, self._state).obtain

    def _logged_in(self, session: Session) -> Obtain:
        return Login(session, self._source, self._errands).obtain

    def _signed(self, jwt: Jwt) -> Obtain:
        from ingest.sources.auth.jwt import Signer

        return Signer(jwt, self._errands).obtain

    def _learning(self, what: str) -> Callable[[str], None]:
        """A token counts as a secret until there are two newer ones: an answer may repeat the one before."""
        learned = 0

        def learn(token: str) -> None:
            nonlocal learned
            learned += 1
            self._errands.redactor.renew(f"{self._errands.source} {what} {learned % 2}", token)

        return learn

    async def aclose(self) -> None:
        for _, supply in self._supplies:
            await supply.aclose()


async def _nothing(refused: str | None) -> Token:
    return Token(MASK)


def keyring(
    name: str,
    source: Source,
    transport: Transport,
    redactor: Redactor,
    state: State | None = None,
    *,
    offline: bool = False,
) -> Keyring:
    """Of the source `name`, references resolved. `state`: where `keeps_tokens` is true. `offline`: answers are played
    back, so nobody is asked for a token, and none is saved."""
    timeout = source.timeout.model_copy(update={"total": min(source.timeout.total, TOTAL)})
    limits = Limits(timeout, source.retry, source.limits.max_body)
    return Keyring(source, Errands(name, transport.aside(), limits, redactor), state, offline=offline)


@asynccontextmanager
async def open_keyring(
    name: str,
    source: Source,
    transport: Transport,
    redactor: Redactor,
    state: State | None = None,
    *,
    offline: bool = False,
) -> AsyncIterator[Keyring]:
    """As `keyring`."""
    made = keyring(name, source, transport, redactor, state, offline=offline)
    try:
        yield made
    finally:
        await made.aclose()


def keeps_tokens(source: Source) -> bool:
    """Whether it has tokens that are kept in the state store."""
    parts = [source.auth, *(stream.auth for stream in source.streams.values())]
    return any(part is not None and part.oauth2 is not None and part.oauth2.grant == "refresh_token" for part in parts)
