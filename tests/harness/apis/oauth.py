"""An OAuth 2 server (node-oidc-provider) and a gate before another API that lets nobody through without its tokens.

    POST {token_url}      grant_type=client_credentials | grant_type=refresh_token&refresh_token=…
    {"access_token": "-bgAw9pR…", "expires_in": 2, "refresh_token": "SfvsCyaF…", "token_type": "Bearer", …}

The gate asks the server about every token that it sees, and has it revoked after some requests: then the answer is 401.
A refresh token works once: who uses it again loses the one that came after it, too.
"""

import re
from pathlib import Path
from typing import NamedTuple

from tests.harness import installs
from tests.harness.apis import Served
from tests.harness.processes import free_ports


class Tokens(NamedTuple):
    """What the gate saw."""

    good: int  # different tokens that were let through
    refused: int  # requests


class Guarded:
    """Made by `start`. `url`: the gate's. `secret`: of the client. `refresh_token`: what was given to `person`."""

    def __init__(self, directory: Path, upstream: str, client: str, *, lifetime: int, uses: int) -> None:
        self.secret = f"opensesame & {client}+%"
        port, gate = free_ports(2)
        installs.node(directory, "oidc.mjs", "guard.mjs")
        issuer = directory / "issuer"
        issuer.mkdir()
        command = ["node", str(directory / "oidc.mjs"), str(port), str(lifetime)]
        self._issuer = Served(command, port, issuer, ready="/.well-known/openid-configuration")
        command = ["node", str(directory / "guard.mjs"), str(gate), upstream, self._issuer.url, str(uses)]
        self._gate = Served(command, gate, directory)
        [self.refresh_token] = re.findall("refresh token: (.+)", self._issuer.log.read_text())
        self.url, self.token_url = self._gate.url, f"{self._issuer.url}/token"

    def seen(self) -> Tokens:
        lines = re.findall(r"token (\d+): (\d+)", self._gate.log.read_text())
        return Tokens(len({token for token, status in lines if status == "200"}), sum(s == "401" for _, s in lines))

    def close(self) -> None:
        self._gate.close()
        self._issuer.close()


def start(directory: Path, upstream: str, client: str, *, lifetime: int = 3600, uses: int = 0) -> Guarded:
    """For `machine` (by HTTP's basic authentication), `machine-post` (by form) or `person` (who has a refresh token).
    An access token lives `lifetime` seconds and is good for `uses` requests; 0: for any number."""
    return Guarded(directory, upstream, client, lifetime=lifetime, uses=uses)
