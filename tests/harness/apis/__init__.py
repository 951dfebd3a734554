"""APIs that nobody here wrote, as processes on this machine: each has a list of orders, to be changed while it is read.

What `held` says is asked by another way than the listing that a test has read: record by record, or of the server's
database. A record looks the same in both.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.harness.processes import Child, NotStarted

START_TIMEOUT = 60.0  # seconds

Record = dict[str, Any]


class Api(Protocol):
    @property
    def url(self) -> str:
        """No slash at its end."""

    def put(self, orders: Mapping[str, Record]) -> None:
        """Make or change them: {"title": text, "amount": whole number} by id, which is 15 small letters and digits."""

    def delete(self, ids: Iterable[str]) -> None: ...

    def held(self) -> dict[str, Record]:
        """Every order that is there, by id."""

    def close(self) -> None: ...


class Served:
    """A process that answers at `url`, and what it prints. `owner`: a client for those who run it."""

    def __init__(self, command: list[str], port: int, directory: Path, *, ready: str = "/", **env: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.owner = httpx.Client(base_url=self.url, trust_env=False, timeout=30.0)
        self.log = directory / "server.log"
        self._child = Child(command, log=self.log, cwd=directory, env=env)
        self._child.wait_until(lambda: self._answers(ready), timeout=START_TIMEOUT, name=command[0])

    def _answers(self, path: str) -> bool:
        try:
            return self.owner.get(path).status_code < 500
        except httpx.TransportError:
            return False

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """The decoded answer to a request of the owner, which must work; None without a body."""
        answer = self.owner.request(method, path, **options)
        if answer.status_code >= 300:
            raise NotStarted(f"{method} {answer.request.url}: {answer.status_code} {answer.text[:500]}")
        return answer.json() if answer.content else None

    def close(self) -> None:
        self.owner.close()
        self._child.kill()
