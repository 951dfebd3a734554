"""What a user of a cluster must be allowed to do, and the command that allows it."""

from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
)

from ingest.config.credentials import Credentials
from ingest.errors import ConfigError

REFUSALS = (TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError)


class Right(NamedTuple):
    """`operation` as Kafka names it, on a `kind` of resource: topic, group or cluster, which has no name."""

    operation: str
    kind: str
    name: str = ""

    @property
    def resource(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"the {self.kind}"

    @property
    def option(self) -> str:
        return f"--{self.kind} {self.name}" if self.name else f"--{self.kind}"


def missing_right(exc: BaseException, may: str, topic: str, group: str) -> Right | None:
    """Which right a broker missed, when we did what needs the operation `may`. `topic` and `group`: those in question;
    without one aiokafka's error may hold the name."""
    if isinstance(exc, TopicAuthorizationFailedError):
        said = exc.args[0] if exc.args and isinstance(exc.args[0], str) else ""
        return Right(may, "topic", topic or said)
    if isinstance(exc, GroupAuthorizationFailedError):
        return Right("Read", "group", group)
    if isinstance(exc, ClusterAuthorizationFailedError):
        return Right("IdempotentWrite" if may == "Write" else may, "cluster")
    return None


def refusal(rights: Sequence[Right], doing: str, bootstrap: str, credentials: Credentials) -> ConfigError:
    """For a person. One command for each resource."""
    who = principal(credentials)
    by_resource: dict[str, list[Right]] = {}
    for right in rights:
        by_resource.setdefault(right.option, []).append(right)
    what = "; ".join(f"{_operations(some, ' and ')} on {some[0].resource}" for some in by_resource.values())
    admin = "" if credentials.protocol == "PLAINTEXT" else " --command-config ADMIN.properties"
    commands = [
        f'kafka-acls.sh --bootstrap-server {bootstrap}{admin} --add --allow-principal "{who}"'
        f" --operation {_operations(some, ' --operation ')} {option}"
        for option, some in by_resource.items()
    ]
    return ConfigError(f"Kafka: {doing}: {who} lacks {what}. Allow it: {'; '.join(commands)}")


def _operations(rights: Sequence[Right], between: str) -> str:
    return between.join(right.operation for right in rights)


def principal(credentials: Credentials) -> str:
    """Who we are to an authorizer, unless the brokers rewrite names (`ssl.principal.mapping.rules`)."""
    if credentials.mechanism == "OAUTHBEARER":
        return "User:<the token's subject>"
    if credentials.mechanism is not None:
        return f"User:{credentials.username}"
    return "User:<the certificate's subject>" if credentials.certified else "User:ANONYMOUS"
