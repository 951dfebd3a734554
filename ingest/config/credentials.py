"""What a Kafka client needs to be let in: the part `log.security` with its references resolved and its files read.

A password or token is resolved whenever it is needed, so that a mounted file may change. Certificates are read once.
"""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ingest.config.references import Where, nowhere, resolve_text
from ingest.config.security import Security
from ingest.errors import ConfigError
from ingest.redaction import Redactor
from ingest.tls import UnfitFile, tls_context


@dataclass(frozen=True)
class Credentials:
    """Made by `credentials`."""

    protocol: str
    mechanism: str | None = None
    username: str | None = None
    secret: Callable[[], str] = field(default=lambda: "", repr=False)
    """The password, the token or the client secret of this moment. Raises ConfigError."""
    token_url: str | None = None
    scopes: Sequence[str] = ()
    tls: ssl.SSLContext | None = None
    where: Where = nowhere
    """Keys of `log.security` → their place in the file."""
    certified: bool = False
    """We show a certificate."""
    learned: Callable[[str], None] = field(default=lambda token: None, repr=False)
    """Told every token that was fetched, to keep it out of what people read."""


def credentials(security: Security | None, secrets: Redactor, where: Where = nowhere) -> Credentials:
    """Without `security`, neither TLS nor password. Raises ConfigError with a line for everything that is missing or
    unfit."""
    if security is None:
        return Credentials("PLAINTEXT", where=where)
    problems: list[str] = []

    def text(key: str) -> str | None:
        value: str | None = getattr(security, key)
        try:
            return None if value is None else resolve_text(value, where(key))
        except ConfigError as exc:
            problems.append(str(exc))
            return None

    def secret() -> str:
        value = resolve_text(security.password or "", where("password"))
        secrets.renew("log.security.password", value)
        return value

    files = {key: text(key) for key in ("ca", "cert", "key")}
    username, token_url = text("username"), text("token_url")
    if security.password is not None:
        try:
            secret()
        except ConfigError as exc:
            problems.append(str(exc))
    tls = None
    if security.way.endswith("SSL") and not problems:
        try:
            tls = tls_context(**files)
        except UnfitFile as exc:
            problems.append(f"{where(exc.key)}: {exc}")
    if problems:
        raise ConfigError("\n".join(problems))
    return Credentials(
        security.way,
        security.mechanism,
        username,
        secret,
        token_url,
        security.scopes,
        tls,
        where,
        files["cert"] is not None,
        lambda token: secrets.renew("log.security.token", token),
    )
