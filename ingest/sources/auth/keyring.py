"""The credentials of a source. Streams that are configured alike share what is fetched."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from ingest.config.auth import OAuth2
from ingest.config.model import Auth, Source
from ingest.errors import ConfigError
from ingest.redaction import Redactor
from ingest.sources.auth import Credentials, Params, State
from ingest.sources.auth.errands import Errands
from ingest.sources.auth.oauth2 import ClientCredentials
from ingest.sources.auth.renewed import Obtain, Place, Renewed, Supply
from ingest.sources.auth.static import credentials
from ingest.sources.transport import Limits, Transport

TOTAL = 30.0  # seconds at most for one try of an errand: who waits for a token waits with its own request
BEARER = Place("header", "authorization", "Bearer {token}")


class Keyring:
    """Made by `open_keyring`, or by `keyring`: then `aclose` is the caller's."""

    def __init__(self, errands: Errands, state: State | None) -> None:
        self._errands, self._state = errands, state
        self._supplies: list[tuple[OAuth2, Supply]] = []

    def credentials(
        self, auth: Auth | None, secret_params: Params, secret_headers: Collection[str] = ()
    ) -> Credentials:
        """As `static.credentials`."""
        rest = credentials(auth, secret_params, secret_headers)
        if auth is None or auth.oauth2 is None:
            return rest
        return Renewed(rest, BEARER, self._supply(auth.oauth2))

    def _supply(self, oauth2: OAuth2) -> Supply:
        for known, supply in self._supplies:
            if known == oauth2:
                return supply
        learn = self._learning(f"token {len(self._supplies)}")
        supply = Supply(self._obtaining(oauth2), learn, self._errands.monotonic)
        self._supplies.append((oauth2, supply))
        return supply

    def _obtaining(self, oauth2: OAuth2) -> Obtain:
        errands = self._errands.toward(oauth2.token_url)
        if oauth2.grant == "client_credentials":
            return ClientCredentials(oauth2, errands).obtain
        if self._state is None:
            raise ConfigError("`grant: refresh_token` needs the state store, where the newest token is kept")
        from ingest.sources.auth.refresh import RefreshToken  # seals what it keeps: 30 ms of imports

        return RefreshToken(oauth2, errands, self._state).obtain

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


def keyring(name: str, source: Source, transport: Transport, redactor: Redactor, state: State | None = None) -> Keyring:
    """Of the source `name`, references resolved. `state`: where `keeps_tokens` is true."""
    timeout = source.timeout.model_copy(update={"total": min(source.timeout.total, TOTAL)})
    limits = Limits(timeout, source.retry, source.limits.max_body)
    return Keyring(Errands(name, transport, limits, redactor), state)


@asynccontextmanager
async def open_keyring(
    name: str, source: Source, transport: Transport, redactor: Redactor, state: State | None = None
) -> AsyncIterator[Keyring]:
    made = keyring(name, source, transport, redactor, state)
    try:
        yield made
    finally:
        await made.aclose()


def keeps_tokens(source: Source) -> bool:
    """Whether it has tokens that are kept in the state store."""
    parts = [source.auth, *(stream.auth for stream in source.streams.values())]
    return any(part is not None and part.oauth2 is not None and part.oauth2.grant == "refresh_token" for part in parts)
