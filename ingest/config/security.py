"""The log's address, and how its Kafka lets us in: the part `log` of the file."""

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator

from ingest.config.part import Mistake, Part
from ingest.config.values import LogUrl, Secret, TokenUrl

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

LOGIN = ("mechanism", "username", "password", "token_url", "scopes")
TLS = ("ca", "cert", "key")


def _path(text: str) -> str:
    if not text or "\n" in text or "${file:" in text:
        raise ValueError("must be the path of a PEM file: /etc/kafka/tls/ca.crt")
    return text


PemPath = Annotated[str, AfterValidator(_path)]


class Security(Part):
    """How Kafka lets us in. No other setting of a Kafka client is taken."""

    protocol: Protocol | None = None
    """Absent: SASL_SSL where there is a `mechanism`, else SSL."""
    mechanism: Mechanism | None = None
    """How we say who we are."""
    username: str | None = None
    """For PLAIN and SCRAM; the client id of `token_url`."""
    password: Secret | None = None
    """For PLAIN and SCRAM; for OAUTHBEARER the token, or the client secret of `token_url`."""
    token_url: TokenUrl | None = None
    """For OAUTHBEARER: where tokens are fetched (OAuth 2 client credentials)."""
    scopes: tuple[str, ...] = ()
    """What those tokens are asked for."""
    ca: PemPath | None = None
    """Who signs the brokers' certificates; absent: whom the system trusts."""
    cert: PemPath | None = None
    """Our certificate, where the brokers ask for one."""
    key: PemPath | None = None
    """Its private key."""

    @property
    def way(self) -> Protocol:
        """The protocol, said or meant: never one without TLS unless it is said."""
        return self.protocol or ("SASL_SSL" if self._given(LOGIN) else "SSL")

    @property
    def exposed(self) -> str | None:
        """What travels in the clear, if anything does."""
        if self.way == "SASL_PLAINTEXT":
            what = "events" if self.mechanism and self.mechanism.startswith("SCRAM") else "events and the password"
            return f"{what} travel to Kafka in the clear (protocol: SASL_PLAINTEXT): write SASL_SSL"
        if self.token_url is not None and self.token_url.startswith("http:"):
            return "the client secret travels to `token_url` in the clear: write an https URL"
        return None

    def mistakes(self) -> Iterable[Mistake]:
        if not self.model_fields_set:
            yield "", "is empty: say `protocol`, or leave it out"
        login, tls = self._given(LOGIN), self._given(TLS)
        if login and not self.way.startswith("SASL"):
            other = {"PLAINTEXT": "SASL_PLAINTEXT", "SSL": "SASL_SSL"}[self.way]
            yield login[0], f"`{login[0]}` means nothing with protocol: {self.way}; write protocol: {other}"
        elif self.way.startswith("SASL"):
            yield from self._login_mistakes()
        if tls and not self.way.endswith("SSL"):
            other = {"PLAINTEXT": "SSL", "SASL_PLAINTEXT": "SASL_SSL"}[self.way]
            yield tls[0], f"`{tls[0]}` means nothing with protocol: {self.way}; write protocol: {other}"
        for one, other in (("cert", "key"), ("key", "cert")):
            if one in tls and other not in tls:
                yield one, f"`{one}` without `{other}`: a client's certificate needs both"

    def _login_mistakes(self) -> Iterable[Mistake]:
        if self.mechanism is None:
            key = "protocol" if self.protocol else ""
            yield key, f"`mechanism` is missing: {', '.join(get_args(Mechanism))}"
            return
        token = self.mechanism == "OAUTHBEARER"
        if self.username is None and (not token or self.token_url is not None):
            whose = "the client id of `token_url`" if token else f"{self.mechanism} needs one"
            yield "mechanism", f"`username` is missing: {whose}"
        if self.password is None:
            whose = f"{self.mechanism} needs one"
            if token:
                whose = "the client secret of `token_url`" if self.token_url else "the token, or say `token_url`"
            yield "mechanism", f"`password` is missing: {whose}"
        if token and self.username is not None and self.token_url is None:
            yield "username", "`username` means nothing without `token_url`: the token says who we are"
        if not token:
            for key in self._given(("token_url", "scopes")):
                yield key, f"`{key}` means nothing with mechanism: {self.mechanism}; write mechanism: OAUTHBEARER"
        elif self.scopes and self.token_url is None:
            yield "scopes", "`scopes` mean nothing without `token_url`"

    def _given(self, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if getattr(self, key)]


class Log(Part):
    """The event log."""

    url: LogUrl | None = None
    """kafka://HOST:9092 or sqlite:///PATH; absent: INGEST_LOG_URL, else the embedded file."""
    security: Security | None = None
    """How Kafka lets us in; absent: without TLS and password."""

    def mistakes(self) -> Iterable[Mistake]:
        if "security" in self.model_fields_set and self.security is None:
            yield "security", "is empty: say `protocol`, or leave it out"
        if self.security is not None and self.url is not None and self.url.startswith("sqlite:"):
            yield "security", "`security` is for Kafka, and `url` is a SQLite file"
