"""Where the log, the store and the state are: the file says it, else the environment, else one embedded SQLite file.

A password in one of these URLs is a secret from the moment it is read.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ingest.config.model import Config
from ingest.config.references import Where, nowhere, resolve_text
from ingest.config.urls import (
    EMBEDDED,
    KafkaAddress,
    PostgresAddress,
    SqliteAddress,
    database_address,
    log_address,
)
from ingest.errors import ConfigError
from ingest.redaction import Redactor

__all__ = [
    "Addresses",
    "KafkaAddress",
    "PostgresAddress",
    "SqliteAddress",
    "addresses",
    "alone_beside_kafka",
    "log",
    "state",
    "store",
]

LOG_URL, STORE_URL, STATE_URL = "INGEST_LOG_URL", "INGEST_STORE_URL", "INGEST_STATE_URL"

A = TypeVar("A")
Database = SqliteAddress | PostgresAddress


@dataclass(frozen=True)
class Addresses:
    log: SqliteAddress | KafkaAddress
    store: Database
    state: Database


def addresses(config: Config, secrets: Redactor, where: Where = nowhere) -> Addresses:
    """All three. Raises ConfigError where a reference cannot be resolved or a URL makes no sense."""
    return Addresses(log(config, secrets, where), store(config, secrets, where), state(config, secrets, where))


def log(config: Config, secrets: Redactor, where: Where = nowhere) -> SqliteAddress | KafkaAddress:
    url = None if config.log is None else config.log.url
    return _read(url, where("log.url"), LOG_URL, log_address, secrets) or log_address(EMBEDDED)


def store(config: Config, secrets: Redactor, where: Where = nowhere) -> Database:
    return _read(config.store, where("store"), STORE_URL, database_address, secrets) or database_address(EMBEDDED)


def state(config: Config, secrets: Redactor, where: Where = nowhere) -> Database:
    """A process that needs the state alone asks for it alone: the store's reference is resolved only as its default."""
    found = _read(config.state, where("state"), STATE_URL, database_address, secrets)
    return found or store(config, secrets, where)


def alone_beside_kafka(log: SqliteAddress | KafkaAddress, what: str, address: Database) -> str | None:
    """What is odd about a log that many machines share and a file of this one beside it. `what`: store or state."""
    if not (isinstance(log, KafkaAddress) and isinstance(address, SqliteAddress)):
        return None
    variable = STORE_URL if what == "store" else STATE_URL
    return (
        f"the log is Kafka, but the {what} is {address}, which no other machine sees:"
        f" set `{what}` or {variable} to a postgresql:// URL"
    )


def _read(text: str | None, place: str, variable: str, parse: Callable[[str], A], secrets: Redactor) -> A | None:
    if text is None:
        text, place = os.environ.get(variable, ""), variable
        if not text:
            return None
    else:
        text = resolve_text(text, place)
    try:
        address = parse(text)
    except ValueError as exc:
        raise ConfigError(f"{place}: {exc}") from exc
    if isinstance(address, PostgresAddress):
        for secret in address.secrets:
            secrets.add(secret)
    return address
