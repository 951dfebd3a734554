"""The credentials of a source. Streams that are configured alike share what is fetched."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from ingest import metrics
from ingest.config.model import Auth, Jwt, OAuth2, Part, Session, Source, Stream
from ingest.config.rereading import Files, Renewals
from ingest.errors import ConfigError, IngestError, Transient
from ingest.redaction import MASK, Redactor
from ingest.sources.auth import Credentials, State
from ingest.sources.auth.current import Current
from ingest.sources.auth.errands import Errands
from ingest.sources.auth.oauth2 import ClientCredentials
from ingest.sources.auth.probe import Probe
from ingest.sources.auth.renewed import Obtain, Place, Renewed, Supply, Token
from ingest.sources.auth.session import Login, place
from ingest.sources.auth.signature import Signed
from ingest.sources.auth.static import credentials
from ingest.sources.template import Template
from ingest.sources.transport import Limits, Transport

log = structlog.get_logger()
P = TypeVar("P", bound=Part)

TOTAL = 30.0  # seconds at most for one try of an errand: who waits for a token waits with its own request
BEARER = Place("header", "authorization", "Bearer {token}")


class Reading(NamedTuple):
    """How to read a source again whose references lead to files. `resolve` raises ConfigError."""

    files: frozenset[Path]
    resolve: Callable[[Redactor], Source]


class Keyring:
    """Made by `open_keyring`, or by `keyring`: then `aclose` is the caller's."""

    def __init__(
        self, source: Source, errands: Errands, state: State | None, reading: Reading | None, *, offline: bool = False
    ) -> None:
        self._source, self._errands, self._state, self._offline = source, errands, state, offline
        self._first = source
        self._reading = reading
        self._files = Files(reading.files if reading else ())
        self._generation = 0
        self._supplies: list[tuple[Part, Supply]] = []
        self._supplied = 0  # so far

    def credentials(self, stream: Stream) -> Credentials:
        """Of a stream of the source. Raises ConfigError for a key that cannot be used."""
        if not self._files:
            return self._made(stream)
        name = next(name for name, known in self._first.streams.items() if known is stream)
        return Current(self._look, lambda: self._made(self._source.streams[name]))

    def _look(self) -> int:
        """Grows when the source was read again, as a file had changed."""
        if self._reading is not None and self._files.changed():
            renewals = Renewals(self._errands.redactor, f"files of {self._errands.source}", self._generation)
            try:
                self._source = self._reading.resolve(renewals)
            except ConfigError as exc:
                log.warning("a secret that changed cannot be read; the one before is used", error=str(exc))
            else:
                self._generation += 1
                self._supplies = [(part, supply) for part, supply in self._supplies if supply.busy or self._wants(part)]
        return self._generation

    def _wants(self, part: Part) -> bool:
        auths = [self._source.auth, *(stream.auth for stream in self._source.streams.values())]
        return any(part in (auth.oauth2, auth.session, auth.jwt) for auth in auths if auth is not None)

    def _made(self, stream: Stream) -> Credentials:
        template = Template(self._source, stream, self._errands.redactor.scrub)
        auth = stream.auth or self._source.auth
        rest = credentials(auth, template.secret_params, template.secret_headers)
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
        self._supplied += 1
        learn = self._learning(f"token {self._supplied}")
        obtain = _nothing if self._offline else _counted(self._errands.source, obtaining(part))
        supply = Supply(obtain, learn, self._errands.monotonic)
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


def _counted(source: str, obtain: Obtain) -> Obtain:
    async def counted(refused: str | None) -> Token:
        try:
            token = await obtain(refused)
        except Transient:
            metrics.tokens.labels(source, "unavailable").inc()
            raise
        except IngestError:
            metrics.tokens.labels(source, "refused").inc()
            raise
        metrics.tokens.labels(source, "fetched").inc()
        return token

    return counted


async def _nothing(refused: str | None) -> Token:
    return Token(MASK)


def keyring(
    name: str,
    source: Source,
    transport: Transport,
    redactor: Redactor,
    state: State | None = None,
    reading: Reading | None = None,
    *,
    offline: bool = False,
) -> Keyring:
    """Of the source `name`, references resolved. `state`: where `keeps_tokens` is true. `reading`: absent, files are
    not read again. `offline`: answers are played back, so nobody is asked for a token, and none is saved."""
    timeout = source.timeout.model_copy(update={"total": min(source.timeout.total, TOTAL)})
    limits = Limits(timeout, source.retry, source.limits.max_body)
    return Keyring(source, Errands(name, transport.aside(), limits, redactor), state, reading, offline=offline)


@asynccontextmanager
async def open_keyring(
    name: str,
    source: Source,
    transport: Transport,
    redactor: Redactor,
    state: State | None = None,
    reading: Reading | None = None,
    *,
    offline: bool = False,
) -> AsyncIterator[Keyring]:
    """As `keyring`."""
    made = keyring(name, source, transport, redactor, state, reading, offline=offline)
    try:
        yield made
    finally:
        await made.aclose()


def keeps_tokens(source: Source) -> bool:
    """Whether it has tokens that are kept in the state store."""
    parts = [source.auth, *(stream.auth for stream in source.streams.values())]
    return any(part is not None and part.oauth2 is not None and part.oauth2.grant == "refresh_token" for part in parts)
