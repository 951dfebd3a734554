"""Where the log, the store and the state live, as URLs: `kafka://…`, `postgresql://…`, `sqlite:///PATH`.

No error message and no `repr` holds the password of one.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

EMBEDDED = "sqlite:///.ingest/ingest.db"
_BOOTSTRAP = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")


@dataclass(frozen=True)
class SqliteAddress:
    path: Path

    def __str__(self) -> str:
        return f"sqlite:///{self.path}"


@dataclass(frozen=True)
class PostgresAddress:
    url: str = field(repr=False)  # with its password

    def __str__(self) -> str:
        """Without user, password and parameters: fit to be shown."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def hosts(self) -> list[str]:
        """A URL for every host that this one names: `a,b:5433` in `postgresql://a,b:5433/database`, as in libpq."""
        parts = urlsplit(self.url)
        user, at, hosts = parts.netloc.rpartition("@")
        return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]

    @property
    def secrets(self) -> tuple[str, ...]:
        """The password in every spelling that this URL gives it."""
        parts = urlsplit(self.url)
        found = [parts.password or ""]
        found += [value for name, value in parse_qsl(parts.query) if "password" in name]
        return tuple(dict.fromkeys(text for raw in found if raw for text in (raw, unquote(raw))))


@dataclass(frozen=True)
class KafkaAddress:
    bootstrap: str  # host:port, separated by commas

    def __str__(self) -> str:
        return f"kafka://{self.bootstrap}"


def log_address(text: str) -> SqliteAddress | KafkaAddress:
    """Raises ValueError."""
    if text.startswith("sqlite:"):
        return _sqlite(text)
    if not text.startswith("kafka://"):
        raise ValueError(f"{_scheme(text)} no event log; write kafka://HOST:9092,HOST:9092 or sqlite:///PATH")
    bootstrap = text.removeprefix("kafka://").rstrip("/")
    if "@" in bootstrap:
        raise ValueError("a user and password for Kafka stand in `log.security`, not in the URL")
    for server in bootstrap.split(","):
        if not _BOOTSTRAP.fullmatch(server):
            raise ValueError(f"`{server}` is no Kafka server; write kafka://HOST:9092,HOST:9092")
    return KafkaAddress(bootstrap)


def database_address(text: str) -> SqliteAddress | PostgresAddress:
    """Of the event store or the state store. Raises ValueError."""
    if text.startswith("sqlite:"):
        return _sqlite(text)
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError(f"{_scheme(text)} no database that is known here; write postgresql://… or sqlite:///PATH")
    address = PostgresAddress(text)
    try:
        for host in address.hosts():
            urlsplit(host).port  # noqa: B018  (raises for what is no port)
    except ValueError as exc:
        raise ValueError("this is no PostgreSQL URL; write postgresql://USER:PASSWORD@HOST:5432/DATABASE") from exc
    return address


def _sqlite(text: str) -> SqliteAddress:
    path = text.removeprefix("sqlite:///")
    if path in ("", text) or "?" in path or "\0" in path:
        raise ValueError("a SQLite URL is sqlite:///PATH (relative) or sqlite:////PATH (absolute)")
    return SqliteAddress(Path(path))


def _scheme(text: str) -> str:
    """The scheme alone: the rest of a URL may hold a password."""
    scheme, separator, _ = text.partition("://")
    return f"`{scheme}://` is" if separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) else "this is"
